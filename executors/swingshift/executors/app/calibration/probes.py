"""What a real executor takes for each verb, measured through the verbs alone.

Nothing here knows which executor it is; whatever keeps the contract can be measured.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import attrs

from swingshift.executors.rl.task import Task
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError
from swingshift.sdk.executor import (
    Episode,
    Executor,
    FitBatch,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    ReplicaKind,
    Sample,
    TrainingPart,
)

_REPEATS = 3
_FINISHED_TOKENS = 2


@attrs.frozen(kw_only=True)
class DecodeProbe:
    """Requests that began together and, as near as can be, ended together.

    Attributes:
        running: How many.
        prompt_tokens: Tokens of all their prompts together.
        new_tokens: Tokens that each of them got.
        seconds: From the first request to the last answer.
    """

    running: int
    prompt_tokens: int
    new_tokens: int
    seconds: float


@attrs.frozen(kw_only=True)
class FitProbe:
    """One fit step.

    Attributes:
        tokens: Tokens trained on, prompts included.
        sequences: Responses.
        timing_s: Seconds by timing key, as the executor reports them.
        seconds: Seconds of the whole verb.
    """

    tokens: int
    sequences: int
    timing_s: Mapping[str, float]
    seconds: float


@attrs.frozen(kw_only=True)
class Probes:
    """Everything that was measured.

    Attributes:
        decode: On a standalone replica.
        hybrid_decode: On a hybrid one.
        fit: Fit steps of several sizes.
        seconds: Seconds of every other verb by name, the median of several.
        free_bytes: Free memory of a trainer device: with all of the training state there, without
            optimizer and gradients, without anything.
    """

    decode: tuple[DecodeProbe, ...]
    hybrid_decode: tuple[DecodeProbe, ...]
    fit: tuple[FitProbe, ...]
    seconds: Mapping[str, float]
    free_bytes: tuple[int, int, int]


class Prober:
    """Measures one executor, from `Executor.start` to `Executor.stop`."""

    def __init__(
        self,
        executor: Executor,
        task: Task,
        config: RunConfig,
        tell: Callable[[str], None],
    ) -> None:
        """Bind the parts.

        Args:
            executor: Not started.
            task: Gives prompts.
            config: Sizes of batches and budgets.
            tell: Hears what is measured next.
        """
        self._executor = executor
        self._task = task
        self._config = config
        self._tell = tell
        self._seconds: dict[str, list[float]] = {}
        self._names = itertools.count()
        self._batches = itertools.count()
        self._version = -1

    async def measure(self) -> Probes:
        """Start the executor, measure it and stop it.

        Raises:
            UserError: It has no standalone or no hybrid replica.
        """
        try:
            self._tell("start")
            inventory = await self._executor.start()
            standalone = _first(inventory, ReplicaKind.STANDALONE)
            hybrid = _first(inventory, ReplicaKind.HYBRID)
            await self._sync(standalone, "sync_standalone")
            await self._executor.resume([standalone])
            self._tell("decode")
            decode = await self._decode(standalone)
            self._tell("fit steps")
            fit = await self._fit(standalone)
            for _ in range(_REPEATS):
                await self._sync(standalone, "sync_standalone")
            self._tell("switches")
            free_bytes = await self._switch(standalone, hybrid)
            for _ in range(_REPEATS - 1):
                await self._switch(standalone, hybrid)
            self._tell("decode on the trainer's device")
            await self._lend(standalone, hybrid)
            hybrid_decode = await self._decode(hybrid)
            return Probes(
                decode=decode,
                hybrid_decode=hybrid_decode,
                fit=fit,
                seconds={name: statistics.median(seen) for name, seen in self._seconds.items()},
                free_bytes=free_bytes,
            )
        finally:
            await self._executor.stop()

    async def _decode(self, replica: str) -> tuple[DecodeProbe, ...]:
        most = self._config.actor_rollout_ref.rollout.max_num_seqs
        budget = self._config.data.max_response_length
        lengths = sorted({1, max(1, budget // 4), max(1, budget // 2), budget})
        levels = [running for running in (2**power for power in range(16)) if running < most]
        # warms up what is made at the first request
        await self._ask(replica, 1, min(budget, _FINISHED_TOKENS))
        return tuple(
            [
                await self._quickest(replica, running, tokens)
                for running in (*levels, most)
                for tokens in lengths
            ]
        )

    async def _quickest(self, replica: str, running: int, tokens: int) -> DecodeProbe:
        """Return the quickest of several: what else the machine does only adds."""
        probes = []
        for _ in range(_REPEATS):
            began_s = asyncio.get_running_loop().time()
            prompt_tokens, answers = await self._ask(replica, running, tokens)
            elapsed_s = asyncio.get_running_loop().time() - began_s
            await self._executor.discard([answer.handle for answer in answers])
            given = statistics.fmean(answer.new_tokens for answer in answers)
            probes.append(
                DecodeProbe(
                    running=running,
                    prompt_tokens=prompt_tokens,
                    new_tokens=round(given),
                    seconds=elapsed_s,
                )
            )
        return min(probes, key=lambda probe: probe.seconds)

    async def _ask(self, replica: str, count: int, tokens: int) -> tuple[int, Sequence[Generation]]:
        prompts = [self._task.prompt(number % len(self._task)) for number in range(count)]
        answers = await asyncio.gather(
            *(
                self._executor.generate(
                    replica,
                    GenerationRequest(f"probe/{next(self._names)}", prompt, 0, tokens),
                )
                for prompt in prompts
            )
        )
        return sum(prompt.tokens for prompt in prompts), answers

    async def _fit(self, replica: str) -> tuple[FitProbe, ...]:
        samples, budget = self._config.required_samples, self._config.data.max_response_length
        sizes = [
            (samples, budget),
            (samples, max(1, budget // 4)),
            (max(1, samples // 2), budget),
            (max(1, samples // 2), max(1, budget // 4)),
        ]
        probes = []
        for count, tokens in sizes * 2:
            batch = await self._batch(replica, count, tokens)
            began_s = asyncio.get_running_loop().time()
            result = await self._executor.fit_step(batch)
            probes.append(
                FitProbe(
                    tokens=sum(sample.total_tokens for sample in batch.samples),
                    sequences=sum(len(sample.episodes) for sample in batch.samples),
                    timing_s=result.timing_s,
                    seconds=asyncio.get_running_loop().time() - began_s,
                )
            )
            await self._executor.discard(
                [episode.handle for sample in batch.samples for episode in sample.episodes]
            )
        # the first of each size pays for what is made at first use
        return tuple(probes[len(sizes) :])

    async def _batch(self, replica: str, count: int, tokens: int) -> FitBatch:
        responses = self._config.actor_rollout_ref.rollout.n
        samples = []
        for number in range(count):
            prompt = self._task.prompt(number % len(self._task))
            answers = await asyncio.gather(
                *(
                    self._executor.generate(
                        replica,
                        GenerationRequest(f"probe/{next(self._names)}", prompt, index, tokens),
                    )
                    for index in range(responses)
                )
            )
            samples.append(
                Sample(
                    sample_id=number,
                    prompt=prompt,
                    episodes=tuple(map(_episode, answers)),
                    # alternate, so that there is something to learn
                    rewards=tuple(float(index % 2) for index in range(responses)),
                )
            )
        return FitBatch(batch_id=next(self._batches), samples=tuple(samples))

    async def _switch(self, standalone: str, hybrid: str) -> tuple[int, int, int]:
        """Lend and take back once; return the free bytes at the three stages of an offload."""
        executor = self._executor
        free = [await self._free(hybrid)]
        for part in (TrainingPart.OPTIMIZER_AND_GRADIENTS, TrainingPart.PARAMETERS):
            await executor.offload_training(part)
            free.append(await self._free(hybrid))
        for part in TrainingPart:
            await executor.reload_training(part)
        await self._lend(standalone, hybrid)
        await executor.pause([hybrid], PauseMode.ABORT)
        await self._timed("sleep", lambda: executor.sleep([hybrid]))
        for part in (TrainingPart.PARAMETERS, TrainingPart.OPTIMIZER_AND_GRADIENTS):
            await self._timed(f"reload_{part.value}", partial(executor.reload_training, part))
        return free[0], free[1], free[2]

    async def _lend(self, standalone: str, hybrid: str) -> None:
        executor = self._executor
        # as in a run: whatever a version costs once, the standalone replicas' sync has paid
        await self._sync(standalone, "sync_standalone")
        first, second = TrainingPart.OPTIMIZER_AND_GRADIENTS, TrainingPart.PARAMETERS
        await self._timed(f"offload_{first.value}", lambda: executor.offload_training(first))
        await self._timed("wake_weights", lambda: executor.wake([hybrid], MemoryPart.WEIGHTS))
        await self._timed("sync_hybrid", partial(executor.sync_weights, self._version, [hybrid]))
        await self._timed(f"offload_{second.value}", lambda: executor.offload_training(second))
        await self._timed("wake_kv_cache", lambda: executor.wake([hybrid], MemoryPart.KV_CACHE))
        await executor.resume([hybrid])

    async def _free(self, hybrid: str) -> int:
        # a replica that sleeps may be put to sleep again: this measures and changes nothing
        return min((await self._executor.sleep([hybrid])).values())

    async def _sync(self, replica: str, name: str) -> None:
        self._version += 1
        await self._timed(name, partial(self._executor.sync_weights, self._version, [replica]))

    async def _timed(self, name: str, verb: Callable[[], Awaitable[object]]) -> None:
        began_s = asyncio.get_running_loop().time()
        await verb()
        elapsed_s = asyncio.get_running_loop().time() - began_s
        self._seconds.setdefault(name, []).append(elapsed_s)


def _first(inventory: Inventory, kind: ReplicaKind) -> str:
    replicas = inventory.of_kind(kind)
    if not replicas:
        raise UserError(
            f"a calibration needs a {kind.value} replica and the configuration has none; give it "
            "rollout.nnodes of at least 1 and async_training.use_dynamic_resource_scheduling=true"
        )
    return replicas[0].id


def _episode(answer: Generation) -> Episode:
    return Episode(handle=answer.handle, tokens=answer.new_tokens, spans=answer.spans, attempts=1)
