"""The ``fixed_ratio`` policy: lend while samples are short, with a threshold that never moves."""

from __future__ import annotations

from typing import ClassVar

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance, RebalanceScope
from swingshift.sdk.registry import register_policy
from swingshift.sdk.validators import boolean, finite


@register_policy("fixed_ratio")
class FixedRatioDynamicSchedulePolicy(DynamicSchedulePolicyBase):
    """Lend whenever fewer samples are left over than the threshold, and wait for the threshold.

    The threshold is ``deactivate_ratio`` times the samples of a cycle. It is the baseline that
    shows what the adaptation and the cost gate of ``default`` are worth.

    It learns nothing, so its state is empty: a resumed run takes the ratio from its configuration.

    Source: the specification, section 3.3.
    """

    state_attributes: ClassVar[tuple[str, ...] | None] = ()

    def __init__(self, deactivate_ratio: float = 0.3, only_hybrid: bool = False) -> None:
        """Set the threshold.

        Args:
            deactivate_ratio: Share of a cycle's samples to buffer before GPUs go back, 0 to 1.
            only_hybrid: The run has no standalone replicas: always lend, for the full cycle.

        Raises:
            InvalidValueError: The ratio is not a number from 0 to 1, or the flag not a boolean.
        """
        finite(ge=0, le=1).check("deactivate_ratio", deactivate_ratio)
        boolean().check("only_hybrid", only_hybrid)
        self.deactivate_ratio = float(deactivate_ratio)
        self.only_hybrid = only_hybrid

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return ``True`` whenever hybrid replicas are active."""
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return the threshold, rounded down."""
        return int(self._threshold(ctx))

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return whether fewer samples are left over than the threshold."""
        return self._gap(ctx) > 0

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        """Route every request anew, so that the replicas just activated get their share."""
        return Rebalance(RebalanceScope.ALL)

    def _is_colocated(self, ctx: DynamicScheduleContext) -> bool:
        return self.only_hybrid or ctx.only_hybrid

    def _threshold(self, ctx: DynamicScheduleContext) -> float:
        ratio = 1.0 if self._is_colocated(ctx) else self.deactivate_ratio
        return ratio * ctx.step_required_samples

    def _gap(self, ctx: DynamicScheduleContext) -> float:
        """Return how many samples the stock is short of the threshold; negative when it is over."""
        return self._threshold(ctx) - (ctx.total_generated_samples - ctx.expected_samples)
