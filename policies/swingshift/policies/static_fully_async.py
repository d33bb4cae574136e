"""The ``static_fully_async`` policy: never lend, the baseline without dynamic scheduling."""

from __future__ import annotations

from typing import ClassVar

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.registry import register_policy


@register_policy("static_fully_async")
class StaticFullyAsyncPolicy(DynamicSchedulePolicyBase):
    """Keep the trainer's GPUs in training: give them back at once and never lend them.

    A run without standalone replicas generates all the same: the guard lends at every sync and
    waits for the full cycle, which is classic colocated training.

    It learns nothing and rebalances nothing.

    Source: the specification, section 3.2.
    """

    state_attributes: ClassVar[tuple[str, ...] | None] = ()

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return ``True`` whenever hybrid replicas are active."""
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return 0: do not wait."""
        return 0

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        """Return ``False``: never lend."""
        return False
