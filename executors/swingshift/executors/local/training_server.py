"""One trainer device: a `TrainingEngine` that obeys messages, one after the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import cattrs
import torch
import torch.distributed
from safetensors.torch import save_file

from swingshift.executors.local.channel import Message
from swingshift.executors.local.store import PayloadStore
from swingshift.executors.local.training import OffloadedError, TrainingEngine
from swingshift.executors.local.weights import digest
from swingshift.executors.local.worker import Mailbox, Refusal
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.executor import TrainingPart


class TrainingServer:
    """One rank of the trainer; made with everything on its device."""

    def __init__(self, setting: Message, mailbox: Mailbox) -> None:
        """Build model and optimizer and answer that they are ready.

        Args:
            setting: ``rank``, ``world``, ``rendezvous``, ``store``, ``scratch``, ``model``,
                ``learning``, ``vocab_size``, ``pad_token_id``, ``seed``, ``device`` and
                ``optimizer_steps``.
            mailbox: Takes the answers.
        """
        self._mailbox = mailbox
        self._store = PayloadStore(Path(str(setting["store"])))
        self._rank = cast("int", setting["rank"])
        world = cast("int", setting["world"])
        device = torch.device(str(setting["device"]))
        if world > 1:
            # ranks of one machine: nothing listens beyond it
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
            os.environ["NCCL_SOCKET_IFNAME"] = "lo"
            torch.distributed.init_process_group(
                "gloo" if device.type == "cpu" else "nccl",
                init_method=f"file://{setting['rendezvous']}",
                rank=self._rank,
                world_size=world,
            )
        self._engine = TrainingEngine(
            cattrs.structure(setting["model"], ModelOptions),
            cattrs.structure(setting["learning"], LearningOptions),
            vocab_size=cast("int", setting["vocab_size"]),
            pad_token_id=cast("int", setting["pad_token_id"]),
            seed=cast("int", setting["seed"]),
            device=device,
            rank=self._rank,
            world=world,
            optimizer_steps=cast("int", setting["optimizer_steps"]),
            scratch=Path(str(setting["scratch"])),
        )
        # batch id -> its answer
        self._fitted: dict[int, dict[str, object]] = {}
        self._times_trained: dict[str, int] = {}
        mailbox.answer(
            setting, state_bytes=sum(self._engine.state_bytes(part) for part in TrainingPart)
        )

    def handle(self, message: Message) -> None:
        """Obey one message and answer it."""
        try:
            self._mailbox.answer(message, **self._obey(message))
        except OffloadedError as error:
            raise Refusal(str(error)) from error

    def work(self) -> bool:
        """Do nothing: a trainer works when it is told to."""
        return False

    def _obey(self, message: Message) -> dict[str, object]:
        """Obey one message and return the answer to it."""
        match message["verb"]:
            case "fit":
                return self._fit(message)
            case "export":
                self._export(Path(str(message["path"])))
            case "offload":
                self._engine.offload(TrainingPart(str(message["part"])))
            case "reload":
                self._engine.reload(TrainingPart(str(message["part"])))
            case "save":
                self._engine.save(Path(str(message["path"])))
            case "look":
                return self._look()
            case verb:
                raise Refusal(f"a trainer does not know {verb!r}")
        return {}

    def _fit(self, message: Message) -> dict[str, object]:
        batch_id = cast("int", message["batch_id"])
        known = self._fitted.get(batch_id)
        if known is not None:
            return known
        sequences = [self._sequence(item) for item in cast("list[Message]", message["sequences"])]
        timing_s, metrics = self._engine.fit(sequences)
        self._times_trained[str(batch_id)] = self._times_trained.get(str(batch_id), 0) + 1
        self._fitted[batch_id] = {"timing_s": timing_s, "metrics": metrics}
        return self._fitted[batch_id]

    def _sequence(self, item: Message) -> TrainingSequence:
        payload = self._store.read(str(item["handle"]))
        return TrainingSequence(
            prompt=cast("list[int]", item["prompt"]),
            response=payload["token"].tolist(),
            log_probs=payload["log_prob"].tolist(),
            trainable=payload["is_trainable"].tolist(),
            reward=cast("float", item["reward"]),
            group=cast("int", item["group"]),
        )

    def _export(self, path: Path) -> None:
        unfinished = path.with_suffix(".part")
        weights = {name: weight.contiguous() for name, weight in self._engine.weights().items()}
        save_file(weights, unfinished)
        unfinished.rename(path)

    def _look(self) -> dict[str, object]:
        """Tell what a check wants to see past the verbs."""
        try:
            seen = digest(self._engine.weights())
        except OffloadedError:
            seen = None
        return {"times_trained": self._times_trained, "digest": seen}
