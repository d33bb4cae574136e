"""Histories of a run as a policy sees them: regimes, each one kind of cycle repeated.

Independent random cycles never stay on one side long enough to wind an adaptive policy up;
regimes do, and shrink to a number of cycles that a reader can count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.validators import boolean, finite, instance_of, integer, optional, tuple_of

_COUNT = integer(ge=0)
_DURATION_S = finite(ge=0)
_CYCLE_S = 100.0


@attrs.frozen(kw_only=True)
class Cycle:
    """What one cycle, from a weight sync to the next, leaves behind.

    Attributes:
        waited_samples: Samples its collections had to wait for, at most a full cycle's.
        waited_s: Seconds they waited together.
        left_over: Samples generated beyond what the cycles so far needed, at most a full cycle's.
        activate_s: Seconds spent activating.
        deactivate_s: Seconds spent deactivating.
        only_hybrid: Whether there is no standalone replica.
        telemetry: Measurements in the snapshots of this cycle, but for the queue, which holds
            what is left over, and the clock, which counts cycles. ``None`` leaves both optional
            fields of a snapshot unknown.
    """

    waited_samples: int = attrs.field(default=0, validator=_COUNT)
    waited_s: float = attrs.field(default=0.0, validator=_DURATION_S)
    left_over: int = attrs.field(default=0, validator=_COUNT)
    activate_s: float = attrs.field(default=0.0, validator=_DURATION_S)
    deactivate_s: float = attrs.field(default=0.0, validator=_DURATION_S)
    only_hybrid: bool = attrs.field(default=False, validator=boolean())
    telemetry: Telemetry | None = attrs.field(
        default=None, validator=optional(instance_of(Telemetry))
    )

    def __str__(self) -> str:
        waits = f"that waited {self.waited_s:g} s for {self.waited_samples} samples"
        switch_s = self.activate_s + self.deactivate_s
        more = [
            f"{self.left_over} left over" if self.left_over else "",
            f"{switch_s:g} s of switching" if switch_s else "",
            "no standalone replica" if self.only_hybrid else "",
            "with telemetry" if self.telemetry is not None else "",
        ]
        extras = ", ".join(filter(None, more))
        return (waits if self.waited_samples else "without waits") + (
            f" ({extras})" if extras else ""
        )


@attrs.frozen(kw_only=True)
class Regime:
    """One kind of cycle, repeated.

    Attributes:
        cycle: The kind.
        times: How often, 1 or more.
    """

    cycle: Cycle = attrs.field(validator=instance_of(Cycle))
    times: int = attrs.field(validator=integer(ge=1))

    def __str__(self) -> str:
        return f"{self.times} cycle{'s' if self.times > 1 else ''} {self.cycle}"


@attrs.frozen(kw_only=True)
class Moment:
    """One weight sync and the fit steps after it: when a policy is asked each of its questions.

    Attributes:
        version: The parameter version synced, 0 at start-up.
        at_sync: The snapshot of the sync.
        before_fit: The snapshot before the next fit step.
        is_hybrid_active: Whether hybrid replicas are lent when the sync begins.
    """

    version: int = attrs.field(validator=_COUNT)
    at_sync: DynamicScheduleContext
    before_fit: DynamicScheduleContext
    is_hybrid_active: bool = attrs.field(default=False, validator=boolean())


@attrs.frozen(kw_only=True)
class History:
    """A run from its start-up on.

    Attributes:
        required_samples: Samples of one collection.
        trigger_parameter_sync_step: Collections of one cycle.
        staleness_threshold: Share of the samples so far that may be in stock.
        regimes: What followed the start-up, in order.
    """

    required_samples: int = attrs.field(default=16, validator=integer(ge=1))
    trigger_parameter_sync_step: int = attrs.field(default=4, validator=integer(ge=1))
    staleness_threshold: float = attrs.field(default=0.1, validator=finite(ge=0))
    regimes: tuple[Regime, ...] = attrs.field(default=(), validator=tuple_of(instance_of(Regime)))

    def __str__(self) -> str:
        sizes = f"{self.required_samples} samples x {self.trigger_parameter_sync_step} collections"
        return ", then ".join([f"{sizes} per cycle: start-up", *self._words(self.cycles)])

    @property
    def step_required_samples(self) -> int:
        """Samples of one cycle."""
        return self.required_samples * self.trigger_parameter_sync_step

    @property
    def cycles(self) -> int:
        """Cycles after the start-up: also the last parameter version."""
        return sum(regime.times for regime in self.regimes)

    def moments(self) -> tuple[Moment, ...]:
        """Return the moments in which a policy is asked, the start-up first."""
        return tuple(self._moment(version, cycle) for version, cycle in self._versions())

    def place(self, version: int) -> str:
        """Return the way to a parameter version in words: ``"after 16 cycles without waits"``."""
        return f"after {', then '.join(self._words(version))}" if version > 0 else "at start-up"

    def snapshot(self, version: int, cycle: Cycle) -> DynamicScheduleContext:
        """Return the snapshot at the sync of a version that ends a cycle; version 0 ends none."""
        ended = cycle if version else Cycle(only_hybrid=cycle.only_hybrid)
        expected = self.step_required_samples * version
        waited_samples = self._spread(ended.waited_samples) if version else ()
        each_s = ended.waited_s / max(1, ended.waited_samples)
        telemetry = _telemetry(cycle, ended.left_over, _CYCLE_S * version)
        return DynamicScheduleContext(
            required_samples=self.required_samples,
            trigger_parameter_sync_step=self.trigger_parameter_sync_step,
            total_generated_samples=expected + ended.left_over,
            expected_samples=expected,
            buffer_samples=int(expected * self.staleness_threshold),
            step_wait_times=tuple(each_s * samples for samples in waited_samples),
            step_wait_samples=waited_samples,
            only_hybrid=ended.only_hybrid,
            last_activate_duration_s=ended.activate_s,
            last_deactivate_duration_s=ended.deactivate_s,
            attainable_samples=self._attainable(telemetry),
            telemetry=telemetry,
        )

    def _words(self, version: int) -> list[str]:
        """Return what led to a version, like cycles counted together."""
        cycles = [cycle for passed, cycle in self._versions() if 0 < passed <= version]
        return [
            str(Regime(cycle=cycle, times=len(list(like))))
            for cycle, like in itertools.groupby(cycles)
        ]

    def _versions(self) -> Iterator[tuple[int, Cycle]]:
        version = 0
        yield version, self.regimes[0].cycle if self.regimes else Cycle()
        for regime in self.regimes:
            for _ in range(regime.times):
                version += 1
                yield version, regime.cycle

    def _moment(self, version: int, cycle: Cycle) -> Moment:
        at_sync = self.snapshot(version, cycle)
        left_over = at_sync.total_generated_samples - at_sync.expected_samples
        before_fit = attrs.evolve(
            at_sync,
            last_activate_duration_s=0.0,
            last_deactivate_duration_s=0.0,
            telemetry=_telemetry(cycle, left_over, _CYCLE_S * (version + 0.5)),
        )
        return Moment(version=version, at_sync=at_sync, before_fit=before_fit)

    def _attainable(self, telemetry: Telemetry | None) -> int | None:
        if telemetry is None:
            return None
        coming = telemetry.queue_size + telemetry.samples_in_flight
        return max(self.step_required_samples, coming)

    def _spread(self, samples: int) -> tuple[int, ...]:
        """Return what each collection waited for when the queue was empty from the first one on."""
        each = self.required_samples
        return tuple(
            max(0, min(each, samples - each * index))
            for index in range(self.trigger_parameter_sync_step)
        )


def _telemetry(cycle: Cycle, queue_size: int, loop_time_s: float) -> Telemetry | None:
    if cycle.telemetry is None:
        return None
    return attrs.evolve(cycle.telemetry, queue_size=queue_size, loop_time_s=loop_time_s)
