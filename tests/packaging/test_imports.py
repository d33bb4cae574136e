"""What an import costs, seen from a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import swingshift.sdk


def run_fresh(program: str, *arguments: str) -> str:
    """Run a program in a new interpreter and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def loaded_distributions(statement: str) -> set[str]:
    """Return the third-party distributions whose modules a statement loads."""
    program = """
        import json, sys

        before = set(sys.modules)
        exec(sys.argv[1])
        loaded = {name.partition(".")[0] for name in set(sys.modules) - before}

        from importlib.metadata import packages_distributions

        owners = packages_distributions()
        names = {name for module in loaded for name in owners.get(module, ())}
        print(json.dumps(sorted(names)))
    """
    return set(json.loads(run_fresh(program, statement))) - {"swingshift"}


def test_the_contracts_load_attrs_and_nothing_else() -> None:
    """A policy author's import stays light, whatever else is installed."""
    assert loaded_distributions("import swingshift.sdk") == {"attrs"}


def test_every_contract_module_loads_attrs_and_nothing_else() -> None:
    """No module of the contracts reaches the testing kit, the one place that needs more."""
    root = Path(swingshift.sdk.__path__[0])
    modules = [
        ".".join(("swingshift", "sdk", *path.relative_to(root).with_suffix("").parts))
        for path in sorted(root.rglob("*.py"))
        if path.name != "__init__.py" and path.relative_to(root).parts[0] != "testing"
    ]

    assert loaded_distributions(f"import {', '.join(modules)}") == {"attrs"}


@pytest.mark.parametrize("part", ["sdk", "policies", "executors", "contrib", "benchmarks"])
def test_parts_import_without_one_another(part: str) -> None:
    """Each folder contributes its own part to the namespace."""
    run_fresh("import importlib, sys; importlib.import_module(sys.argv[1])", f"swingshift.{part}")


def test_help_loads_neither_plots_nor_the_testing_kit() -> None:
    """The command line answers at once: what only some commands need is imported by them."""
    program = """
        import sys

        from swingshift.executors.app.cli import main

        sys.argv = ["swingshift", "--help"]
        try:
            main()
        except SystemExit as end:
            assert not end.code, end.code
        assert not {"matplotlib", "hypothesis"} & set(sys.modules)
    """
    assert "bench" in run_fresh(program)
