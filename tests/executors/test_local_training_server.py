"""The process of a trainer, in this one: messages come in, and it obeys or refuses them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.executors.local_training import batch, build_engine, build_small
from tests.executors.training_ranks import (
    SCENARIOS,
    RecordingMailbox,
    training_setting,
    write_payloads,
)

from swingshift.executors.local.channel import Message
from swingshift.executors.local.training_server import TrainingServer
from swingshift.executors.local.weights import digest
from swingshift.executors.local.worker import Refusal
from swingshift.sdk.errors import UserError
from swingshift.sdk.executor import TrainingPart

SCENARIO = SCENARIOS["gradients"]


class Trainer:
    """A server and what it answers."""

    def __init__(self, directory: Path) -> None:
        self.mailbox = RecordingMailbox()
        self.server = TrainingServer(training_setting(directory, SCENARIO), self.mailbox)
        self.sequences = write_payloads(directory, batch())

    def ask(self, verb: str, **arguments: object) -> dict[str, object]:
        """Return the answer to a message."""
        message: Message = {"id": 1, "verb": verb, **arguments}
        self.server.handle(message)
        return self.mailbox.last

    def fit(self, batch_id: int = 0) -> dict[str, object]:
        """Return the answer to a fit step."""
        return self.ask("fit", batch_id=batch_id, sequences=self.sequences)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    """Return a server that is ready."""
    return Trainer(tmp_path)


def test_it_says_what_training_takes_when_it_is_ready(trainer: Trainer, tmp_path: Path) -> None:
    """Weights, moments and gradients."""
    engine = build_engine(tmp_path, SCENARIO.learning)

    state_bytes = sum(engine.state_bytes(part) for part in TrainingPart)
    assert trainer.mailbox.last == {"state_bytes": state_bytes}
    assert not trainer.server.work()


def test_it_trains_on_payloads_as_its_engine_does_on_sequences(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Tokens, log-probabilities and what is trained on come from shared memory."""
    engine = build_engine(tmp_path, SCENARIO.learning)
    timing_s, metrics = engine.fit(batch())
    answer = trainer.fit()

    assert answer["metrics"] == metrics
    assert answer["timing_s"].keys() == timing_s.keys()  # type: ignore[attr-defined]
    assert trainer.ask("look") == {"times_trained": {"0": 1}, "digest": digest(engine.weights())}


def test_a_batch_is_trained_once(trainer: Trainer) -> None:
    """Who asks again, having lost the answer, gets it again; its payloads may be gone."""
    answer = trainer.fit(7)
    seen = dict(trainer.ask("look"))
    trainer.sequences = []

    assert trainer.fit(7) == answer
    assert trainer.ask("look") == seen
    assert seen["times_trained"] == {"7": 1}


def test_weights_are_exported_under_their_name_when_they_are_whole(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Those that a replica reads."""
    path = tmp_path / "weights-1.safetensors"
    assert trainer.ask("export", path=str(path)) == {}

    assert digest(load_file(path)) == digest(build_small().state_dict())
    assert not path.with_suffix(".part").exists()


def test_what_is_offloaded_cannot_be_used_until_it_is_back(
    trainer: Trainer, tmp_path: Path
) -> None:
    """Refusals say what to do; looking is always allowed."""
    before = trainer.ask("look")["digest"]
    for part in TrainingPart:
        trainer.ask("offload", part=part.value)
    for verb, arguments in {
        "fit": {"batch_id": 0, "sequences": trainer.sequences},
        "export": {"path": str(tmp_path / "w")},
        "save": {"path": str(tmp_path / "c")},
    }.items():
        with pytest.raises(Refusal, match="offloaded; reload them first"):
            trainer.ask(verb, **arguments)  # type: ignore[arg-type]
    assert trainer.ask("look") == {"times_trained": {}, "digest": None}
    for part in TrainingPart:
        trainer.ask("reload", part=part.value)

    assert trainer.ask("look")["digest"] == before
    assert trainer.fit()["metrics"]


def test_it_saves_a_checkpoint_and_refuses_to_write_over_one(
    trainer: Trainer, tmp_path: Path
) -> None:
    """That an engine can go on from."""
    trainer.fit()
    trainer.ask("save", path=str(tmp_path / "checkpoint"))
    engine = build_engine(tmp_path, SCENARIO.learning, seed=9)
    engine.load(tmp_path / "checkpoint")

    assert trainer.ask("look")["digest"] == digest(engine.weights())
    with pytest.raises(UserError, match="is there already"):
        trainer.ask("save", path=str(tmp_path / "checkpoint"))


def test_a_verb_it_does_not_know_is_refused(trainer: Trainer) -> None:
    """By its name."""
    with pytest.raises(Refusal, match="a trainer does not know 'dance'"):
        trainer.ask("dance")


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("meta", "nccl")])
def test_ranks_meet_over_the_loopback_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, backend: str
) -> None:
    """Through a file; nothing listens to other machines."""
    asked: list[object] = []

    def init_process_group(name: str, **arguments: object) -> None:
        asked.append((name, arguments))
        raise InterruptedError

    monkeypatch.setattr(torch.distributed, "init_process_group", init_process_group)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "eth0")
    setting = training_setting(tmp_path, SCENARIO)
    with pytest.raises(InterruptedError):
        TrainingServer({**setting, "world": 3, "rank": 2, "device": device}, RecordingMailbox())

    met = {"init_method": f"file://{tmp_path}/rendezvous", "rank": 2, "world_size": 3}
    assert asked == [(backend, met)]
    assert os.environ["GLOO_SOCKET_IFNAME"] == os.environ["NCCL_SOCKET_IFNAME"] == "lo"
