"""Every metric by name: its unit, its meaning and how its values aggregate over a sync cycle.

Kinds of aggregation are declared here and never guessed from a name: a rule that looks for "min"
would take the minimum of ``ppo_mini_batch`` metrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import attrs

from swingshift.sdk.errors import UnknownNameError
from swingshift.sdk.validators import InvalidValueError, finite, to_float, tuple_of

_PERCENT = finite(ge=0.0, le=100.0)
_NUMBERS = tuple_of(finite())


class Aggregation(StrEnum):
    """How the values that a metric takes during a sync cycle become its one value for the cycle."""

    SUM = "sum"
    """Amounts of the fit steps add up."""
    MAX = "max"
    """The largest."""
    LAST = "last"
    """A reading that replaces the one before: a level, a running count, an index."""
    RATIO_OF_SUMS = "ratio_of_sums"
    """Numerators and denominators are summed and divided once; quotients alone do not suffice."""
    DERIVED = "derived"
    """Computed once from the cycle's other aggregates or pooled observations."""


@attrs.frozen(kw_only=True)
class MetricSpec:
    """What a metric means.

    Attributes:
        name: The name under which sinks see it.
        unit: The unit of its values; ``"ratio"`` for a share within 0..1.
        aggregation: How its values aggregate over a cycle.
        description: What it measures, and why it aggregates so where that is not plain.
    """

    name: str
    unit: str
    aggregation: Aggregation
    description: str


_Row = tuple[str, str, Aggregation, str]

_DYNAMIC_RESOURCE: tuple[_Row, ...] = (
    (
        "dynamic_resource/train_resource_utilization",
        "ratio",
        Aggregation.RATIO_OF_SUMS,
        "train_compute_time_s over train_allocated_time_s; a mean would let a short step weigh as "
        "much as a long one",
    ),
    (
        "dynamic_resource/train_compute_time_s",
        "s",
        Aggregation.SUM,
        "time the training GPUs computed",
    ),
    (
        "dynamic_resource/train_allocated_time_s",
        "s",
        Aggregation.SUM,
        "wall clock of the fit steps from the start of the collection, weight sync and activation "
        "included",
    ),
    (
        "dynamic_resource/rollout_resource_utilization",
        "ratio",
        Aggregation.RATIO_OF_SUMS,
        "sample-seconds in flight over sample-seconds of concurrency capacity; several windows of "
        "a cycle weigh by their capacity-time",
    ),
    (
        "dynamic_resource/resource_utilization",
        "ratio",
        Aggregation.DERIVED,
        "utilization of all GPUs, from the cycle's train and rollout utilization and its lent wait",
    ),
    (
        "dynamic_resource/mq_size",
        "samples",
        Aggregation.LAST,
        "samples left in the queue right after a fit step: a snapshot, so the latest stands for "
        "the cycle",
    ),
)

_FULLY_ASYNC: tuple[_Row, ...] = (
    (
        "fully_async/rollouter/active_time",
        "s",
        Aggregation.LAST,
        "time since the latest weight sync in which the staleness budget left room to submit and "
        "there was data left, validation apart; read once, when the version ends",
    ),
    (
        "fully_async/rollouter/version_time",
        "s",
        Aggregation.LAST,
        "time since the latest weight sync, validation apart; read once, when the version ends",
    ),
    (
        "fully_async/rollouter/idle_ratio",
        "ratio",
        Aggregation.LAST,
        "1 - active_time / version_time: the share in which the staleness budget, or the end of "
        "the data, kept the rollouter from submitting; the version's window is the whole cycle, so "
        "its one reading is final",
    ),
    (
        "fully_async/rollouter/step_generated_samples",
        "samples",
        Aggregation.LAST,
        "samples generated since the latest weight sync: a running count, so its last reading is "
        "the cycle's",
    ),
    (
        "fully_async/trainer/idle_ratio",
        "ratio",
        Aggregation.RATIO_OF_SUMS,
        "timing_s/gen over timing_s/step: time the trainer held its GPUs and waited for samples",
    ),
    (
        "fully_async/total_wait_time",
        "s",
        Aggregation.SUM,
        "time collections waited on the queue",
    ),
    (
        "fully_async/count/total_generated_samples",
        "samples",
        Aggregation.LAST,
        "samples put into the queue since training began: a running count",
    ),
    (
        "fully_async/count/staleness_samples",
        "samples",
        Aggregation.LAST,
        "samples counted against the staleness budget: a level",
    ),
    (
        "fully_async/count/stale_samples_processed",
        "samples",
        Aggregation.LAST,
        "samples of an older version trained since training began: a running count",
    ),
    (
        "fully_async/count/stale_trajectory_processed",
        "trajectories",
        Aggregation.LAST,
        "responses of an older version trained since training began: a running count",
    ),
    (
        "fully_async/count/current_param_version",
        "version",
        Aggregation.LAST,
        "parameter version: an index",
    ),
    (
        "fully_async/count/dropped_stale_samples",
        "samples",
        Aggregation.LAST,
        "samples dropped since training began: a running count, 0 because a full queue pushes back",
    ),
    (
        "fully_async/partial/total_partial_num",
        "trajectories",
        Aggregation.SUM,
        "trained responses whose tokens come from more than one version",
    ),
    (
        "fully_async/partial/partial_ratio",
        "ratio",
        Aggregation.RATIO_OF_SUMS,
        "total_partial_num over the responses trained",
    ),
    (
        "fully_async/partial/max_partial_span",
        "versions",
        Aggregation.MAX,
        "most versions between the first and the last token of a trained response",
    ),
    *(
        (
            f"fully_async/processing_time/{key}",
            "s",
            Aggregation.DERIVED,
            f"{words} time from the submission of a sample to its place in the queue, over all "
            "samples queued in the cycle together; left out when there were none",
        )
        for key, words in (
            ("avg", "mean"),
            ("max", "longest"),
            ("min", "shortest"),
            ("tp50", "percentile 50 of the"),
            ("tp95", "percentile 95 of the"),
            ("tp99", "percentile 99 of the"),
        )
    ),
)

_TIMING: tuple[_Row, ...] = tuple(
    (f"timing_s/{key}", "s", Aggregation.SUM, description)
    for key, description in (
        ("step", "a whole fit step, lent wait and deactivation included"),
        ("gen", "collecting the samples of a fit step"),
        ("wait_for_enough_samples", "waiting for samples while hybrid GPUs are lent to rollout"),
        ("param_sync", "weight sync"),
        ("reward", "scoring that a trainer hosts"),
        ("old_log_prob", "log-probabilities under the policy before the update"),
        ("ref", "log-probabilities under the reference policy"),
        ("values", "values from the critic"),
        ("adv", "advantages"),
        ("update_critic", "update of the critic"),
        ("update_actor", "update of the actor"),
    )
)

_GENERAL: tuple[_Row, ...] = (
    (
        "perf/throughput",
        "tokens/s/GPU",
        Aggregation.RATIO_OF_SUMS,
        "total_num_tokens over time_per_step x all GPUs of the inventory, rollout GPUs included",
    ),
    ("perf/total_num_tokens", "tokens", Aggregation.SUM, "tokens trained, prompts included"),
    (
        "perf/time_per_step",
        "s",
        Aggregation.SUM,
        "wall clock of the fit steps; a step on a dashboard is a cycle, hence the sum",
    ),
    ("training/global_step", "steps", Aggregation.LAST, "training step: an index"),
    ("training/epoch", "epochs", Aggregation.LAST, "pass over the data: an index"),
)

METRICS: Mapping[str, MetricSpec] = MappingProxyType(
    {
        name: MetricSpec(name=name, unit=unit, aggregation=aggregation, description=description)
        for name, unit, aggregation, description in (
            *_DYNAMIC_RESOURCE,
            *_FULLY_ASYNC,
            *_TIMING,
            *_GENERAL,
        )
    }
)
"""Every metric a run reports, by name."""


def _last(values: Sequence[float]) -> float:
    return values[-1]


_FROM_OWN_VALUES: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    Aggregation.SUM: math.fsum,
    Aggregation.MAX: max,
    Aggregation.LAST: _last,
}


def aggregate(name: str, values: Sequence[float]) -> float:
    """Return a metric's value for a cycle from the values it took during the cycle.

    Args:
        name: A key of `METRICS`.
        values: At least one, in time order, finite.

    Raises:
        UnknownNameError: If there is no such metric.
        InvalidValueError: If there are no values, one is not finite, or the metric's kind needs
            more than its own values (`Aggregation.RATIO_OF_SUMS`, `Aggregation.DERIVED`).
    """
    spec = METRICS.get(name)
    if spec is None:
        raise UnknownNameError("metric", name, METRICS)
    combine = _FROM_OWN_VALUES.get(spec.aggregation)
    if combine is None:
        raise InvalidValueError(
            "name",
            name,
            f"a metric that aggregates from its own values; this one is {spec.description}",
        )
    return combine(_numbers(name, values))


def percentile(values: Sequence[float], q: float) -> float:
    """Return a percentile with linear interpolation between neighbours, as numpy does by default.

    Args:
        values: At least one, in any order, finite.
        q: Within 0..100.

    Raises:
        InvalidValueError: If there are no values, one is not finite, or ``q`` is outside 0..100.

    Source: method 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996).
    """
    _PERCENT.check("q", q)
    ordered = sorted(_numbers("values", values))
    position = (len(ordered) - 1) * (q / 100.0)
    below = math.floor(position)
    low, high = ordered[below], ordered[math.ceil(position)]
    # Interpolating between equal neighbours must not leave them by rounding.
    return min(low + (high - low) * (position - below), high)


def _numbers(name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Return the values as finite floats, at least one."""
    numbers = tuple(map(to_float, values))
    _NUMBERS.check(name, numbers)
    if not numbers:
        raise InvalidValueError(name, values, "at least one number; without any, leave it out")
    return numbers
