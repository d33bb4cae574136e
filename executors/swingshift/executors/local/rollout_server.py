"""One replica: a `Generator` that obeys messages between its decode steps.

Because messages are obeyed between steps, whatever one asks for is true in the engine itself when
its answer is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import cast

import cattrs
import numpy as np
import torch
from safetensors import safe_open

from swingshift.executors.local.channel import Message
from swingshift.executors.local.generator import Answer, Ask, Generator
from swingshift.executors.local.memory import give_back
from swingshift.executors.local.models import build_model, expect_context
from swingshift.executors.local.store import PayloadStore, Records, generated, observed
from swingshift.executors.local.weights import digest, without_ties
from swingshift.executors.local.worker import Mailbox, Refusal
from swingshift.executors.rl.options import ModelOptions
from swingshift.sdk.executor import MemoryPart, PauseMode

_REPORT_S = 0.2
_UNSYNCED = -1


class RolloutServer:
    """The engine of one replica; made awake, with weights of unknown age, or asleep."""

    def __init__(self, setting: Message, mailbox: Mailbox) -> None:
        """Build the model and answer that it is ready.

        Args:
            setting: ``store``, ``model``, ``vocab_size``, ``eos_token_id``, ``temperature``,
                ``max_running``, ``seed``, ``draws_seed``, ``ignore_eos``,
                ``context_tokens``, ``device`` and ``asleep``.
            mailbox: Takes the answers.
        """
        self._mailbox = mailbox
        self._store = PayloadStore(Path(str(setting["store"])))
        self._model = build_model(
            cattrs.structure(setting["model"], ModelOptions),
            vocab_size=cast("int", setting["vocab_size"]),
            seed=cast("int", setting["seed"]),
            device=torch.device(str(setting["device"])),
        )
        expect_context(self._model, cast("int", setting["context_tokens"]))
        self._generator = Generator(
            self._model,
            eos_token_id=cast("int", setting["eos_token_id"]),
            temperature=cast("float", setting["temperature"]),
            max_running=cast("int", setting["max_running"]),
            seed=cast("int", setting["draws_seed"]),
            ignore_eos=bool(setting["ignore_eos"]),
        )
        # found while they have memory: tied weights are told by it
        self._weights = without_ties(self._model.state_dict().items())
        self._sizes = [weight.untyped_storage().nbytes() for weight in self._weights.values()]
        self._awake = set(MemoryPart)
        self._is_paused = False
        self._drains: list[Message] = []
        self._asked: dict[int, tuple[Message, Records]] = {}
        self._reported: tuple[int, int] = (0, 0)
        self._reported_s = 0.0
        self._verbs: Mapping[str, Callable[[Message], None]] = {
            "generate": self._generate,
            "abort": self._abort,
            "drop": self._drop,
            "pause": self._pause,
            "resume": self._resume,
            "wake": self._wake,
            "sleep": self._sleep,
            "load": self._load,
            "look": self._look,
        }
        if setting["asleep"]:
            self._release()
        mailbox.progress = lambda: self._generator.progress
        mailbox.answer(setting, weight_bytes=sum(self._sizes))

    def handle(self, message: Message) -> None:
        """Obey one message."""
        obey = self._verbs.get(str(message["verb"]))
        if obey is None:
            raise Refusal(f"a replica does not know {message['verb']!r}")
        obey(message)

    def work(self) -> bool:
        """Make one decode step, unless paused; return whether there is another."""
        if not self._is_paused and self._generator.has_work:
            self._finish(self._generator.step(admits=not self._drains))
        if self._drains and not self._generator.progress.running:
            self._is_paused = True
            for message in self._drains:
                self._mailbox.answer(message)
            self._drains.clear()
        self._report()
        return self._generator.has_work and not self._is_paused

    def _generate(self, message: Message) -> None:
        if self._awake != set(MemoryPart):
            raise Refusal("not awake; wake weights and KV cache first")
        if self._generator.version == _UNSYNCED:
            raise Refusal("has had no weight sync since it was started")
        budget = cast("int", message["max_new_tokens"])
        if budget < 1:
            raise Refusal(f"a budget of {budget} new tokens; allowed: 1 or more")
        handle = message["resume_from"]
        before = self._store.read(str(handle)) if handle is not None else generated([], [])
        observation = cast("list[int]", message["observation"])
        if observation:
            before = np.concatenate([before, observed(observation)])
        prompt = cast("list[int]", message["prompt"])
        key = cast("int", message["id"])
        self._asked[key] = (message, before)
        context = (*prompt, *before["token"].tolist())
        self._generator.add(Ask(key=key, context=context, max_new_tokens=budget))

    def _finish(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            message, before = self._asked.pop(answer.key)
            handle = str(message["handle"])
            new = generated(answer.tokens, answer.log_probs)
            self._store.write(handle, np.concatenate([before, new]))
            self._mailbox.answer(
                message,
                new_tokens=len(answer.tokens),
                finish_reason=answer.finish_reason.value,
                spans=answer.spans,
            )

    def _abort(self, message: Message) -> None:
        self._finish(self._generator.abort(cast("list[int]", message["keys"])))
        self._mailbox.answer(message)

    def _drop(self, message: Message) -> None:
        """Let go of a request that nobody waits for any more, whether or not it has ended."""
        for answer in self._generator.abort([cast("int", message["key"])]):
            del self._asked[answer.key]
        self._store.discard([str(message["handle"])])
        self._mailbox.answer(message)

    def _resume(self, message: Message) -> None:
        self._give_up_drains()
        self._is_paused = False
        self._mailbox.answer(message)

    def _pause(self, message: Message) -> None:
        mode = PauseMode(str(message["mode"]))
        if mode is PauseMode.DRAIN:
            # ends in `work`, when no request runs; one that was held by KEEP runs to its end too
            self._is_paused = False
            self._drains.append(message)
            return
        self._give_up_drains()
        self._is_paused = True
        if mode is PauseMode.ABORT:
            self._finish(self._generator.abort())
        self._mailbox.answer(message)

    def _give_up_drains(self) -> None:
        """Forget what would pause the replica later: somebody wants something else of it now."""
        for message in self._drains:
            self._mailbox.refuse(message, "the drain was overtaken by another pause or a resume")
        self._drains.clear()

    def _wake(self, message: Message) -> None:
        part = MemoryPart(str(message["part"]))
        if part not in self._awake:
            self._allocate(part)
        self._mailbox.answer(message)

    def _allocate(self, part: MemoryPart) -> None:
        if part is MemoryPart.WEIGHTS:
            for tensor, size in zip(self._weights.values(), self._sizes, strict=True):
                tensor.untyped_storage().resize_(size)
        elif MemoryPart.WEIGHTS not in self._awake:
            raise Refusal("the KV cache wakes after the weights")
        self._awake.add(part)

    def _sleep(self, message: Message) -> None:
        self._release()
        self._mailbox.answer(message)

    def _release(self) -> None:
        self._is_paused = True
        self._finish(self._generator.abort())
        for tensor in self._weights.values():
            tensor.untyped_storage().resize_(0)
        self._awake.clear()
        self._generator.version = _UNSYNCED
        give_back()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def _load(self, message: Message) -> None:
        if MemoryPart.WEIGHTS not in self._awake:
            raise Refusal("weights cannot be loaded; wake them first")
        self._generator.drop_cache()
        weights = self._weights
        with safe_open(str(message["path"]), framework="pt") as sent:
            names = set(sent.keys())
            if names != weights.keys():
                differing = sorted(names ^ weights.keys())
                raise Refusal(f"the weights sent are of another model: {', '.join(differing[:3])}")
            # they are of no version until all of them are there
            self._generator.version = _UNSYNCED
            for name, tensor in weights.items():
                tensor.copy_(sent.get_tensor(name))
        self._generator.version = cast("int", message["version"])
        self._mailbox.answer(message)

    def _look(self, message: Message) -> None:
        """Tell what a check wants to see past the verbs."""
        progress = self._generator.progress
        version = self._generator.version
        has_weights = MemoryPart.WEIGHTS in self._awake
        self._mailbox.answer(
            message,
            in_flight=progress.running + progress.waiting,
            generated_tokens=self._generator.generated_tokens,
            version=None if version == _UNSYNCED else version,
            digest=digest(self._weights) if has_weights else None,
        )

    def _report(self) -> None:
        """Tell what is in flight when counts changed, and now and then while tokens grow."""
        running, waiting, _ = self._generator.progress
        now_s = time.monotonic()
        is_due = running > 0 and now_s - self._reported_s > _REPORT_S
        if (running, waiting) != self._reported or is_due:
            self._reported, self._reported_s = (running, waiting), now_s
            self._mailbox.report()
