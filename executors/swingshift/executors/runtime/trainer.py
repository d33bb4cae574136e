"""The fit loop: collect, fit, sync, ask the policy.

It is one task, strictly in order, so that training, weight sync and switches never overlap on the
trainer's GPUs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping

import attrs

from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import Deadlines, UnexpectedDeadlineError
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.message_queue import MessageQueue, WaitOutcome
from swingshift.executors.runtime.observation import CycleObservations
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.rollouter import Rollouter
from swingshift.executors.runtime.switching import RECOVERABLE
from swingshift.executors.runtime.validation import Validation
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.events import Advisory, BatchCollected, BatchTrained, FitStepEnded
from swingshift.sdk.executor import Executor, FitBatch, Sample

# Lending for one collection: each time may end with the loss of every replica.
_MID_CYCLE_LENDS = 3


class RunFailedError(SwingshiftError):
    """The run cannot go on; the message says why."""


@attrs.define
class _Collection:
    samples: tuple[Sample, ...]
    wait_s: float


class Trainer:
    """Drives cycles until the data is exhausted."""

    def __init__(
        self,
        executor: Executor,
        controller: DynamicResourceController,
        rollouter: Rollouter,
        queue: MessageQueue,
        fleet: Fleet,
        observations: CycleObservations,
        recorder: Recorder,
        deadlines: Deadlines,
        config: RunConfig,
        validation: Validation,
        *,
        after_cycle: Callable[[str], None],
        take_dropped: Callable[[], list[str]],
    ) -> None:
        """Bind the parts of one run.

        ``after_cycle`` hears once a cycle is done, ``take_dropped`` returns handles of payloads
        that nobody will ask for.
        """
        self._validation = validation
        self._after_cycle = after_cycle
        self._take_dropped = take_dropped
        self._executor = executor
        self._controller = controller
        self._rollouter = rollouter
        self._queue = queue
        self._fleet = fleet
        self._observations = observations
        self._recorder = recorder
        self._deadlines = deadlines
        self._config = config
        self._version = 0
        self._global_step = 0
        self._trained = 0
        self._metrics_told: set[str] = set()

    @property
    def version(self) -> int:
        """Parameter version of the last weight sync."""
        return self._version

    @property
    def global_step(self) -> int:
        """Fit steps done."""
        return self._global_step

    @property
    def trained_samples(self) -> int:
        """Samples trained so far."""
        return self._trained

    async def run(self) -> None:
        """Train until there is no full batch left.

        Raises:
            RunFailedError: Production failed, a wait met its deadline or no replica is left.
            MemoryWithheldError: GPU memory did not come back to training.
        """
        await self._sync(0)
        self._controller.end_cycle(0)
        while await self._cycle():
            pass

    async def _cycle(self) -> bool:
        steps = self._config.async_training.trigger_parameter_sync_step
        for micro_step in range(steps):
            if not await self._micro_step(is_last=micro_step == steps - 1):
                return False
        self._observations.cycle_ended(self._version)
        self._controller.end_cycle(self._version)
        self._after_cycle("sync")
        await self._validation.after_sync(self._version)
        return True

    async def _micro_step(self, *, is_last: bool) -> bool:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        lent = await self._controller.before_fit_step(self._version)
        allocated_since_s = loop.time()
        collection = await self._collect()
        if collection is None:
            return False
        timing_s = await self._fit(collection.samples)
        timing_s["gen"] = collection.wait_s
        timing_s["wait_for_enough_samples"] = lent.wait_s
        if is_last:
            timing_s["param_sync"] = await self._sync(self._version + 1)
        ended_s = loop.time()
        timing_s["step"] = ended_s - begun_s
        self._recorder.emit(
            FitStepEnded(self._global_step, timing_s, ended_s - allocated_since_s, len(self._queue))
        )
        return True

    async def _collect(self) -> _Collection | None:
        """Return the next batch, or None when the data is exhausted below one."""
        required = self._config.required_samples
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        waited_samples = max(0, required - len(self._queue))
        if not await self._are_available(required):
            return None
        samples = self._queue.take(required)
        wait_s = loop.time() - begun_s
        self._recorder.emit(
            BatchCollected(
                self._global_step, tuple(s.sample_id for s in samples), wait_s, waited_samples
            )
        )
        self._observations.collected(wait_s, waited_samples)
        return _Collection(samples, wait_s)

    async def _are_available(self, required: int) -> bool:
        """Return True once so many samples are buffered, False when the data ended below.

        One deadline holds for all of it, whatever is lent in between.
        """
        until_s = asyncio.get_running_loop().time() + self._config.runtime.wait_deadline_s
        for lends in range(_MID_CYCLE_LENDS + 1):
            self._rollouter.grow_budget_for(required)
            reached = await self._wait_for(required, until_s)
            if reached is not None:
                return reached
            if lends < _MID_CYCLE_LENDS:
                await self._lend_mid_cycle(required, until_s)
        raise RunFailedError(f"no replica serves, after lending {_MID_CYCLE_LENDS} times")

    def _is_stranded(self) -> bool:
        return not self._fleet.serving() and not self._fleet.has_prospects

    async def _wait_for(self, required: int, until_s: float) -> bool | None:
        """Return whether so many samples came before the data ended; None if nobody makes any."""
        left_s = until_s - asyncio.get_running_loop().time()
        outcome = await self._queue.wait_for(required, left_s, unless=self._is_stranded)
        if outcome is WaitOutcome.FAILED:
            if self._queue.failure is None:
                return None
            if isinstance(self._queue.error, UnexpectedDeadlineError):
                raise self._queue.error
            raise RunFailedError(self._queue.failure) from self._queue.error
        if outcome is WaitOutcome.DEADLINE:
            deadline_s = self._config.runtime.wait_deadline_s
            raise RunFailedError(
                str(self._deadlines.expired(f"the wait for {required} samples", deadline_s))
            )
        return outcome is WaitOutcome.REACHED

    async def _lend_mid_cycle(self, required: int, until_s: float) -> None:
        """Keep a run alive that has no serving replica left and too few samples to go on."""
        if not self._controller.can_lend or not await self._controller.activate(self._version):
            raise RunFailedError("no replica serves and none can be lent")
        await self._wait_for(min(required, self._rollouter.attainable), until_s)
        await self._controller.deactivate()

    async def _fit(self, samples: tuple[Sample, ...]) -> dict[str, float]:
        batch = FitBatch(batch_id=self._global_step, samples=samples)
        fit_s = self._config.runtime.fit_deadline_s
        async with self._controller.training(), self._deadlines.call("fit step", fit_s):
            result = await self._executor.fit_step(batch)
        self._trained += len(samples)
        self._global_step += 1
        metrics = self._finite(result.metrics)
        self._recorder.emit(self._trained_event(batch, result.timing_s, metrics))
        self._observations.fitted(sum(result.timing_s.values()))
        await self._discard(batch)
        return dict(result.timing_s)

    def _finite(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics that every sink can write; tell of each other name once per run."""
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        for name in sorted(metrics.keys() - finite.keys() - self._metrics_told):
            self._metrics_told.add(name)
            self._recorder.emit(
                Advisory(
                    f"metric {name} is {metrics[name]} at fit step {self._global_step}; "
                    "values of it that are not finite are left out"
                )
            )
        return finite

    async def _discard(self, batch: FitBatch) -> None:
        """Free what was trained, and what was given up since the last time."""
        handles = [episode.handle for sample in batch.samples for episode in sample.episodes]
        handles += self._take_dropped()
        try:
            async with self._deadlines.call("discard", self._config.runtime.switch_step_deadline_s):
                await self._executor.discard(handles)
        except RECOVERABLE as error:
            text = f"payloads of batch {batch.batch_id} were not freed: {error}"
            self._recorder.emit(Advisory(text))

    async def _sync(self, version: int) -> float:
        if version > 0:
            self._observations.last_fit_step_done()
        synced_s = await self._controller.at_weight_sync(version)
        self._version = version
        self._observations.synced(synced_s)
        self._rollouter.reset_staleness(version)
        return synced_s

    def _trained_event(
        self, batch: FitBatch, timing_s: Mapping[str, float], metrics: Mapping[str, float]
    ) -> BatchTrained:
        samples = batch.samples
        episodes = [episode for sample in samples for episode in sample.episodes]
        return BatchTrained(
            batch.batch_id,
            self._version,
            dict(timing_s),
            metrics,
            sum(sample.first_version < self._version for sample in samples),
            sum(episode.spans[0].version < self._version for episode in episodes),
            sum(len(episode.spans) > 1 for episode in episodes),
            max(episode.spans[-1].version - episode.spans[0].version for episode in episodes),
            len(episodes),
            sum(sample.total_tokens for sample in samples),
        )
