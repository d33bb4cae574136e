"""``swingshift bench local`` and ``bench learning``: that they work, not what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from swingshift.benchmarks.measured.session import LOADS, load_of
from swingshift.executors.app.cli import make_app
from swingshift.sdk.errors import UserError


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        (["local", "--out", "report"], "--out"),
        (["local", "--log", "logs", "--sensitivity"], "--log or --sensitivity"),
        (["learning", "--quick"], "--quick"),
    ],
)
def test_options_without_effect_are_refused(arguments: list[str], refused: str) -> None:
    """Nothing that was asked for is dropped in silence."""
    result = CliRunner().invoke(make_app(), ["bench", *arguments])
    assert isinstance(result.exception, UserError)
    assert f"takes no {refused};" in str(result.exception)


@pytest.mark.parametrize("name", LOADS)
def test_loads_are_configurations(name: str) -> None:
    """One core trains and one generates, and overrides reach them."""
    config = load_of(name, ["seed=7"])
    assert (config.hybrid_gpus, config.standalone_gpus, config.seed) == (1, 1, 7)
    assert config.executor.name == "local"


@pytest.mark.slow
def test_pairs_are_run_and_predicted(tmp_path: Path) -> None:
    """Two short pairs of each load, and a figure for everything that is promised."""
    file = tmp_path / "result.json"
    result = CliRunner().invoke(
        make_app(),
        [
            "bench",
            "local",
            "--quick",
            "--json",
            str(file),
            "rollout.total_rollout_steps=512",
            "data.max_response_length=40",
            "executor.share_devices=true",
        ],
    )
    assert result.exit_code == 0, result.output
    document = json.loads(file.read_text())
    assert [load["load"] for load in document["loads"]] == list(LOADS)
    for load in document["loads"]:
        assert len(load["pairs"]) == 2
        assert load["ratio"]["low"] <= load["ratio"]["value"] <= load["ratio"]["high"]
        assert 0.0 < load["bound"]["ratio"] <= 1.0
        assert all(cycle[by] > 0.0 for cycle in load["cycle_s"].values() for by in cycle)
    assert "95% interval" in result.output


@pytest.mark.slow
def test_learning_is_compared(tmp_path: Path) -> None:
    """Two pairs far too short to learn from: the same figures, and a verdict for both measures."""
    file = tmp_path / "result.json"
    result = CliRunner().invoke(
        make_app(),
        [
            "bench",
            "learning",
            "--seeds",
            "2",
            "--json",
            str(file),
            "rollout.total_rollout_steps=128",
            "executor.share_devices=true",
        ],
    )
    assert result.exit_code in (0, 1), result.output
    document = json.loads(file.read_text())
    assert set(document["results"]) == {"final reward", "area under the curve"}
    assert len(document["pairs"]) == 2
    assert "margin 0.05" in " ".join(result.output.split())
