"""The machine-readable result of a benchmark.

Metrics are means over cycles, then mean and standard deviation over seeds. A reduction is the mean
over seeds of the share by which the run's wall clock is shorter: 0.153 for 15.3 %. Shares are
within 0..1, times in seconds. There are no NaN and no infinities.
"""

from __future__ import annotations

import json
from typing import TypedDict

from swingshift.benchmarks.result import BenchmarkResult, ComparisonResult, RunResult
from swingshift.benchmarks.sensitivity import Sensitivity, SensitivityRow, Shift
from swingshift.benchmarks.statistics import Spread


class SpreadDocument(TypedDict):
    """A figure over seeds."""

    mean: float
    std: float


class RunDocument(TypedDict):
    """One run over all seeds; ``policy`` is ``none`` where dynamic scheduling is off."""

    name: str
    policy: str
    trained_samples: SpreadDocument
    unused_samples: SpreadDocument
    wall_clock_s: SpreadDocument
    metrics: dict[str, SpreadDocument]


class ComparisonDocument(TypedDict):
    """By what share the run's wall clock is shorter; ``published`` is null where nothing was."""

    run: str
    versus: str
    wall_clock_reduction: float
    published: float | None


class ResultDocument(TypedDict):
    """A whole benchmark; ``seeds`` is how many repetitions each run had."""

    scenario: str
    seeds: int
    runs: list[RunDocument]
    comparisons: list[ComparisonDocument]


class ExpectationDocument(TypedDict):
    """One row of the verdicts; ``holds`` is null where there was no threshold."""

    result: str
    run: str
    published: str
    measured: str
    threshold: str
    holds: bool | None


class ShiftDocument(TypedDict):
    """One value of a parameter, and how much the reductions grew; null when a run failed."""

    value: float
    is_clipped: bool
    reductions: list[float] | None


class SensitivityDocument(TypedDict):
    """One parameter of the sensitivity study; reductions are in the order of the comparisons."""

    key: str
    value: float
    is_fitted: bool
    lower: ShiftDocument
    higher: ShiftDocument


class ReportDocument(ResultDocument):
    """A whole benchmark with its verdicts and its sensitivity study, empty where none was made."""

    expectations: list[ExpectationDocument]
    sensitivity: list[SensitivityDocument]


def result_document(result: BenchmarkResult) -> ResultDocument:
    """Return the result of a benchmark in the form that programs read."""
    return ResultDocument(
        scenario=result.scenario.name,
        seeds=result.scenario.seeds,
        runs=[_run(run) for run in result.runs],
        comparisons=[_comparison(comparison) for comparison in result.comparisons],
    )


def report_document(result: BenchmarkResult, sensitivity: Sensitivity | None) -> ReportDocument:
    """Return the same with the verdicts and the sensitivity study."""
    return ReportDocument(
        **result_document(result),
        expectations=[
            ExpectationDocument(
                result=verdict.result,
                run=verdict.run,
                published=verdict.published,
                measured=verdict.measured,
                threshold=verdict.threshold,
                holds=verdict.holds,
            )
            for verdict in result.verdicts
        ],
        sensitivity=[_row(row) for row in sensitivity.rows] if sensitivity else [],
    )


def to_json(document: ResultDocument | ReportDocument) -> str:
    """Return a document as text, ending in a newline.

    Raises:
        ValueError: It holds a number that JSON does not have.
    """
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _run(result: RunResult) -> RunDocument:
    return RunDocument(
        name=result.run.name,
        policy=result.run.policy_name,
        trained_samples=_spread(result.trained_samples),
        unused_samples=_spread(result.unused_samples),
        wall_clock_s=_spread(result.wall_clock_s),
        metrics={name: _spread(value) for name, value in result.metrics.items()},
    )


def _comparison(comparison: ComparisonResult) -> ComparisonDocument:
    return ComparisonDocument(
        run=comparison.section.run,
        versus=comparison.section.versus,
        wall_clock_reduction=comparison.reduction.mean,
        published=comparison.section.published,
    )


def _spread(value: Spread) -> SpreadDocument:
    return SpreadDocument(mean=value.mean, std=value.std)


def _row(row: SensitivityRow) -> SensitivityDocument:
    return SensitivityDocument(
        key=row.key,
        value=row.value,
        is_fitted=row.is_fitted,
        lower=_shift(row.lower),
        higher=_shift(row.higher),
    )


def _shift(shift: Shift) -> ShiftDocument:
    moved = shift.reductions
    return ShiftDocument(
        value=shift.value,
        is_clipped=shift.is_clipped,
        reductions=None if moved is None else list(moved),
    )
