"""Train and cluster utilization, and the idle ratio: formulas over one sync cycle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from swingshift.sdk.validators import finite, integer, to_float

_NUMBER = finite()
_AMOUNT = finite(ge=0.0)
_SHARE = finite(ge=0.0, le=1.0)
_COUNT = integer(ge=0)

TRAIN_COMPUTE_KEYS: tuple[str, ...] = (
    "reward",
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
)
"""Timing keys that count as training compute. Source: the specification, section 4.1."""


@attrs.frozen(kw_only=True)
class Ratio:
    """A quotient that keeps both totals, so that ratios aggregate by sums and not by averages.

    Attributes:
        numerator: What was used, at least 0.
        denominator: What was available, at least 0, in the numerator's unit.
    """

    numerator: float = attrs.field(converter=to_float, validator=_AMOUNT)
    denominator: float = attrs.field(converter=to_float, validator=_AMOUNT)

    @property
    def value(self) -> float:
        """The quotient, or 0.0 when nothing was available.

        Not clipped: a share above 1 says that the two totals were measured inconsistently.
        """
        return self.numerator / self.denominator if self.denominator else 0.0

    def __add__(self, other: Ratio) -> Ratio:
        """Return the ratio of the summed totals."""
        return Ratio(
            numerator=self.numerator + other.numerator,
            denominator=self.denominator + other.denominator,
        )


@attrs.frozen(kw_only=True)
class MicroStep:
    """One fit step as the train utilization sees it.

    Attributes:
        compute_s: Seconds the training GPUs computed; see `train_compute_s`.
        allocated_s: Wall-clock seconds from the start of the collection to the end of the step,
            weight sync and hybrid activation included.
    """

    compute_s: float = attrs.field(converter=to_float, validator=_AMOUNT)
    allocated_s: float = attrs.field(converter=to_float, validator=_AMOUNT)


def train_compute_s(timing_s: Mapping[str, float]) -> float:
    """Return the seconds of one fit step in which the training GPUs computed.

    Args:
        timing_s: Seconds by timing key. A missing key counts 0 (a run without a critic has no
            ``values``); keys outside `TRAIN_COMPUTE_KEYS` are ignored.

    Source: the specification, section 4.1.
    """
    return sum((timing_s.get(key, 0.0) for key in TRAIN_COMPUTE_KEYS), 0.0)


def train_utilization(steps: Iterable[MicroStep]) -> Ratio:
    """Return the share of a cycle's allocated trainer time that was compute.

    Args:
        steps: The fit steps of the cycle.

    Returns:
        Summed compute over summed allocated seconds: within 0..1 when every step computed no longer
        than it was allocated; value 0.0 without steps or time.

    Source: the specification, section 4.1.
    """
    return sum(
        (Ratio(numerator=step.compute_s, denominator=step.allocated_s) for step in steps),
        Ratio(numerator=0.0, denominator=0.0),
    )


def hybrid_rollout_fraction(wait_s: float, step_s: float) -> float:
    """Return the fraction ``x`` of a cycle that the hybrid GPUs spent on rollout.

    Args:
        wait_s: Summed ``timing_s/wait_for_enough_samples`` of the cycle, finite.
        step_s: Summed ``timing_s/step`` of the cycle, at least 0.

    Returns:
        ``wait_s / step_s`` clipped to 0..1; 0.0 when the cycle has no time.

    Raises:
        InvalidValueError: If an argument is outside its range.

    Source: the specification, section 4.3.
    """
    _NUMBER.check("wait_s", wait_s)
    _AMOUNT.check("step_s", step_s)
    if step_s == 0:
        return 0.0
    return min(max(wait_s / step_s, 0.0), 1.0)


def cluster_utilization(
    *,
    hybrid_gpus: int,
    standalone_gpus: int,
    train: float,
    rollout: float,
    hybrid_fraction: float,
) -> float:
    """Return the utilization of all GPUs in a cycle, each part weighted by the GPU time it covers.

    Hybrid GPUs train for ``1 - hybrid_fraction`` of the time and roll out for the rest; standalone
    GPUs roll out all the time. Assumes that the lent wait is the whole of the hybrid GPUs' rollout
    time, as it is for the built-in policies.

    Args:
        hybrid_gpus: GPUs on trainer nodes.
        standalone_gpus: GPUs on rollout nodes.
        train: Value of `train_utilization` for the cycle, at least 0.
        rollout: Value of the rollout utilization for the cycle, at least 0.
        hybrid_fraction: `hybrid_rollout_fraction` of the cycle, 0..1.

    Returns:
        A value between ``train`` and ``rollout``; 0.0 without GPUs.

    Raises:
        InvalidValueError: If an argument is outside its range.

    Source: the specification, section 4.3.
    """
    _COUNT.check("hybrid_gpus", hybrid_gpus)
    _COUNT.check("standalone_gpus", standalone_gpus)
    _AMOUNT.check("train", train)
    _AMOUNT.check("rollout", rollout)
    _SHARE.check("hybrid_fraction", hybrid_fraction)
    gpus = hybrid_gpus + standalone_gpus
    if gpus == 0:
        return 0.0
    training = (1.0 - hybrid_fraction) * hybrid_gpus
    rolling_out = hybrid_fraction * hybrid_gpus + standalone_gpus
    # A weighted mean lies between its parts; rounding must not carry it outside.
    low, high = sorted((train, rollout))
    return min(max((training * train + rolling_out * rollout) / gpus, low), high)


def idle_ratio(active_time_s: float, version_time_s: float) -> float:
    """Return the share of a parameter version's time in which the rollouter could not submit.

    Args:
        active_time_s: Seconds in which the staleness budget left room to submit and there was data
            left, summed over the whole version: every pause counts, not the first alone.
        version_time_s: Seconds the version lasted, at least 0.

    Returns:
        ``1 - active_time_s / version_time_s`` clipped to 0..1; 0.0 when the version has no time.

    Raises:
        InvalidValueError: If an argument is outside its range.

    Source: verl's fully-async rollouter, which reports the metric under the same name.
    """
    _AMOUNT.check("active_time_s", active_time_s)
    _AMOUNT.check("version_time_s", version_time_s)
    if version_time_s == 0:
        return 0.0
    return max(1.0 - active_time_s / version_time_s, 0.0)
