"""The ``default`` policy: a threshold that follows the bottleneck, and a gate that counts costs."""

from __future__ import annotations

from typing import ClassVar

from swingshift.policies.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.registry import register_policy

RATIO_DECREASE = 0.02
"""Step of the ratio after a cycle without waits. Source: the specification, section 3.1."""

RATIO_INCREASE_MIN = 0.02
"""Least step of the ratio after a cycle with waits. Source: the specification, section 3.1."""

RATIO_INCREASE_MAX = 0.1
"""Largest step of the ratio after a cycle with waits. Source: the specification, section 3.1."""

SWITCH_COST_WINDOW = 3
"""Cycles whose overhead counts for the switch cost. Source: the specification, section 3.1."""

INITIAL_SWITCH_COST_S = 10.0
"""The switch cost before any was measured. Source: the specification, section 3.1."""

INITIAL_PER_SAMPLE_S = 1000.0
"""Seconds per sample before any was measured: so many that lending pays until something better is
known. Source: the specification, section 3.1.
"""


@register_policy("default")
class DefaultDynamicSchedulePolicy(FixedRatioDynamicSchedulePolicy):
    """Lend when the wall-clock time it saves exceeds what switching costs.

    The rules of `FixedRatioDynamicSchedulePolicy` apply, with two more. The gate: the samples
    missing below the threshold, times the seconds one took to generate without lending, must
    exceed the seconds of an activation and a deactivation. The adaptation: the ratio rises after
    a cycle in which a collection had to wait (rollout is the bottleneck, take GPUs back later) and
    falls after one in which none had (training is).

    Unlike the reference implementation the ratio has a floor, 0, besides its ceiling: without one
    a long calm winds it up so far below 0 that it takes as long to recover. And the estimates
    change in `update_after_step` alone, not while a question is answered.

    Without standalone replicas it lends always, waits for the full cycle and learns nothing.

    Source: the specification, section 3.1.
    """

    state_attributes: ClassVar[tuple[str, ...] | None] = (
        "deactivate_ratio",
        "per_sample_s",
        "switch_overheads_s",
    )

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        """Set where the ratio starts.

        Args:
            deactivate_ratio: Share of a cycle's samples to buffer before GPUs go back, 0 to 1, at
                the start of the run.
            only_hybrid: The run has no standalone replicas: always lend, for the full cycle.

        Raises:
            InvalidValueError: The ratio is not a number from 0 to 1, or the flag not a boolean.
        """
        super().__init__(deactivate_ratio, only_hybrid)
        self.per_sample_s = INITIAL_PER_SAMPLE_S
        self.switch_overheads_s: tuple[float, ...] = ()

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return whether samples are missing and waiting for them costs more than switching."""
        if self._is_colocated(ctx):
            return True
        gap = self._gap(ctx)
        return gap > 0 and gap * self._estimate_per_sample_s(ctx) > self._switch_cost_s()

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """Commit what the cycle showed about rates and costs, then move the ratio.

        Nothing is learned at version 0, when no cycle has run.
        """
        if global_steps <= 0 or self._is_colocated(ctx):
            return
        if self._gap(ctx) > 0:
            self.per_sample_s = self._estimate_per_sample_s(ctx)
        overhead_s = ctx.last_activate_duration_s + ctx.last_deactivate_duration_s
        if overhead_s > 0:
            overheads_s = (*self.switch_overheads_s, overhead_s)
            self.switch_overheads_s = overheads_s[-SWITCH_COST_WINDOW:]
        self.deactivate_ratio = self._next_ratio(ctx)

    def _estimate_per_sample_s(self, ctx: DynamicScheduleContext) -> float:
        """Return seconds per sample awaited in this cycle; as committed if none was."""
        waited_s = sum(ctx.step_wait_times)
        waited_samples = sum(ctx.step_wait_samples)
        if waited_s > 0 and waited_samples > 0:
            return waited_s / waited_samples
        return self.per_sample_s

    def _switch_cost_s(self) -> float:
        if not self.switch_overheads_s:
            return INITIAL_SWITCH_COST_S
        return sum(self.switch_overheads_s) / len(self.switch_overheads_s)

    def _next_ratio(self, ctx: DynamicScheduleContext) -> float:
        waited_samples = sum(ctx.step_wait_samples)
        if waited_samples == 0:
            return max(0.0, self.deactivate_ratio - RATIO_DECREASE)
        shortfall = waited_samples / ctx.step_required_samples
        step = min(RATIO_INCREASE_MAX, max(RATIO_INCREASE_MIN, shortfall))
        return min(1.0, self.deactivate_ratio + step)
