"""Two ranks of a trainer, each a process of its own, over gloo on the loopback.

``python -m tests.executors.training_ranks DIRECTORY`` forks the second once everything is imported.
For each scenario, either rank writes its answer to the fit step to ``DIRECTORY/SCENARIO/RANK.json``
and its state below ``DIRECTORY/SCENARIO/RANK``; the first saves a checkpoint. In the last one, the
second rank ends before the step and the first writes what became of its own.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from math import nan
from pathlib import Path

import attrs
import numpy as np
import torch.distributed
from tests.executors.local_training import (
    PAD,
    SEED,
    SMALL_MODEL,
    VOCABULARY,
    batch,
    write_everything,
)

from swingshift.executors.local.channel import Message
from swingshift.executors.local.store import RECORD, PayloadStore
from swingshift.executors.local.training_server import TrainingServer
from swingshift.executors.local.worker import Mailbox
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.options import LearningOptions, ModelOptions

WORLD = 2
DEATH = "death"


@attrs.frozen
class Scenario:
    """One fit step."""

    learning: LearningOptions
    sequences: list[TrainingSequence]
    optimizer_steps: int = 1


# no clipping, so that the moments of a first step are its gradients
_PLAIN = LearningOptions(learning_rate=1e-2, max_grad_norm=1e6)
_FULL = attrs.evolve(_PLAIN, old_log_prob=True, kl_coefficient=0.1, critic=True)
_BROKEN = batch()[-1]._replace(log_probs=[nan] * 4)

SCENARIOS: Mapping[str, Scenario] = {
    "gradients": Scenario(_PLAIN, batch()),
    "steps": Scenario(attrs.evolve(_FULL, epochs=2, micro_batch_tokens=8), batch(), 2),
    "fewer sequences than ranks": Scenario(_FULL, batch()[:1]),
    "from a directory": Scenario(_PLAIN, batch()),
    "skipped": Scenario(_PLAIN, [*batch()[:-1], _BROKEN], 2),
}


class RecordingMailbox(Mailbox):
    """Keeps the last answer."""

    def __init__(self) -> None:
        self.last: dict[str, object] = {}

    def answer(self, message: Message, **result: object) -> None:
        self.last = result


def training_setting(directory: Path, scenario: Scenario) -> Message:
    """Return the setting of a trainer that is alone, of the model that lies in the directory."""
    path = directory / "model"
    model = ModelOptions(path=str(path)) if path.is_dir() else SMALL_MODEL
    return {
        "rank": 0,
        "world": 1,
        "rendezvous": str(directory / "rendezvous"),
        "store": str(directory),
        "scratch": str(directory / "offloaded"),
        "model": attrs.asdict(model),
        "learning": attrs.asdict(scenario.learning),
        "vocab_size": VOCABULARY,
        "pad_token_id": PAD,
        "seed": SEED,
        "device": "cpu",
        "dtype": "float32",
        "optimizer_steps": scenario.optimizer_steps,
    }


def write_payloads(directory: Path, sequences: list[TrainingSequence]) -> list[Message]:
    """Write the responses, as replicas do, and return what a fit message says of them."""
    store = PayloadStore(directory)
    told: list[Message] = []
    for index, item in enumerate(sequences):
        records = np.empty(len(item.response), dtype=RECORD)
        records["token"] = item.response
        records["log_prob"] = item.log_probs
        records["is_trainable"] = item.trainable
        store.write(str(index), records)
        told.append(
            {
                "prompt": list(item.prompt),
                "handle": str(index),
                "reward": item.reward,
                "group": item.group,
            }
        )
    return told


def fit(directory: Path, rank: int, scenario: Scenario, *, dies: bool = False) -> Message:
    """Be one rank: make the step, write the state, and return the answer."""
    mailbox = RecordingMailbox()
    setting = {**training_setting(directory, scenario), "rank": rank, "world": WORLD}
    server = TrainingServer(setting, mailbox)
    sequences = json.loads((directory / "sequences.json").read_text())
    if dies and rank == 1:
        os._exit(0)
    server.handle({"id": 1, "verb": "fit", "batch_id": 0, "sequences": sequences})
    answer = mailbox.last
    write_everything(server._engine, directory / f"{rank}")
    if rank == 0:
        server.handle({"id": 2, "verb": "save", "path": str(directory / "checkpoint")})
    torch.distributed.destroy_process_group()
    return answer


def main(directory: Path) -> None:
    """Be both ranks."""
    second = os.fork()
    rank = 1 if second == 0 else 0
    status = 1
    try:
        for name, scenario in SCENARIOS.items():
            answer = fit(directory / name, rank, scenario)
            (directory / name / f"{rank}.json").write_text(json.dumps(answer))
        try:
            fit(directory / DEATH, rank, SCENARIOS["gradients"], dies=True)
        except RuntimeError as error:
            (directory / DEATH / f"{rank}.txt").write_text(str(error))
        status = 0
    finally:
        if rank == 1:
            os._exit(status)
    _, ended = os.waitpid(second, 0)
    sys.exit(os.waitstatus_to_exitcode(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
