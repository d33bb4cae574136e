"""Streams prompts into samples, as many at a time as the replicas and the staleness budget allow.

There is no loop to run: whatever may make room (a sample queued or given up, a weight sync, a
replica more) calls `pump`, and `pump` submits what fits. The budget works as the specification
says: after a weight sync ``staleness_samples`` is what is active or queued; each submission adds
one; it never exceeds ``max_required_samples``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swingshift.executors.rl.task import EpisodeRequest, EpisodeRunner, Task
from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.client import RequestFailedError
from swingshift.executors.runtime.gathering import gather_or_cancel
from swingshift.executors.runtime.message_queue import MessageQueue
from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.events import (
    CapacityChanged,
    DataExhausted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
)
from swingshift.sdk.executor import Episode, Sample
from swingshift.sdk.metrics import concurrency_capacity

LEAST_GIVE_UPS_IN_A_ROW = 32
"""Samples that may at least be given up one after the other before the run has failed.

A whole staleness budget without one success, and no fewer than these, is no bad luck of single
samples.
"""


class Rollouter:
    """Owns every active sample from submission until it is queued or given up."""

    def __init__(
        self,
        task: Task,
        run_episode: EpisodeRunner,
        drop_episode: Callable[[Episode], None],
        queue: MessageQueue,
        recorder: Recorder,
        changes: Changes,
        *,
        responses_per_prompt: int,
        concurrent_samples_per_replica: int,
        max_required_samples: int,
        total_samples: int,
    ) -> None:
        """Bind the parts; nothing is submitted before the first `reset_staleness`.

        Args:
            task: Prompts, episodes, scores.
            run_episode: Runs one episode of the task.
            drop_episode: Gets the finished episodes of a sample that is given up.
            queue: Takes finished samples.
            recorder: Hears of every sample.
            changes: Notified whenever `active` or `attainable` changed.
            responses_per_prompt: Episodes per sample.
            concurrent_samples_per_replica: Active samples per serving replica.
            max_required_samples: Staleness budget between two syncs, and the most that may be
                active.
            total_samples: Prompts to submit in all; at most ``len(task)``.
        """
        self._changes = changes
        # asked once: get_running_loop costs a system call on Python 3.11
        self._loop = asyncio.get_running_loop()
        self._task = task
        self._run_episode = run_episode
        self._drop_episode = drop_episode
        self._queue = queue
        self._recorder = recorder
        self._responses = responses_per_prompt
        self._per_replica = concurrent_samples_per_replica
        self._max_required = max_required_samples
        self._total = total_samples
        self._next = 0
        self._given_up = 0
        self._given_up_in_a_row = 0
        self._budget = max_required_samples
        self._staleness_samples = 0
        self._capacity = 0
        self._version = 0
        self._held = True
        self._is_over = False
        self._active: dict[int, asyncio.Task[None]] = {}

    @property
    def active(self) -> int:
        """Samples submitted and neither queued nor given up."""
        return len(self._active)

    @property
    def submitted(self) -> int:
        """Samples submitted since training began; also the position in the data."""
        return self._next

    @property
    def in_flight(self) -> tuple[int, ...]:
        """The samples that are active, in the order they were submitted."""
        return tuple(self._active)

    @property
    def given_up(self) -> int:
        """Samples given up since training began."""
        return self._given_up

    @property
    def staleness_samples(self) -> int:
        """Samples counted against the staleness budget since the last sync."""
        return self._staleness_samples

    @property
    def attainable(self) -> int:
        """The most samples the queue can still hold at once before the next sync."""
        submittable = min(self._total - self._next, max(0, self._budget - self._staleness_samples))
        return min(self._queue.capacity, len(self._queue) + len(self._active) + submittable)

    @property
    def upcoming(self) -> int:
        """Samples that `reset_staleness` would submit at this moment."""
        if self._held or self._is_over:
            return 0
        active = len(self._active)
        budget = self._max_required - active - len(self._queue)
        return max(0, min(budget, self._capacity - active, self._total - self._next))

    def set_servers(self, servers: int) -> None:
        """Set the concurrency cap from the number of serving replicas.

        Active samples above it go on.
        """
        capacity = concurrency_capacity(servers, self._per_replica, self._max_required)
        if capacity != self._capacity:
            self._capacity = capacity
            self._recorder.emit(CapacityChanged(servers, capacity))
            self._changes.notify()
        self.pump()

    def reset_staleness(self, version: int) -> None:
        """Begin the window of a new parameter version; called once after each weight sync."""
        self._version = version
        self._budget = self._max_required
        self._staleness_samples = len(self._active) + len(self._queue)
        self._recorder.emit(
            StalenessReset(version, self._staleness_samples, len(self._active), len(self._queue))
        )
        self.pump()

    def grow_budget_for(self, required: int) -> None:
        """Allow more submissions before the next sync where a collection could never fill.

        Args:
            required: Samples of the collection.
        """
        deficit = required - self.attainable
        if deficit > 0 and self._next < self._total:
            self._budget += deficit
            self.pump()

    def hold(self) -> None:
        """Submit nothing until `resume_submission`; active samples go on."""
        self._held = True

    def resume_submission(self) -> None:
        """Submit again after `hold` or `drain`; idempotent."""
        self._held = False
        self.pump()

    async def drain(self) -> None:
        """Submit nothing until `resume_submission` and return when no sample is active.

        The caller owns the deadline.
        """
        self.hold()
        while self._active:
            await self._changes.wait()

    def pump(self) -> None:
        """Submit as many samples as fit right now; cheap when none does, nothing after the end."""
        if self._is_over:
            return
        while (
            not self._held
            and self._next < self._total
            and len(self._active) < self._capacity
            and self._staleness_samples < self._budget
        ):
            self._submit()
        if self._next >= self._total and not self._active and not self._queue.ended:
            self._queue.end()

    async def stop(self) -> None:
        """Cancel every active sample and wait for their ends; nothing is submitted afterwards."""
        self._is_over = True
        tasks = list(self._active.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._active.clear()

    def _submit(self) -> None:
        index = self._next
        self._next += 1
        self._staleness_samples += 1
        produce = self._produce(index)
        self._active[index] = self._loop.create_task(produce, name=f"sample {index}")
        self._recorder.emit(
            SampleSubmitted(index, self._version, len(self._active), self._staleness_samples)
        )
        if self._next >= self._total:
            self._recorder.emit(DataExhausted(self._total))

    async def _produce(self, index: int) -> None:
        started_s = self._loop.time()
        try:
            sample = await self._generate(index)
            await self._queue.put(sample)
        except RequestFailedError as error:
            self._give_up(index, str(error))
        except asyncio.CancelledError as error:
            if not self._is_over:
                # by what an episode awaited, not by `stop`: nobody else would notice
                self._fail(index, "cancelled", error)
            raise
        except Exception as error:  # whatever a task's own code raises ends the run, with its cause
            self._fail(index, f"{type(error).__name__}: {error}", error)
        else:
            del self._active[index]
            self._given_up_in_a_row = 0
            self._changes.notify()
            self._recorder.emit(self._queued(sample, started_s))
        self.pump()

    def _give_up(self, index: int, reason: str) -> None:
        del self._active[index]
        self._given_up += 1
        self._given_up_in_a_row += 1
        self._staleness_samples -= 1
        self._recorder.emit(SampleGivenUp(index, len(self._active), reason))
        self._changes.notify()
        bound = max(self._max_required, LEAST_GIVE_UPS_IN_A_ROW)
        if self._given_up_in_a_row >= bound and not self._is_over:
            self._is_over = True
            row = f"{self._given_up_in_a_row} samples in a row were given up"
            self._queue.fail(f"rollout failed: {row}; last: {reason}")

    def _fail(self, index: int, reason: str, error: BaseException) -> None:
        self._is_over = True
        self._give_up(index, reason)
        self._queue.fail(f"rollout failed: sample {index}: {reason}", error)

    async def _generate(self, index: int) -> Sample:
        prompt = self._task.prompt(index)
        finished = await gather_or_cancel(
            self._loop,
            [
                self._run_episode(self._task, EpisodeRequest(f"{index}/{i}", prompt, i))
                for i in range(self._responses)
            ],
            on_orphan=self._drop_episode,
        )
        rewards = await self._task.score(prompt, finished)
        return Sample(sample_id=index, prompt=prompt, episodes=tuple(finished), rewards=rewards)

    def _queued(self, sample: Sample, started_s: float) -> SampleQueued:
        episodes = sample.episodes
        return SampleQueued(
            sample.sample_id,
            len(self._active),
            len(self._queue),
            self._loop.time() - started_s,
            sample.prompt.tokens,
            sample.generated_tokens,
            max(episode.tokens for episode in episodes),
            sample.first_version,
            sample.last_version,
            sum(1 for episode in episodes if episode.is_interrupted),
        )
