"""Checkpoints of a training engine: written whole, read whole, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import attrs
import pytest
import torch
from tests.executors.local_training import (
    SMALL_MODEL,
    batch,
    build_engine,
    build_small,
)

from swingshift.executors.local.checkpoints import CheckpointError
from swingshift.executors.local.training import TrainingEngine
from swingshift.executors.local.weights import digest
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.errors import ConfigError

PLAIN = LearningOptions(learning_rate=1e-2)
FULL = attrs.evolve(PLAIN, kl_coefficient=0.1, critic=True, critic_learning_rate=1e-2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of an engine with everything, after two steps; not to be changed."""
    scratch = tmp_path_factory.mktemp("saved")
    engine = build_engine(scratch, FULL)
    engine.fit(batch())
    engine.fit(batch())
    engine.save(scratch / "checkpoint")
    return scratch / "checkpoint"


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """Return a checkpoint that may be changed."""
    return Path(shutil.copytree(saved, tmp_path / "copied"))


def digests(engine: TrainingEngine) -> dict[str, str]:
    """Return a fingerprint of each piece of an engine's state."""
    found = {group: digest(tensors) for group, tensors in engine._beside.items()}
    return {**found, "model": digest(engine.weights())}


def refusal(engine: TrainingEngine, directory: Path) -> str:
    """Return why a checkpoint is not read, having checked that nothing has changed."""
    before = digests(engine)
    with pytest.raises(CheckpointError) as caught:
        engine.load(directory)
    assert digests(engine) == before
    return str(caught.value)


@pytest.mark.parametrize("learning", [PLAIN, FULL])
def test_a_loaded_engine_goes_on_as_if_nothing_had_happened(
    tmp_path: Path, learning: LearningOptions
) -> None:
    """The next step equals the uninterrupted one to the bit, in every piece of its state.

    The engine that loads began with other weights and so another reference.
    """
    engine, other = (build_engine(tmp_path, learning, seed=seed) for seed in (5, 6))
    engine.fit(batch())
    engine.save(tmp_path / "checkpoint")
    other.load(tmp_path / "checkpoint")

    assert digests(other) == digests(engine)
    expected, found = engine.fit(batch())[1], other.fit(batch())[1]
    assert digests(other) == digests(engine)
    assert found == expected


def test_a_checkpoint_is_a_model_of_the_hugging_face_format(saved: Path) -> None:
    """With what training needs beside it, and no pickle."""
    assert sorted(path.name for path in saved.iterdir()) == [
        "config.json",
        "critic.safetensors",
        "critic_optimizer.safetensors",
        "generation_config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "reference.safetensors",
        "training_state.json",
    ]
    assert json.loads((saved / "training_state.json").read_text()) == {
        "format": 1,
        "steps": {"optimizer": 2, "critic_optimizer": 2},
    }
    assert build_small(ModelOptions(path=str(saved))).config.model_type == "qwen2"


def test_what_the_engine_does_not_have_stays_in_the_checkpoint(saved: Path, tmp_path: Path) -> None:
    """Training may go on without the critic and the reference."""
    engine = build_engine(tmp_path, PLAIN, seed=6)
    engine.load(saved)

    assert engine._optimizer.steps == 2


def test_a_checkpoint_is_never_written_over(saved: Path, tmp_path: Path) -> None:
    """Whoever wants another gives another name."""
    with pytest.raises(CheckpointError, match="is there already; choose a new name"):
        build_engine(tmp_path, PLAIN).save(saved)


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path: Path) -> None:
    """It never had its name, and the next attempt takes its place."""
    engine = build_engine(tmp_path, PLAIN)
    unfinished = tmp_path / "runs" / ".checkpoint.part"
    unfinished.mkdir(parents=True)
    (unfinished / "left.over").touch()
    engine.save(tmp_path / "runs" / "checkpoint")

    assert [path.name for path in unfinished.parent.iterdir()] == ["checkpoint"]
    assert not (tmp_path / "runs" / "checkpoint" / "left.over").exists()


def test_precision_is_kept(tmp_path: Path) -> None:
    """Weights and moments in bfloat16 come back as they were."""
    engine, other = (
        TrainingEngine(
            SMALL_MODEL,
            PLAIN,
            vocab_size=11,
            pad_token_id=0,
            seed=seed,
            device=torch.device("cpu"),
            scratch=tmp_path,
            dtype=torch.bfloat16,
        )
        for seed in (5, 6)
    )
    engine.fit(batch())
    engine.save(tmp_path / "checkpoint")
    other.load(tmp_path / "checkpoint")

    assert digests(other) == digests(engine)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ('{"format": 2, "steps": {}}', "has format 2; this version of swingshift reads format 1"),
        ('{"steps": {"optimizer": 1}}', "has format None; this version"),
        ("[1]", "has format None; this version"),
        ("{", "is no checkpoint: "),
    ],
)
def test_another_format_is_refused(copied: Path, tmp_path: Path, state: str, told: str) -> None:
    """With the number found and the number that can be read."""
    (copied / "training_state.json").write_text(state)

    assert told in refusal(build_engine(tmp_path, PLAIN), copied)


def test_a_directory_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    """Also one that is not there."""
    engine = build_engine(tmp_path, PLAIN)

    assert "is no checkpoint: " in refusal(engine, tmp_path)
    assert "missing is no checkpoint: " in refusal(engine, tmp_path / "missing")


@pytest.mark.parametrize("group", ["reference", "critic", "critic_optimizer"])
def test_what_the_engine_needs_must_be_there(copied: Path, tmp_path: Path, group: str) -> None:
    """A run with a critic does not go on from one without."""
    (copied / f"{group}.safetensors").unlink()

    told = refusal(build_engine(tmp_path, FULL), copied)
    assert f"{group}.safetensors is missing: the checkpoint has no {group}" in told


def test_another_model_is_refused(saved: Path, tmp_path: Path) -> None:
    """By the names and shapes of what differs; some of it is named."""
    wider = ModelOptions(config={**SMALL_MODEL.config, "intermediate_size": 32})
    deeper = ModelOptions(config={**SMALL_MODEL.config, "num_hidden_layers": 2})

    told = refusal(build_engine(tmp_path, PLAIN, model=wider), saved)
    assert "optimizer.safetensors is of another model: 6 tensors differ in name or shape" in told
    told = refusal(build_engine(tmp_path, PLAIN, model=deeper), saved)
    assert "optimizer.safetensors is of another model" in told


def test_a_model_that_does_not_go_with_its_optimizer_is_refused(
    copied: Path, tmp_path: Path
) -> None:
    """The model of a checkpoint is checked like the rest of it."""
    wider = ModelOptions(config={**SMALL_MODEL.config, "intermediate_size": 32})
    build_small(wider).save_pretrained(copied)

    told = refusal(build_engine(tmp_path, PLAIN), copied)
    assert "copied is of another model: 3 tensors differ" in told
    assert "model.layers.0.mlp.down_proj.weight" in told


def test_a_damaged_file_is_refused(copied: Path, tmp_path: Path) -> None:
    """It is named."""
    (copied / "optimizer.safetensors").write_bytes(b"\0" * 64)

    told = refusal(build_engine(tmp_path, PLAIN), copied)
    assert "optimizer.safetensors cannot be read: " in told


def test_a_checkpoint_without_its_model_is_refused(copied: Path, tmp_path: Path) -> None:
    """As any directory without a model is."""
    (copied / "model.safetensors").unlink()

    with pytest.raises(ConfigError, match="no causal language model can be loaded"):
        build_engine(tmp_path, PLAIN).load(copied)
