"""The snapshots a policy decides from: what a run knows at one moment, frozen."""

from __future__ import annotations

import attrs

from swingshift.sdk.validators import (
    InvalidValueError,
    boolean,
    finite,
    instance_of,
    integer,
    optional,
    to_float,
    to_float_tuple,
    to_int_tuple,
    to_optional_float,
    tuple_of,
)

_COUNT = integer(ge=0)
_POSITIVE_COUNT = integer(ge=1)
_DURATION_S = finite(ge=0)
_RATE = finite(ge=0)


@attrs.frozen(kw_only=True)
class Telemetry:
    """What the run measures at the moment of a snapshot, beyond what the specification lists.

    Rates and seconds are ``None`` until the first measurement.

    Attributes:
        queue_size: Samples in the message queue.
        samples_in_flight: Samples submitted and not yet queued or given up.
        tokens_in_flight: Tokens generated so far for those samples.
        standalone_samples_per_s: Measured rate of all serving standalone replicas together.
        hybrid_samples_per_s: Measured rate of all serving hybrid replicas together.
        fit_step_s: Seconds of recent fit steps, the latest last.
        weight_sync_s: Seconds of the last weight sync to the standalone replicas.
        serving_standalone_replicas: Standalone replicas that accept requests.
        serving_hybrid_replicas: Hybrid replicas that accept requests.
        hybrid_replicas: Hybrid replicas that could be lent, serving or not.
        loop_time_s: The run's clock: seconds from an arbitrary start, virtual in a simulation.
    """

    queue_size: int = attrs.field(validator=_COUNT)
    samples_in_flight: int = attrs.field(validator=_COUNT)
    tokens_in_flight: int = attrs.field(validator=_COUNT)
    standalone_samples_per_s: float | None = attrs.field(
        converter=to_optional_float, validator=optional(_RATE)
    )
    hybrid_samples_per_s: float | None = attrs.field(
        converter=to_optional_float, validator=optional(_RATE)
    )
    fit_step_s: tuple[float, ...] = attrs.field(
        converter=to_float_tuple, validator=tuple_of(_DURATION_S)
    )
    weight_sync_s: float | None = attrs.field(
        converter=to_optional_float, validator=optional(_DURATION_S)
    )
    serving_standalone_replicas: int = attrs.field(validator=_COUNT)
    serving_hybrid_replicas: int = attrs.field(validator=_COUNT)
    hybrid_replicas: int = attrs.field(validator=_COUNT)
    loop_time_s: float = attrs.field(converter=to_float, validator=finite())


@attrs.frozen(kw_only=True)
class DynamicScheduleContext:
    """One snapshot of a run: everything a policy may base a decision on.

    The runtime takes one for every question it asks. ``global_steps``, which comes beside it, is
    the parameter version being synced, 0 at start-up.

    Attributes:
        required_samples: Samples of one collection: prompts of a mini-batch times
            ``require_batches``.
        trigger_parameter_sync_step: Collections from one weight sync to the next.
        total_generated_samples: Samples put into the queue since training began.
        expected_samples: `step_required_samples` times the cycles whose last fit step is done.
        buffer_samples: Samples allowed in stock: the integer part of ``expected_samples`` times
            ``staleness_threshold``.
        step_wait_times: Seconds waited by each collection of the cycle just ended.
        step_wait_samples: Samples each of those collections had to wait for because the queue
            did not hold them when it began; as long as ``step_wait_times``.
        only_hybrid: Whether there is no standalone replica at this moment.
        last_activate_duration_s: Seconds spent activating since the last ``update_after_step``.
        last_deactivate_duration_s: Seconds spent deactivating since the last
            ``update_after_step``.
        attainable_samples: The most the queue can still hold this cycle, counting its capacity,
            the staleness budget and the data that remains; ``None`` when unknown.
        telemetry: Measurements beyond the specification; ``None`` when unknown.

    Raises:
        InvalidValueError: A field has the wrong type, is not finite or is out of range, or the
            two parallel sequences differ in length.
    """

    required_samples: int = attrs.field(validator=_POSITIVE_COUNT)
    trigger_parameter_sync_step: int = attrs.field(validator=_POSITIVE_COUNT)
    total_generated_samples: int = attrs.field(validator=_COUNT)
    expected_samples: int = attrs.field(validator=_COUNT)
    buffer_samples: int = attrs.field(validator=_COUNT)
    step_wait_times: tuple[float, ...] = attrs.field(
        converter=to_float_tuple, validator=tuple_of(_DURATION_S)
    )
    step_wait_samples: tuple[int, ...] = attrs.field(
        converter=to_int_tuple, validator=tuple_of(_COUNT)
    )
    only_hybrid: bool = attrs.field(validator=boolean())
    last_activate_duration_s: float = attrs.field(converter=to_float, validator=_DURATION_S)
    last_deactivate_duration_s: float = attrs.field(converter=to_float, validator=_DURATION_S)
    attainable_samples: int | None = attrs.field(default=None, validator=optional(_COUNT))
    telemetry: Telemetry | None = attrs.field(
        default=None, validator=optional(instance_of(Telemetry))
    )

    def __attrs_post_init__(self) -> None:
        if len(self.step_wait_samples) != len(self.step_wait_times):
            raise InvalidValueError(
                "step_wait_samples",
                self.step_wait_samples,
                f"as long as step_wait_times, {len(self.step_wait_times)} entries",
            )

    @property
    def step_required_samples(self) -> int:
        """Samples of one cycle, from one weight sync to the next."""
        return self.required_samples * self.trigger_parameter_sync_step
