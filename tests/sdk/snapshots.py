"""One valid snapshot and one policy that tests vary with ``attrs.evolve`` and subclasses."""

from __future__ import annotations

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.policy import DynamicSchedulePolicyBase

TELEMETRY = Telemetry(
    queue_size=10,
    samples_in_flight=20,
    tokens_in_flight=30_000,
    standalone_samples_per_s=0.5,
    hybrid_samples_per_s=None,
    fit_step_s=(40.0, 42.0),
    weight_sync_s=4.0,
    serving_standalone_replicas=2,
    serving_hybrid_replicas=0,
    hybrid_replicas=2,
    loop_time_s=1_000.0,
)

SNAPSHOT = DynamicScheduleContext(
    required_samples=16,
    trigger_parameter_sync_step=4,
    total_generated_samples=64,
    expected_samples=64,
    buffer_samples=32,
    step_wait_times=(20.0, 0.0, 0.0, 0.0),
    step_wait_samples=(10, 0, 0, 0),
    only_hybrid=False,
    last_activate_duration_s=6.0,
    last_deactivate_duration_s=4.0,
)


class PlainPolicy(DynamicSchedulePolicyBase):
    """Lends always and waits for half a cycle; has no ``__init__``."""

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return ctx.step_required_samples // 2

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return True
