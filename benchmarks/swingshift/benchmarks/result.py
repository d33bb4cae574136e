"""What a benchmark came to: its runs over all seeds, its comparisons and its verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs

from swingshift.benchmarks.expectations import Verdict, judge_comparison, judge_expectation
from swingshift.benchmarks.runner import Job
from swingshift.benchmarks.scenario import Scenario, ScenarioRun
from swingshift.benchmarks.scenario_section import ComparisonSection
from swingshift.benchmarks.statistics import (
    Spread,
    metrics_over_seeds,
    reductions,
    spread,
)
from swingshift.executors.runtime.run import RunReport


@attrs.frozen(kw_only=True)
class RunResult:
    """One configuration over all seeds.

    Attributes:
        run: What ran.
        reports: One per seed, in their order.
    """

    run: ScenarioRun
    reports: tuple[RunReport, ...]

    @property
    def label(self) -> str:
        """What tables and plots call it."""
        return self.run.label

    @property
    def wall_clock_s(self) -> Spread:
        """Seconds from the first event to the last."""
        return spread([report.wall_clock_s for report in self.reports])

    @property
    def trained_samples(self) -> Spread:
        """Samples trained."""
        return spread([report.trained_samples for report in self.reports])

    @property
    def unused_samples(self) -> Spread:
        """Samples that were never trained."""
        return spread([report.unused_samples for report in self.reports])

    @property
    def metrics(self) -> Mapping[str, Spread]:
        """Means over cycles, over seeds, by name."""
        return metrics_over_seeds(self.reports)


@attrs.frozen(kw_only=True)
class ComparisonResult:
    """A comparison, and by what share of its wall clock the run is shorter."""

    section: ComparisonSection
    reduction: Spread


@attrs.frozen(kw_only=True)
class BenchmarkResult:
    """Everything that came of a scenario.

    Attributes:
        scenario: What was run.
        runs: In the scenario's order.
        comparisons: In the scenario's order.
        verdicts: First those of the comparisons, then those of the expectations.
    """

    scenario: Scenario
    runs: tuple[RunResult, ...]
    comparisons: tuple[ComparisonResult, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def missed(self) -> tuple[Verdict, ...]:
        """The verdicts that do not hold."""
        return tuple(verdict for verdict in self.verdicts if verdict.holds is False)


def jobs_of(scenario: Scenario, *, logs: Path | None = None) -> tuple[Job, ...]:
    """Return a job for every run and seed of a scenario, seed by seed.

    Args:
        scenario: What to run.
        logs: Folder for the run logs; None for no logs.
    """
    return tuple(
        Job(
            name=f"{run.name}, seed {seed}",
            config=attrs.evolve(run.config, seed=seed),
            policy=run.policy,
            log=None if logs is None else logs / f"{run.name}-seed-{seed}.jsonl",
        )
        for offset in range(scenario.seeds)
        for run in scenario.runs
        for seed in (run.config.seed + offset,)
    )


def summarise(scenario: Scenario, reports: Sequence[RunReport]) -> BenchmarkResult:
    """Return what the reports of a scenario come to.

    Args:
        scenario: What was run.
        reports: In the order of `jobs_of`.
    """
    count = len(scenario.runs)
    runs = tuple(
        RunResult(run=run, reports=tuple(reports[index::count]))
        for index, run in enumerate(scenario.runs)
    )
    by_name = {result.run.name: result.reports for result in runs}
    labels = {run.name: run.label for run in scenario.runs}
    comparisons = tuple(
        ComparisonResult(
            section=section,
            reduction=spread(reductions(by_name[section.run], by_name[section.versus])),
        )
        for section in scenario.section.comparisons
    )
    return BenchmarkResult(
        scenario=scenario,
        runs=runs,
        comparisons=comparisons,
        verdicts=(
            *(judge_comparison(item.section, item.reduction, labels) for item in comparisons),
            *(
                judge_expectation(section, by_name, labels)
                for section in scenario.section.expectations
            ),
        ),
    )
