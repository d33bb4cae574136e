"""The layout that one namespace over five folders depends on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTS = ("sdk", "executors", "policies", "contrib", "benchmarks")
VIRTUAL_CLOCK_FOLDERS = (
    ROOT / "executors/swingshift/executors/runtime",
    ROOT / "executors/swingshift/executors/simulated",
)


@pytest.mark.parametrize("part", PARTS)
def test_the_namespace_itself_has_no_init_file(part: str) -> None:
    """One such file would make its part the whole namespace and hide the other four."""
    namespace = ROOT / part / "swingshift"

    assert not (namespace / "__init__.py").exists()
    assert [path.name for path in namespace.iterdir() if path.name != "__pycache__"] == [part]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_ships_its_types(part: str) -> None:
    """Type checkers of users ignore a part without the marker file."""
    assert (ROOT / part / "swingshift" / part / "py.typed").is_file()


@pytest.mark.parametrize("part", PARTS)
def test_every_folder_with_modules_is_a_regular_package(part: str) -> None:
    """A folder without an init file would be left out by the import linter and by coverage."""
    package = ROOT / part / "swingshift" / part
    folders = {path.parent for path in package.rglob("*.py")}

    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


@pytest.mark.parametrize("part", PARTS)
def test_every_part_explains_itself_in_five_lines(part: str) -> None:
    """A part's README says what it is for and what it may import."""
    lines = (ROOT / part / "README.md").read_text(encoding="utf-8").splitlines()

    assert lines[0] == f"# swingshift.{part}"
    assert len(lines) == 5
    assert any(line.startswith("It may import:") for line in lines)


@pytest.mark.parametrize("folder", VIRTUAL_CLOCK_FOLDERS, ids=lambda folder: folder.name)
def test_nothing_on_the_virtual_clock_leaves_its_event_loop(folder: Path) -> None:
    """A thread pool runs on the wall clock; the linter bans functions but cannot see methods."""
    offences = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "run_in_executor"
    ]

    assert offences == []
