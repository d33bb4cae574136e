"""Two ranks compute what one does: gradients, weights, optimizer state and metrics."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.executors.local_training import build_engine, build_small, write_everything
from tests.executors.training_ranks import DEATH, SCENARIOS, write_payloads

from swingshift.executors.local.weights import digest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the directory in which two ranks have written what each scenario came to."""
    directory = tmp_path_factory.mktemp("ranks")
    for name in (*SCENARIOS, DEATH):
        (directory / name).mkdir()
        sequences = SCENARIOS.get(name, SCENARIOS["gradients"]).sequences
        told = write_payloads(directory / name, sequences)
        (directory / name / "sequences.json").write_text(json.dumps(told))
    build_small().save_pretrained(directory / "from a directory" / "model")
    ranks = subprocess.Popen(
        [sys.executable, "-m", "tests.executors.training_ranks", str(directory)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _, said = ranks.communicate(timeout=240)
        assert ranks.returncode == 0, said
        # neither rank is left
        with pytest.raises(ProcessLookupError):
            os.killpg(ranks.pid, 0)
        yield directory
    finally:
        with suppress(ProcessLookupError):
            os.killpg(ranks.pid, signal.SIGKILL)
        ranks.wait()


@pytest.mark.parametrize("name", SCENARIOS)
def test_two_ranks_come_to_what_one_does(two_ranks: Path, tmp_path: Path, name: str) -> None:
    """Both have all of it: weights, moments (after one step: gradients), reference, critic."""
    scenario = SCENARIOS[name]
    alone = build_engine(tmp_path, scenario.learning, optimizer_steps=scenario.optimizer_steps)
    timing_s, metrics = alone.fit(scenario.sequences)
    write_everything(alone, tmp_path / "alone")

    for rank in (0, 1):
        answer = json.loads((two_ranks / name / f"{rank}.json").read_text())
        assert answer["timing_s"].keys() == timing_s.keys()
        assert answer["metrics"] == pytest.approx(metrics, rel=1e-4, abs=1e-5)
        for path in (tmp_path / "alone").glob("*.safetensors"):
            expected = load_file(path)
            found = load_file(two_ranks / name / f"{rank}" / path.name)
            assert found.keys() == expected.keys()
            # weights step by 1e-2; moments are as small as the gradients
            atol = 1e-6 if "optimizer" in path.name else 1e-4
            for tensor in expected:
                close = torch.allclose(found[tensor], expected[tensor], rtol=1e-3, atol=atol)
                assert close, f"{path.name}: {tensor}"


@pytest.mark.parametrize("name", SCENARIOS)
def test_ranks_stay_equal_to_the_bit(two_ranks: Path, name: str) -> None:
    """Or they would drift apart, and the weights that replicas get would be those of one alone."""
    ours, theirs = (two_ranks / name / f"{rank}" for rank in (0, 1))
    for path in ours.iterdir():
        assert path.read_bytes() == (theirs / path.name).read_bytes(), path.name
    first, second = (json.loads((two_ranks / name / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["metrics"] == second["metrics"]


def test_the_first_rank_saves_without_the_other(two_ranks: Path, tmp_path: Path) -> None:
    """And an engine that is alone goes on from there."""
    engine = build_engine(tmp_path, SCENARIOS["steps"].learning, seed=9)
    engine.load(two_ranks / "steps" / "checkpoint")

    assert digest(engine.weights()) == digest(load_file(two_ranks / "steps/0/model.safetensors"))


def test_the_scenarios_are_what_they_are_called(two_ranks: Path) -> None:
    """One has a step that is skipped, another trains for several."""
    skipped = json.loads((two_ranks / "skipped" / "0.json").read_text())["metrics"]
    steps = json.loads((two_ranks / "steps" / "1" / "training_state.json").read_text())

    assert skipped["actor/skipped_steps"] == 1.0
    assert skipped["actor/grad_norm"] > 0.0
    assert steps["steps"] == {"optimizer": 4, "critic_optimizer": 4}


def test_a_rank_whose_partner_is_gone_fails_at_once(two_ranks: Path) -> None:
    """It does not wait for gradients that never come."""
    assert (two_ranks / DEATH / "0.txt").read_text()
    assert not (two_ranks / DEATH / "0").exists()
