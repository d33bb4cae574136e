"""Hypothesis strategies for what a policy sees: measurements, snapshots, regimes and histories.

Everything drawn could come from a run: a history's numbers fit together, its clock runs forward
and what was generated never shrinks. Failures shrink towards 16 samples x 4 collections, few
cycles, no waits and no telemetry.
"""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.testing.history import Cycle, History, Regime
from swingshift.sdk.testing.queue_model import Pace, Workload

LONGEST_REGIME = 60
"""Cycles of the longest regime drawn."""

# Built once: Hypothesis validates every new strategy, and a history draws dozens.
# What a policy may divide by or compare with is drawn by itself too: none, a cycle, one more.
_SAMPLES = st.just(0) | st.integers(0, 10_000)
_CYCLES_AND_SAMPLES = st.sampled_from(((0, 0), (1, 0), (1, 1))) | st.tuples(st.just(0), _SAMPLES)
_REPLICAS = st.just(0) | st.integers(0, 64)
_DURATIONS_S = st.just(0.0) | st.floats(0, 1e6)
_WAITS_S = st.floats(0.125, 4_096)
_SWITCHES_S = st.just(0.0) | _WAITS_S
_RATES = st.none() | st.just(0.0) | st.floats(0, 1e4)
_TOKENS = st.integers(0, 10**9)
_FIT_STEPS_S = st.lists(_DURATIONS_S, max_size=8).map(tuple)
_SYNCS_S = st.none() | _DURATIONS_S
_TIMES_S = st.floats(0, 1e8)
_VERSIONS = st.just(0) | st.integers(0, 10_000)
_THRESHOLDS = st.sampled_from((0.1, 0.0, 0.5, 1.0))


@st.composite
def telemetries(draw: st.DrawFn) -> Telemetry:
    """Draw measurements; a run that has just begun knows no rate yet."""
    serving_hybrids = draw(_REPLICAS)
    return Telemetry(
        queue_size=draw(_SAMPLES),
        samples_in_flight=draw(_SAMPLES),
        tokens_in_flight=draw(_TOKENS),
        standalone_samples_per_s=draw(_RATES),
        hybrid_samples_per_s=draw(_RATES),
        fit_step_s=draw(_FIT_STEPS_S),
        weight_sync_s=draw(_SYNCS_S),
        serving_standalone_replicas=draw(_REPLICAS),
        serving_hybrid_replicas=serving_hybrids,
        hybrid_replicas=serving_hybrids + draw(_REPLICAS),
        loop_time_s=draw(_TIMES_S),
    )


@st.composite
def contexts(draw: st.DrawFn) -> DynamicScheduleContext:
    """Draw any snapshot that a policy must be able to answer for, of any size of run."""
    required, steps = draw(_ANY_SIZES)
    version = draw(_VERSIONS)
    expected = required * steps * version
    collections = steps if version else 0
    waited = st.lists(_DURATIONS_S, min_size=collections, max_size=collections)
    samples = st.lists(st.integers(0, required), min_size=collections, max_size=collections)
    telemetry = draw(_MEASURED)
    queued = 0
    if telemetry is not None:
        queued = _samples(draw, required * steps)
        telemetry = attrs.evolve(telemetry, queue_size=queued)
    is_bounded = draw(st.booleans())
    return DynamicScheduleContext(
        required_samples=required,
        trigger_parameter_sync_step=steps,
        total_generated_samples=expected + _samples(draw, required * steps),
        expected_samples=expected,
        buffer_samples=int(expected * draw(_THRESHOLDS)),
        step_wait_times=tuple(draw(waited)),
        step_wait_samples=tuple(draw(samples)),
        only_hybrid=draw(st.booleans()),
        last_activate_duration_s=draw(_DURATIONS_S),
        last_deactivate_duration_s=draw(_DURATIONS_S),
        attainable_samples=queued + _samples(draw, required * steps) if is_bounded else None,
        telemetry=telemetry,
    )


@st.composite
def cycles(
    draw: st.DrawFn,
    step_required_samples: int = 64,
    *,
    waited_samples: st.SearchStrategy[int] | None = None,
    only_hybrid: st.SearchStrategy[bool] | None = None,
) -> Cycle:
    """Draw one kind of cycle.

    Args:
        draw: Filled in by Hypothesis.
        step_required_samples: Samples of a cycle.
        waited_samples: How many of them were waited for; by default none, all or any number.
        only_hybrid: Whether there is no standalone replica; by default either.
    """
    every = step_required_samples
    if waited_samples is None:
        waited_samples = st.just(0) | st.just(every) | st.integers(0, every)
    waited = draw(waited_samples)
    return Cycle(
        waited_samples=waited,
        waited_s=draw(_WAITS_S) if waited else 0.0,
        left_over=draw(st.just(0) | st.integers(0, every)),
        activate_s=draw(_SWITCHES_S),
        deactivate_s=draw(_SWITCHES_S),
        only_hybrid=draw(st.booleans() if only_hybrid is None else only_hybrid),
        telemetry=draw(_MEASURED),
    )


def regimes(step_required_samples: int = 64) -> st.SearchStrategy[Regime]:
    """Draw one kind of cycle, repeated 1 to `LONGEST_REGIME` times.

    Args:
        step_required_samples: Samples of a cycle.
    """
    return st.builds(
        Regime, times=st.integers(1, LONGEST_REGIME), cycle=cycles(step_required_samples)
    )


@st.composite
def histories(draw: st.DrawFn, *, max_regimes: int = 3) -> History:
    """Draw a run from its start-up on.

    Args:
        draw: Filled in by Hypothesis.
        max_regimes: Most regimes after the start-up; there may be none.
    """
    required, steps = draw(_SIZES)
    return History(
        required_samples=required,
        trigger_parameter_sync_step=steps,
        staleness_threshold=draw(_THRESHOLDS),
        regimes=tuple(draw(st.lists(regimes(required * steps), max_size=max_regimes))),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Draw a run of the queue model: its data may end at any sample."""
    required, steps = draw(_MODEL_SIZES)
    paces = st.builds(
        Pace, times=st.integers(1, LONGEST_REGIME), arrivals=st.integers(0, 2 * required)
    )
    return Workload(
        required_samples=required,
        trigger_parameter_sync_step=steps,
        staleness_threshold=draw(_THRESHOLDS),
        data_samples=draw(st.integers(1, 12 * required * steps)),
        concurrency=draw(st.integers(1, 8)),
        give_up_every=draw(st.sampled_from((0, 0, 5, 3, 2))),
        paces=tuple(draw(st.lists(paces, max_size=3))),
    )


def _samples(draw: st.DrawFn, cycle: int) -> int:
    """Draw a number of samples, often one that lies next to those of a cycle."""
    cycles_of_them, more = draw(_CYCLES_AND_SAMPLES)
    return cycles_of_them * cycle + more


def _sizes(
    required_samples: int, trigger_parameter_sync_step: int, most: tuple[int, int]
) -> st.SearchStrategy[tuple[int, int]]:
    usual = (required_samples, trigger_parameter_sync_step)
    return st.just(usual) | st.tuples(st.integers(1, most[0]), st.integers(1, most[1]))


_MEASURED = st.none() | telemetries()
_ANY_SIZES = _sizes(16, 4, (1024, 32))
_SIZES = _sizes(16, 4, (64, 8))
_MODEL_SIZES = _sizes(4, 2, (8, 4))
