"""Two policies on one machine, one after the other, the order reversed from pair to pair."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import attrs
from scipy import stats  # type: ignore[import-untyped]

from swingshift.executors.app.assembly import execute
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError

CONFIDENCE = 0.95
"""Of every interval reported here."""

NEVER_LENDS = "static_fully_async"
"""The policy that others are compared with."""


@attrs.frozen(kw_only=True)
class Pair:
    """Two runs of one seed.

    Attributes:
        seed: Of both.
        static: The run that never lends.
        dynamic: The other.
    """

    seed: int
    static: RunReport
    dynamic: RunReport

    @property
    def ratio(self) -> float:
        """Seconds per trained sample with lending, over those without."""
        return sample_s(self.dynamic) / sample_s(self.static)


@attrs.frozen(kw_only=True)
class Interval:
    """An estimate with its confidence interval.

    Attributes:
        value: The estimate.
        low: Lower limit.
        high: Upper limit.
    """

    value: float
    low: float
    high: float


def run_pairs(
    config: RunConfig, policy: str, pairs: int, tell: Callable[[int, int], None]
) -> tuple[Pair, ...]:
    """Run pairs on the configured executor and return them.

    A trend of the machine, warming up or someone else's work, meets both policies alike.

    Args:
        config: Its seed is that of the first pair.
        policy: The one that lends.
        pairs: How many, at least 2.
        tell: Called with the runs that ended and those there are.

    Raises:
        UserError: A run failed.
    """
    made = []
    for number in range(pairs):
        seeded = attrs.evolve(config, seed=config.seed + number)
        order = (NEVER_LENDS, policy) if number % 2 == 0 else (policy, NEVER_LENDS)
        reports = {}
        for place, name in enumerate(order):
            tell(2 * number + place, 2 * pairs)
            reports[place] = _run(seeded, name)
        static, dynamic = (0, 1) if number % 2 == 0 else (1, 0)
        made.append(Pair(seed=seeded.seed, static=reports[static], dynamic=reports[dynamic]))
    tell(2 * pairs, 2 * pairs)
    return tuple(made)


def ratio_of(pairs: Sequence[Pair]) -> Interval:
    """Return the geometric mean of the pairs' ratios, with Student's interval of their logarithms.

    Args:
        pairs: Two or more.
    """
    logs = [math.log(pair.ratio) for pair in pairs]
    mean = statistics.fmean(logs)
    half = half_width(logs)
    return Interval(value=math.exp(mean), low=math.exp(mean - half), high=math.exp(mean + half))


def half_width(values: Sequence[float]) -> float:
    """Return half of Student's confidence interval of a mean."""
    quantile = float(stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def sample_s(report: RunReport) -> float:
    """Return wall-clock seconds per trained sample, the start of processes apart."""
    return report.wall_clock_s / report.trained_samples


def cycle_s(reports: Sequence[RunReport]) -> float:
    """Return the mean seconds of a cycle over runs of one configuration."""
    return statistics.fmean(report.wall_clock_s / len(report.cycles) for report in reports)


def _run(config: RunConfig, policy: str) -> RunReport:
    report = execute(config, policy=policy, name=f"{policy}-{config.seed}")
    if report.outcome is not RunOutcome.EXHAUSTED:
        raise UserError(f"a run of {policy} with seed {config.seed} failed: {report.reason}")
    return report
