"""How far the reductions move when one parameter of the modelled world moves, all else the same.

Every variant runs the same prompts with the same seeds as the scenario's own values, so that what
differs is the parameter and not the luck of the draw. Runs are no longer than the scenario's.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from swingshift.benchmarks.parameters import executor_parameters, move_parameter, with_parameter
from swingshift.benchmarks.runner import Job, JobFailure, OnProgress, run_jobs
from swingshift.benchmarks.scenario import Scenario, ScenarioRun
from swingshift.benchmarks.scenario_section import ComparisonSection, SensitivitySection
from swingshift.benchmarks.statistics import reductions, spread
from swingshift.executors.runtime.run import RunReport

_PROMPTS = "rollout.total_rollout_steps"


@attrs.frozen(kw_only=True)
class Shift:
    """What one value of a parameter does.

    Attributes:
        value: The value.
        is_clipped: Whether the parameter's limits kept it from moving as far as asked.
        reductions: How much each reduction grew, 0.01 for a point, in the order of the comparisons;
            None when a run failed.
        problem: Why a run failed; empty otherwise.
    """

    value: float
    is_clipped: bool
    reductions: tuple[float, ...] | None
    problem: str = ""


@attrs.frozen(kw_only=True)
class SensitivityRow:
    """One parameter.

    Attributes:
        key: Its full dotted key.
        value: Its value in the scenario.
        is_fitted: Whether it was fitted to the published results.
        lower: What a lower value does.
        higher: What a higher value does.
    """

    key: str
    value: float
    is_fitted: bool
    lower: Shift
    higher: Shift

    @property
    def largest(self) -> float:
        """The largest distance by which any reduction moves."""
        moved = (*(self.lower.reductions or ()), *(self.higher.reductions or ()))
        return max(map(abs, moved), default=0.0)


@attrs.frozen(kw_only=True)
class Sensitivity:
    """The whole study.

    Attributes:
        section: What was asked for.
        comparisons: Whose reductions were looked at.
        rows: One per parameter that can move by a share of its value, largest effect first.
        zeros: Parameters that cannot, because they are 0.
    """

    section: SensitivitySection
    comparisons: tuple[ComparisonSection, ...]
    rows: tuple[SensitivityRow, ...]
    zeros: tuple[str, ...]


@attrs.frozen(kw_only=True)
class _Variant:
    """A parameter with one value; no key for the scenario's own values."""

    key: str = ""
    value: float = 0.0
    is_clipped: bool = False


def study_sensitivity(
    scenario: Scenario,
    section: SensitivitySection,
    *,
    workers: int | None = None,
    on_progress: OnProgress | None = None,
) -> Sensitivity | JobFailure:
    """Move each parameter down and up, run every compared configuration, and see what changes.

    Args:
        scenario: What to run; it has comparisons.
        section: How far to move what, and on how many prompts.
        workers: As in `run_jobs`.
        on_progress: As in `run_jobs`.

    Returns:
        The study, or why the scenario's own values do not run.
    """
    runs = _compared(scenario)
    prompts = (run.config.rollout.total_rollout_steps for run in runs)
    section = attrs.evolve(section, prompts=min(section.prompts, *prompts))
    values = _values(scenario, section)
    variants = [_Variant()]
    for key, value in values.items():
        if value:
            variants += [_moved(runs, key, value, share) for share in _shares(section)]
    jobs = [job for variant in variants for job in _jobs(variant, runs, section)]
    results = run_jobs(jobs, workers=workers, on_progress=on_progress)
    each = len(runs) * section.seeds
    grouped = [results[start : start + each] for start in range(0, len(results), each)]
    comparisons = scenario.section.comparisons
    own = _reductions(grouped[0], runs, comparisons)
    if isinstance(own, JobFailure):
        return own
    shifts = [
        _shift(variant, own, _reductions(group, runs, comparisons))
        for variant, group in zip(variants[1:], grouped[1:], strict=True)
    ]
    rows = [
        SensitivityRow(
            key=lower.key,
            value=values[lower.key],
            is_fitted=lower.key in scenario.section.fitted,
            lower=shifts[2 * index],
            higher=shifts[2 * index + 1],
        )
        for index, lower in enumerate(variants[1::2])
    ]
    return Sensitivity(
        section=section,
        comparisons=comparisons,
        rows=tuple(sorted(rows, key=lambda row: -row.largest)),
        zeros=tuple(key for key, value in values.items() if not value),
    )


def _compared(scenario: Scenario) -> tuple[ScenarioRun, ...]:
    names = {name for item in scenario.section.comparisons for name in (item.run, item.versus)}
    return tuple(run for run in scenario.runs if run.name in names)


def _values(scenario: Scenario, section: SensitivitySection) -> dict[str, float]:
    parameters = executor_parameters(scenario.runs[0].config)
    whole = tuple(f"{key}." for key in section.keys or ("executor",))
    return {
        key: value
        for key, value in parameters.items()
        if key in section.keys or (key.startswith(whole) and type(value) is float)
    }


def _shares(section: SensitivitySection) -> tuple[float, float]:
    return 1.0 - section.change, 1.0 + section.change


def _moved(runs: Sequence[ScenarioRun], key: str, value: float, factor: float) -> _Variant:
    moved = move_parameter([run.config for run in runs], key, factor)
    return _Variant(key=key, value=moved, is_clipped=moved != value * factor)


def _jobs(variant: _Variant, runs: Sequence[ScenarioRun], section: SensitivitySection) -> list[Job]:
    """Return the jobs of a variant, seed by seed."""
    jobs: list[Job] = []
    for offset in range(section.seeds):
        for run in runs:
            config = with_parameter(run.config, _PROMPTS, section.prompts)
            if variant.key:
                config = with_parameter(config, variant.key, variant.value)
            jobs.append(
                Job(
                    name=f"{run.name}, {variant.key or 'own values'}={variant.value:g}",
                    config=attrs.evolve(config, seed=config.seed + offset),
                    policy=run.policy,
                )
            )
    return jobs


def _reductions(
    results: Sequence[RunReport | JobFailure],
    runs: Sequence[ScenarioRun],
    comparisons: Sequence[ComparisonSection],
) -> tuple[float, ...] | JobFailure:
    """Return each comparison's reduction from the results of one variant."""
    reports: list[RunReport] = []
    for result in results:
        if isinstance(result, JobFailure):
            return result
        reports.append(result)
    by_name = {run.name: reports[index :: len(runs)] for index, run in enumerate(runs)}
    return tuple(
        spread(reductions(by_name[item.run], by_name[item.versus])).mean for item in comparisons
    )


def _shift(variant: _Variant, own: Sequence[float], found: tuple[float, ...] | JobFailure) -> Shift:
    if isinstance(found, JobFailure):
        return Shift(
            value=variant.value,
            is_clipped=variant.is_clipped,
            reductions=None,
            problem=found.reason,
        )
    return Shift(
        value=variant.value,
        is_clipped=variant.is_clipped,
        reductions=tuple(new - old for new, old in zip(found, own, strict=True)),
    )
