"""The commands ``policies`` and ``init``, and the files that ``init`` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from swingshift.executors.app.assembly import execute
from swingshift.executors.app.commands import STARTER_FILES, register
from swingshift.executors.app.configuration import load_config
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk import registry
from swingshift.sdk.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    """Return an application with these commands alone."""
    made = typer.Typer()
    register(made)
    return made


@pytest.fixture
def study(app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the starter files; the name of their policy is free afterwards."""
    monkeypatch.setattr(registry, "_decorated", dict(registry._decorated))
    folder = tmp_path / "deep" / "study"
    result = CliRunner().invoke(app, ["init", str(folder)])
    assert result.exit_code == 0, result.output
    for command in ("check", f"bench {folder}/scenario.yaml --policy"):
        assert f"swingshift {command} {folder}/my_policy.py:MyPolicy\n" in result.output
    return folder


@pytest.mark.parametrize("columns", [80, 120])
def test_policies_shows_names_parameters_and_a_line_each(app: typer.Typer, columns: int) -> None:
    """Everything that is needed to choose a policy fits a terminal."""
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["policies"])

    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= columns
    for words in ("default", "static_fully_async", "deactivate_ratio=0.3", "only_hybrid=False"):
        assert words in result.output
    assert "FixedRatioDynamicSchedulePolicy" in result.output
    assert "Lend when the wall-clock time it" in result.output


def test_policies_goes_on_after_one_that_cannot_be_imported(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broken package of somebody else's is a warning."""
    info = tmp_path / "brittle-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brittle\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[swingshift.policies]\nbrittle = no_such_module:X\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(app, ["policies"])

    assert result.exit_code == 0
    assert "static_fully_async" in result.stdout
    assert result.stderr.startswith("warning: policy 'brittle' (entry point 'no_such_module:X'")


def test_init_writes_a_scenario_that_runs(study: Path) -> None:
    """With the built-in policy and with the one beside it."""
    config = load_config(study / "scenario.yaml", ["rollout.total_rollout_steps=160"])

    assert {path.name for path in study.iterdir()} == set(STARTER_FILES)
    assert execute(config).outcome is RunOutcome.EXHAUSTED
    report = execute(config, policy=f"{study}/my_policy.py:MyPolicy")
    assert report.trained_samples + report.unused_samples == 160


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["outside", "inside"])
def test_init_writes_a_test_that_passes(study: Path, folder: str) -> None:
    """Under pytest's own settings, and under those of a repository around it."""
    if folder == "inside":
        (study.parent / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    result = subprocess.run(
        [*pytest_command, "--contract-examples=10", str(study)],
        cwd=study.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout
    assert "17 passed" in result.stdout


@pytest.mark.slow
def test_init_writes_code_that_linters_accept(study: Path) -> None:
    """What a user starts from is typed and formatted."""
    for tool in (
        ("ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "S101"),
        ("ruff", "format", "--check", "--config", str(ROOT / "pyproject.toml")),
        ("mypy", "--strict"),
    ):
        command = [sys.executable, "-m", *tool, *map(str, study.glob("*.py"))]
        result = subprocess.run(command, capture_output=True, text=True, check=False, cwd=study)
        assert result.returncode == 0, result.stdout


def test_init_overwrites_nothing(app: typer.Typer, tmp_path: Path) -> None:
    """It names the files in the way, and writes none of the others either."""
    mine = tmp_path / "my_policy.py"
    mine.write_text("my work")
    result = CliRunner().invoke(app, ["init", str(tmp_path)])

    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"{tmp_path} holds my_policy.py already; nothing was")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["my work"]


def test_init_says_why_it_cannot_write(app: typer.Typer, tmp_path: Path) -> None:
    """A file where the folder should be is the user's to move."""
    (tmp_path / "taken").write_text("")
    result = CliRunner().invoke(app, ["init", str(tmp_path / "taken")])

    assert isinstance(result.exception, UserError)
    assert str(result.exception) == f"cannot write {tmp_path / 'taken'}: File exists"
