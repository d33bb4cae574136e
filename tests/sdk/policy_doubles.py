"""Policies that break the contract, each in one way, and one that keeps it."""

from __future__ import annotations

import datetime as dt
import random
import sys
import time
from collections.abc import Mapping
from time import perf_counter
from typing import ClassVar

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.policy import DynamicSchedulePolicyBase


class SpecificationExample(DynamicSchedulePolicyBase):
    """What the specification's section 6 shows an author: sound, and the base of what is not."""

    def __init__(self, deactivate_ratio: float = 0.5, only_hybrid: bool = False) -> None:
        self.deactivate_ratio = deactivate_ratio
        self.only_hybrid = only_hybrid

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(ctx.required_samples * ctx.trigger_parameter_sync_step * self.deactivate_ratio)

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return ctx.total_generated_samples < ctx.expected_samples + ctx.buffer_samples

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass


class Lends(SpecificationExample):
    """Lends always."""

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return True


class RaisesOnZeroSamples(SpecificationExample):
    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return sum(ctx.step_wait_times) / sum(ctx.step_wait_samples) > 1.0


class AnswersOne(SpecificationExample):
    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return 1  # type: ignore[return-value]


class WaitsForAFloat(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples * 2.0  # type: ignore[return-value]


class DividesByWhatIsAttainable(SpecificationExample):
    """Forgets that nothing may be left to come."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        cycle = ctx.step_required_samples
        if ctx.attainable_samples is None:
            return 0
        return min(cycle, cycle * cycle // ctx.attainable_samples)


class DividesByARate(SpecificationExample):
    """Forgets that lent GPUs may have finished nothing."""

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        rate = None if ctx.telemetry is None else ctx.telemetry.hybrid_samples_per_s
        return rate is None or 1 / rate > 3.0


class CountsHalfMinutes(SpecificationExample):
    """Forgets that a fit step may take less than one; only the queue model has such fit steps."""

    def __init__(self) -> None:
        super().__init__()
        self.synced_s = 0.0

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        if ctx.telemetry is None or ctx.telemetry.loop_time_s <= self.synced_s:
            return is_hybrid_active
        half_minutes = int((ctx.telemetry.loop_time_s - self.synced_s) / 30)
        return ctx.telemetry.queue_size / half_minutes >= 0 and is_hybrid_active

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        if ctx.telemetry is not None:
            self.synced_s = ctx.telemetry.loop_time_s


class EndsTheProgram(SpecificationExample):
    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        sys.exit(0)


class LearnsInAQuestion(SpecificationExample):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        self.asked += 1
        return super().deactivate_wait_samples(ctx)


class Alternates(SpecificationExample):
    """Answers otherwise when asked again; its state does not show it."""

    state_attributes: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self) -> None:
        super().__init__()
        self.odd = False

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        self.odd = not self.odd
        return self.odd

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.odd = False


class ReadsAClock(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(time.monotonic()) % 2


class ReadsAClockByName(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(perf_counter()) % 2


class ReadsAClockByNumber(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(time.clock_gettime(time.CLOCK_MONOTONIC)) % 2


class ReadsAClockAsText(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return int(time.strftime("%S")) % 2


class ReadsTheCalendar(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples if dt.datetime.now(dt.UTC).hour < 12 else 0


class TossesACoin(SpecificationExample):
    """Draws from the global generator, in the right place but without a seed of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = False

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.heads

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.heads = random.random() < 0.5


class LearnsForItsWholeClass(SpecificationExample):
    """Begins anew with each policy built, and shares what it learns with those that live."""

    learned: ClassVar[dict[str, float]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.learned.clear()

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return len(self.learned) % 3 == 0

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.learned[str(len(self.learned))] = 1.0

    def state_dict(self) -> dict[str, object]:
        return dict(self.learned)

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        self.learned.update(dict.fromkeys(state, 1.0))


class WaitsTooLong(SpecificationExample):
    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples + 1


class WaitsForWhatIsMissing(SpecificationExample):
    """Forgets that more than a cycle may be left over."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        left_over = ctx.total_generated_samples - ctx.expected_samples
        return max(-1, ctx.step_required_samples - left_over)


class WaitsForTheQueue(SpecificationExample):
    """Forgets that the queue may hold more than a cycle."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return 0 if ctx.telemetry is None else ctx.telemetry.queue_size


class DeactivatesAlways(SpecificationExample):
    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return True


class ForgetsOnRestart(SpecificationExample):
    """Learns and saves nothing."""

    state_attributes: ClassVar[tuple[str, ...] | None] = ()

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.deactivate_ratio = 0.25


class SharesItsState(SpecificationExample):
    """Hands its own list out instead of a copy."""

    def __init__(self) -> None:
        super().__init__()
        self.learned: list[int] = []

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.learned.append(global_steps)

    def state_dict(self) -> dict[str, object]:
        return {"learned": self.learned}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        learned = state["learned"]
        assert isinstance(learned, list)
        self.learned = list(learned)


class CannotBeSaved(SpecificationExample):
    """Keeps a seeded generator, which is fine, and does not say how to save it, which is not."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(7)


class CannotBeLoaded(SpecificationExample):
    def load_state_dict(self, state: Mapping[str, object]) -> None:
        raise KeyError("deactivate_ratio")


class RaisesOnceRestored(SpecificationExample):
    """Loads what it did not save."""

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        del self.deactivate_ratio


class UnboundedRatio(Lends):
    """The reference's adaptation without a floor; its answer is clamped, its ratio is not."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return max(0, super().deactivate_wait_samples(ctx))

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        waited = sum(ctx.step_wait_samples)
        if global_steps == 0:
            return
        if waited:
            step = min(0.1, max(0.02, waited / ctx.step_required_samples))
            self.deactivate_ratio = min(1.0, self.deactivate_ratio + step)
        else:
            self.deactivate_ratio -= 0.02


class UnboundedWait(UnboundedRatio):
    """The same, not even clamped, and with the reference's initial ratio."""

    def __init__(self) -> None:
        super().__init__(0.3)

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return SpecificationExample.deactivate_wait_samples(self, ctx)


class NeverComesBack(SpecificationExample):
    """Loops from the third version on."""

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        while ctx.expected_samples >= 3 * ctx.step_required_samples:
            pass
        return super().deactivate_wait_samples(ctx)


class SaysFalseForEver(Lends):
    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return False


class WaitsForHalfACycle(Lends):
    """Says "not yet" for a good reason, and forgets that the data may end."""

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        queued = 0 if ctx.telemetry is None else ctx.telemetry.queue_size
        return is_hybrid_active and queued >= self.enough(ctx)

    def enough(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples // 2


class WaitsForWhatComes(WaitsForHalfACycle):
    """The same, told how much there still can be: sound."""

    def enough(self, ctx: DynamicScheduleContext) -> int:
        half = super().enough(ctx)
        return half if ctx.attainable_samples is None else min(half, ctx.attainable_samples)


BROKEN: dict[type[DynamicSchedulePolicyBase], set[str]] = {
    RaisesOnZeroSamples: {"total"},
    AnswersOne: {"total"},
    WaitsForAFloat: {"total"},
    DividesByWhatIsAttainable: {"total"},
    DividesByARate: {"total"},
    CountsHalfMinutes: {"total"},
    EndsTheProgram: {"total"},
    LearnsInAQuestion: {"pure_questions"},
    Alternates: {"pure_questions"},
    ReadsAClock: {"deterministic_replay"},
    ReadsAClockByName: {"deterministic_replay"},
    ReadsAClockByNumber: {"deterministic_replay"},
    ReadsAClockAsText: {"deterministic_replay"},
    ReadsTheCalendar: {"deterministic_replay"},
    TossesACoin: {"deterministic_replay"},
    LearnsForItsWholeClass: {"deterministic_replay"},
    WaitsTooLong: {"bounded_wait"},
    WaitsForWhatIsMissing: {"bounded_wait"},
    WaitsForTheQueue: {"bounded_wait"},
    DeactivatesAlways: {"deactivates_only_active"},
    ForgetsOnRestart: {"state_round_trip"},
    SharesItsState: {"state_round_trip"},
    CannotBeSaved: {"state_round_trip"},
    CannotBeLoaded: {"state_round_trip"},
    RaisesOnceRestored: {"state_round_trip"},
    UnboundedRatio: {"no_wind_up"},
    SaysFalseForEver: {"liveness"},
    WaitsForHalfACycle: {"liveness"},
    UnboundedWait: {"bounded_wait", "no_wind_up"},
}
"""Every broken policy with the laws it breaks."""
