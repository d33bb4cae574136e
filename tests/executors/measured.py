"""A measured machine in round figures, for hand computation."""

from __future__ import annotations

from swingshift.executors.simulated.costs.lengths import LengthModel
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredCosts,
    MeasuredDecode,
    MeasuredEngine,
    MeasuredMemory,
    MeasuredPrefill,
    MeasuredSwitch,
    MeasuredSync,
    MeasuredTiming,
)
from swingshift.executors.simulated.costs.observed import ObservedPhase, ObservedSample
from swingshift.executors.simulated.options import SimulatedOptions

DECODE = MeasuredDecode(
    steps=(
        DecodePoint(running=1, step_s=0.1),
        DecodePoint(running=2, step_s=0.16),
        DecodePoint(running=6, step_s=0.2),
    )
)
ENGINE = MeasuredEngine(
    decode=DECODE,
    prefill=MeasuredPrefill(fixed_s=0.2, per_token_s=0.01),
    request_overhead_s=0.05,
)
HYBRID_ENGINE = MeasuredEngine(
    decode=MeasuredDecode(steps=(DecodePoint(running=1, step_s=1.0),)),
    prefill=MeasuredPrefill(fixed_s=2.0, per_token_s=0.0),
)
COSTS = MeasuredCosts(
    engine=ENGINE,
    hybrid_engine=HYBRID_ENGINE,
    fit_step={
        "old_log_prob": MeasuredTiming(per_token_s=0.01),
        "update_actor": MeasuredTiming(fixed_s=1.0, per_token_s=0.02, per_sequence_s=0.1),
    },
    sync=MeasuredSync(standalone_s=0.5, hybrid_s=0.7),
    switch=MeasuredSwitch(
        sleep_s=0.3,
        wake_weights_s=0.4,
        wake_kv_cache_s=0.6,
        offload_parameters_s=0.8,
        offload_optimizer_and_gradients_s=0.9,
        reload_parameters_s=1.1,
        reload_optimizer_and_gradients_s=1.2,
    ),
    memory=MeasuredMemory(
        device_bytes=100.0, parameters_bytes=10.0, optimizer_and_gradients_bytes=30.0
    ),
)
LENGTHS = LengthModel(
    observed=(
        ObservedPhase(samples=(ObservedSample(prompt_tokens=10, response_tokens=(5,)),)),
        ObservedPhase(
            start=2,
            samples=(
                ObservedSample(prompt_tokens=12, response_tokens=(7, 9)),
                ObservedSample(prompt_tokens=14, response_tokens=(3, 8)),
            ),
        ),
    )
)


def measured_options(costs: MeasuredCosts = COSTS) -> SimulatedOptions:
    """Return options of the measured machine and the observed lengths."""
    return SimulatedOptions(measured=costs, lengths=LENGTHS)
