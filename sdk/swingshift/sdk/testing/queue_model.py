"""A run reduced to its queue: samples arrive one at a time until the data ends.

No replica, no clock but a counter, nothing that fails: what is left is the question whether a
policy lets lent GPUs go when no more samples can come.
"""

from __future__ import annotations

from collections import deque

import attrs

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.validators import finite, instance_of, integer, tuple_of

_COUNT = integer(ge=0)
_POSITIVE = integer(ge=1)

_SAMPLE_S = 1.0
_FIT_STEP_S = 10.0
_SWITCH_S = 5.0
_RECENT_FIT_STEPS = 8


@attrs.frozen(kw_only=True)
class Pace:
    """How fast samples come, for some fit steps.

    Attributes:
        arrivals: Samples that arrive during a fit step.
        times: Fit steps it lasts, 1 or more.
    """

    arrivals: int = attrs.field(validator=_COUNT)
    times: int = attrs.field(validator=_POSITIVE)


@attrs.frozen(kw_only=True)
class Workload:
    """What a run of the model has to do.

    Attributes:
        required_samples: Samples of one collection.
        trigger_parameter_sync_step: Collections of one cycle.
        staleness_threshold: Share of a cycle that may be generated ahead.
        data_samples: Samples the data holds; it may end within a collection.
        concurrency: Most samples in flight.
        give_up_every: Of so many samples one is given up; 0 gives up none.
        paces: How fast samples come; the last pace lasts for ever.
    """

    required_samples: int = attrs.field(default=4, validator=_POSITIVE)
    trigger_parameter_sync_step: int = attrs.field(default=2, validator=_POSITIVE)
    staleness_threshold: float = attrs.field(default=0.0, validator=finite(ge=0))
    data_samples: int = attrs.field(validator=_POSITIVE)
    concurrency: int = attrs.field(default=4, validator=_POSITIVE)
    give_up_every: int = attrs.field(default=0, validator=_COUNT)
    paces: tuple[Pace, ...] = attrs.field(default=(), validator=tuple_of(instance_of(Pace)))

    def __str__(self) -> str:
        paces = ", then ".join(
            f"{pace.arrivals} samples arriving in each of {pace.times} fit steps"
            for pace in self.paces
        )
        given_up = f", one sample of {self.give_up_every} given up" if self.give_up_every else ""
        return (
            f"{self.required_samples} samples x {self.trigger_parameter_sync_step} collections per"
            f" cycle, data of {self.data_samples} samples, {self.concurrency} in flight,"
            f" {paces or 'none arriving in fit steps'}{given_up}"
        )

    @property
    def step_required_samples(self) -> int:
        """Samples of one cycle."""
        return self.required_samples * self.trigger_parameter_sync_step

    def arrivals(self, fit_step: int) -> int:
        """Return how many samples arrive during a fit step, counted from 0."""
        before = 0
        for pace in self.paces:
            before += pace.times
            if fit_step < before:
                return pace.arrivals
        return self.paces[-1].arrivals if self.paces else 0


class EndlessWaitError(Exception):
    """Nothing can happen any more, and the guard still waits."""


class QueueModel:
    """One run of a workload.

    Attributes:
        queued: Samples in the queue.
        fit_steps: Fit steps done.
    """

    def __init__(self, workload: Workload, guard: GuardedPolicy) -> None:
        """Begin a run.

        Args:
            workload: What to do.
            guard: The guard around a policy just built.
        """
        self._workload = workload
        self._guard = guard
        self.queued = 0
        self.fit_steps = 0
        self._now_s = 0.0
        self._version = 0
        self._put = 0
        self._submitted = 0
        self._in_flight = 0
        self._left_flight = 0
        self._full = int(workload.step_required_samples * (1 + workload.staleness_threshold))
        self._budget = self._full
        self._waits: list[tuple[float, int]] = []
        self._ended_waits: tuple[tuple[float, int], ...] = ()
        self._switches_s = [0.0, 0.0]
        self._recent_fit_steps_s: deque[float] = deque(maxlen=_RECENT_FIT_STEPS)

    @property
    def attainable(self) -> int:
        """The most samples the queue can still hold before the next sync."""
        submittable = min(self._workload.data_samples - self._submitted, self._budget)
        return self.queued + self._in_flight + submittable

    @property
    def data_ended(self) -> bool:
        """Whether every sample of the data was queued or given up."""
        return self._submitted == self._workload.data_samples and not self._in_flight

    def run(self) -> None:
        """Run until there is no full collection left.

        Raises:
            EndlessWaitError: Lent GPUs are waited for, and nothing can happen any more.
            PolicyError: The policy failed, and the guard is strict.
        """
        lent = self._sync()
        while True:
            for _ in range(self._workload.trigger_parameter_sync_step):
                self._reclaim(lent)
                lent = False
                if not self._collect():
                    return
                self._fit()
            self._version += 1
            lent = self._sync()

    def snapshot(self) -> DynamicScheduleContext:
        """Return what a policy may know now."""
        workload = self._workload
        expected = workload.step_required_samples * self._version
        activate_s, deactivate_s = self._switches_s
        return DynamicScheduleContext(
            required_samples=workload.required_samples,
            trigger_parameter_sync_step=workload.trigger_parameter_sync_step,
            total_generated_samples=self._put,
            expected_samples=expected,
            buffer_samples=int(expected * workload.staleness_threshold),
            step_wait_times=tuple(waited_s for waited_s, _ in self._ended_waits),
            step_wait_samples=tuple(samples for _, samples in self._ended_waits),
            only_hybrid=False,
            last_activate_duration_s=activate_s,
            last_deactivate_duration_s=deactivate_s,
            attainable_samples=self.attainable,
            telemetry=Telemetry(
                queue_size=self.queued,
                samples_in_flight=self._in_flight,
                tokens_in_flight=self._in_flight,
                standalone_samples_per_s=1 / _SAMPLE_S if self._put else None,
                hybrid_samples_per_s=None,
                fit_step_s=tuple(self._recent_fit_steps_s),
                weight_sync_s=None,
                serving_standalone_replicas=1,
                serving_hybrid_replicas=0,
                hybrid_replicas=1,
                loop_time_s=self._now_s,
            ),
        )

    def _sync(self) -> bool:
        self._ended_waits = tuple(self._waits)
        self._waits.clear()
        self._budget = max(0, self._full - self._in_flight - self.queued)
        self._submit()
        lent = self._guard.should_activate_after_step(
            self._version, False, self.snapshot(), has_ended=self.data_ended
        )
        if lent:
            self._now_s += _SWITCH_S
            self._switches_s[0] += _SWITCH_S
            self._guard.request_rebalance(self._version, self.snapshot())
        self._guard.update_after_step(self._version, self.snapshot())
        self._switches_s = [0.0, 0.0]
        return lent

    def _reclaim(self, lent: bool) -> None:
        reclaim = self._guard.before_fit_step(self._version, lent)
        while True:
            target = reclaim.evaluate(self.snapshot())
            if target is not None and self.queued >= target:
                break
            if not self._happens():
                raise EndlessWaitError
        if lent:
            self._now_s += _SWITCH_S
            self._switches_s[1] += _SWITCH_S

    def _collect(self) -> bool:
        required, began_s = self._workload.required_samples, self._now_s
        missing = max(0, required - self.queued)
        while self.queued < required:
            if not self._happens():
                return False
        self.queued -= required
        self._waits.append((self._now_s - began_s, missing))
        return True

    def _fit(self) -> None:
        for _ in range(self._workload.arrivals(self.fit_steps)):
            self._happens()
        self._now_s += _FIT_STEP_S
        self._recent_fit_steps_s.append(_FIT_STEP_S)
        self.fit_steps += 1

    def _happens(self) -> bool:
        """Let the next sample be queued or given up; return whether there was one."""
        if not self._in_flight:
            return False
        self._in_flight -= 1
        self._left_flight += 1
        self._now_s += _SAMPLE_S
        every = self._workload.give_up_every
        if every and self._left_flight % every == 0:
            self._budget += 1
        else:
            self.queued += 1
            self._put += 1
        self._submit()
        return True

    def _submit(self) -> None:
        workload = self._workload
        free = workload.concurrency - self._in_flight
        new = min(free, workload.data_samples - self._submitted, self._budget)
        self._submitted += new
        self._in_flight += new
        self._budget -= new
