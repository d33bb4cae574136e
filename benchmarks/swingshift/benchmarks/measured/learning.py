"""``swingshift bench learning``: does a run that lends learn what one that never lends learns?

Runs of equal seeds are paired. Two one-sided tests say whether the mean difference lies inside a
margin; that no difference was found would not say so.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import attrs
from rich.console import Console
from scipy import stats  # type: ignore[import-untyped]

from swingshift.benchmarks.measured.pairs import NEVER_LENDS
from swingshift.executors.app.assembly import execute
from swingshift.executors.app.train_config import load_plan
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError
from swingshift.sdk.events import BatchTrained, Event

MARGIN = 0.05
"""Largest difference of rewards that counts as none; the largest reward is 1."""

_LEVEL = 0.05
_POWER = 0.9
_LAST_SHARE = 0.1
_REWARD = "reward/mean"
_COUNTS = (
    "fully_async/count/stale_samples_processed",
    "fully_async/partial/partial_ratio",
    "fully_async/partial/max_partial_span",
)


@attrs.frozen(kw_only=True)
class Learned:
    """What one run came to.

    Attributes:
        final: Mean reward of the last tenth of the fit steps.
        area: Mean reward over all fit steps.
        counts: Staleness and partial rollouts: the last value of a count, the mean of others.
    """

    final: float
    area: float
    counts: dict[str, float]


@attrs.frozen(kw_only=True)
class Equivalence:
    """Two one-sided tests on paired differences.

    Attributes:
        mean: Mean difference, lending less never lending.
        low: Lower limit of the interval that both tests look at.
        high: Upper limit.
        p_value: The larger of the two tests' p-values.
    """

    mean: float
    low: float
    high: float
    p_value: float

    @property
    def holds(self) -> bool:
        """Whether the difference is shown to lie inside the margin."""
        return self.p_value < _LEVEL


class _Rewards:
    """An event sink that keeps the mean reward of every fit step."""

    def __init__(self) -> None:
        self.means: list[float] = []

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        if isinstance(event, BatchTrained):
            self.means.append(event.metrics[_REWARD])


def two_one_sided_tests(
    differences: Sequence[float], *, pilot: int | None = None, margin: float = MARGIN
) -> Equivalence:
    """Return the two one-sided tests of paired differences.

    Where the spread of the first pairs decided how many there are, that spread is the one to test
    with: the spread of all of them would make both errors likelier than they claim to be.

    Args:
        differences: Two or more.
        pilot: The pairs, from the first on, whose spread decided how many there are; None for all.
        margin: What counts as no difference.

    Source: D. Schuirmann, "A comparison of the two one-sided tests procedure", 1987; C. Stein, "A
    two-sample test for a linear hypothesis whose power is independent of the variance", 1945.
    """
    pairs = len(differences) if pilot is None else pilot
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences[:pairs]) / math.sqrt(len(differences))
    half = float(stats.t.ppf(1.0 - _LEVEL, pairs - 1)) * error
    if error == 0.0:
        p_value = 0.0 if abs(mean) < margin else 1.0
    else:
        above = float(stats.t.sf((mean + margin) / error, pairs - 1))
        below = float(stats.t.cdf((mean - margin) / error, pairs - 1))
        p_value = max(above, below)
    return Equivalence(mean=mean, low=mean - half, high=mean + half, p_value=p_value)


def pairs_needed(differences: Sequence[float], margin: float = MARGIN) -> int:
    """Return how many pairs show equivalence with a power of 0.9 where there is no difference.

    Args:
        differences: Of a few pairs, whose spread is taken for that of all.
        margin: What counts as no difference.

    Source: S. Julious, "Sample sizes for clinical trials with normal data", 2004, section 5.
    """
    spread, freedom = statistics.stdev(differences), len(differences) - 1
    quantiles = stats.t.ppf(1.0 - _LEVEL, freedom) + stats.t.ppf(0.5 + _POWER / 2, freedom)
    return max(len(differences), math.ceil((float(quantiles) * spread / margin) ** 2))


def run_learning(
    overrides: Sequence[str],
    *,
    policy: str,
    pilot: int,
    most: int,
    screen: Console,
    status: Console,
    json_file: Path | None,
) -> bool:
    """Run pairs until their spread says that there are enough, and say what came of them.

    Args:
        overrides: ``key=value`` for the packaged example ``copy``.
        policy: The one that lends.
        pilot: Pairs whose spread says how many are needed.
        most: Pairs at most.
        screen: Shows results.
        status: Shows progress.
        json_file: Takes the result for programs; None for none.

    Returns:
        Whether final reward and area are both shown to be equivalent.

    Raises:
        UserError: A run failed, or an override cannot be used.
    """
    config = load_plan("copy", overrides).config
    with status.status("learning") as line:
        pairs: list[tuple[Learned, Learned]] = []
        wanted = needed = pilot
        while len(pairs) < wanted:
            line.update(f"learning: pair {len(pairs) + 1} of {wanted}")
            pairs.append(_pair(config, policy, len(pairs)))
            if len(pairs) == pilot:
                needed = max(map(pairs_needed, _differences(pairs).values()))
                wanted = min(most, needed)
    results = {
        name: two_one_sided_tests(found, pilot=pilot) for name, found in _differences(pairs).items()
    }
    if needed > wanted:
        screen.print(f"the spread of the first {pilot} pairs asks for {needed}; {wanted} were run")
    for sentence in _sentences(pairs, results, policy):
        screen.print(sentence)
    if json_file is not None:
        document = {
            "policy": policy,
            "margin": MARGIN,
            "results": {name: attrs.asdict(result) for name, result in results.items()},
            "pairs": [[attrs.asdict(run) for run in pair] for pair in pairs],
        }
        json_file.write_text(json.dumps(document, indent=2) + "\n")
    return all(result.holds for result in results.values())


def _pair(config: RunConfig, policy: str, number: int) -> tuple[Learned, Learned]:
    """Return what lending and never lending came to; the order is reversed from pair to pair."""
    seeded = attrs.evolve(config, seed=config.seed + number)
    if number % 2:
        lending = _learn(seeded, policy)
        return lending, _learn(seeded, NEVER_LENDS)
    never = _learn(seeded, NEVER_LENDS)
    return _learn(seeded, policy), never


def _learn(config: RunConfig, policy: str) -> Learned:
    rewards = _Rewards()
    report = execute(config, policy=policy, name=f"{policy}-{config.seed}", event_sinks=[rewards])
    if report.outcome is not RunOutcome.EXHAUSTED:
        raise UserError(f"a run of {policy} with seed {config.seed} failed: {report.reason}")
    last = max(1, round(_LAST_SHARE * len(rewards.means)))
    return Learned(
        final=statistics.fmean(rewards.means[-last:]),
        area=statistics.fmean(rewards.means),
        counts={name: _of_run(report, name) for name in _COUNTS},
    )


def _of_run(report: RunReport, name: str) -> float:
    values = [cycle[name] for cycle in report.cycles]
    return values[-1] if "/count/" in name else statistics.fmean(values)


def _differences(pairs: Sequence[tuple[Learned, Learned]]) -> dict[str, list[float]]:
    return {
        "final reward": [lending.final - never.final for lending, never in pairs],
        "area under the curve": [lending.area - never.area for lending, never in pairs],
    }


def _sentences(
    pairs: Sequence[tuple[Learned, Learned]], results: dict[str, Equivalence], policy: str
) -> list[str]:
    lines = []
    for name, result in results.items():
        verdict = "equivalent" if result.holds else "not shown to be equivalent"
        lines.append(
            f"{name}: {policy} less {NEVER_LENDS} {result.mean:+.4f}, 90% interval "
            f"{result.low:+.4f} to {result.high:+.4f}, margin {MARGIN:g}: {verdict} "
            f"(p = {result.p_value:.2g}, {len(pairs)} pairs)"
        )
    for place, name in enumerate((policy, NEVER_LENDS)):
        runs = [pair[place] for pair in pairs]
        counts = ", ".join(
            f"{count.rpartition('/')[2]} {statistics.fmean(r.counts[count] for r in runs):.3g}"
            for count in _COUNTS
        )
        final = statistics.fmean(run.final for run in runs)
        lines.append(f"{name}: final reward {final:.3f}; {counts}")
    return lines
