"""``swingshift calibrate``: what it refuses, and that what it writes runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from swingshift.benchmarks.scenario import load_scenario
from swingshift.executors.app.cli import make_app
from swingshift.sdk.errors import ConfigError, UserError


def test_a_file_is_not_replaced_by_accident(tmp_path: Path) -> None:
    """It may hold an hour of measurements."""
    out = tmp_path / "machine.yaml"
    out.write_text("mine")
    result = CliRunner().invoke(make_app(), ["calibrate", "copy", "--out", str(out)])
    assert isinstance(result.exception, UserError)
    assert "exists; choose another --out, or --force to replace it" in str(result.exception)
    assert out.read_text() == "mine"


def test_what_is_modelled_is_not_measured(tmp_path: Path) -> None:
    """The simulated executor has no machine."""
    arguments = ["calibrate", "copy", "executor={name: simulated}"]
    result = CliRunner().invoke(make_app(), [*arguments, "--out", str(tmp_path / "x.yaml")])
    assert isinstance(result.exception, ConfigError)
    assert "executor.name: the simulated executor has nothing to measure" in str(result.exception)


@pytest.mark.slow
def test_what_is_written_is_a_scenario(tmp_path: Path) -> None:
    """The local executor, measured, is a machine that the simulated one runs."""
    out = tmp_path / "machine.yaml"
    result = CliRunner().invoke(
        make_app(),
        ["calibrate", "copy", "--out", str(out), "--cycles", "4", "executor.share_devices=true"],
    )
    assert result.exit_code == 0, result.output
    assert "decode, standalone" in result.output
    scenario = load_scenario(str(out), ["rollout.total_rollout_steps=64"])
    assert {run.config.executor.name for run in scenario.runs} == {"simulated"}
    assert [run.name for run in scenario.runs] == ["static", "dynamic"]
