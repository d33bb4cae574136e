"""Scenario files: found by name or path, read, checked, and turned into the runs they describe.

A scenario is a run configuration with an optional ``benchmark`` section. Its runs are the
configuration with a few keys replaced each; without the section they are the configuration itself
and, where that lends GPUs, the same topology without lending.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import attrs

from swingshift.benchmarks.parameters import check_executor, executor_parameters
from swingshift.benchmarks.scenario_section import (
    BenchmarkSection,
    ComparisonSection,
    RunSection,
    SensitivitySection,
)
from swingshift.executors.app.assembly import build_configured_policy, find_policy
from swingshift.executors.app.configuration import (
    dump_config,
    load_config,
    read_mapping,
    structure_config,
    structure_section,
)
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError, UnknownNameError, UserError, did_you_mean
from swingshift.sdk.metrics import METRICS

_SCENARIOS = Path(__file__).with_name("scenarios")
_SUFFIXES = (".yaml", ".yml")
_SWITCH = "async_training.use_dynamic_resource_scheduling"
_NAMES_RUNS = ("benchmark.runs", "benchmark=")
_QUICK_PROMPTS, _QUICK_SEEDS = 3000, 2

NO_POLICY = "none"
"""What stands in place of a policy's name where dynamic scheduling is off."""


@attrs.frozen(kw_only=True)
class ScenarioRun:
    """One configuration of a scenario, ready to run.

    Attributes:
        name: Its name in the file.
        label: What tables and plots call it.
        config: The whole configuration; its seed is that of the first repetition.
        policy: A registered name or ``file.py:Class`` in place of the configured policy; None for
            the configured one, and where dynamic scheduling is off.
    """

    name: str
    label: str
    config: RunConfig
    policy: str | None = None

    @property
    def policy_name(self) -> str:
        """The policy as it was asked for, or ``none``."""
        if not self.config.async_training.use_dynamic_resource_scheduling:
            return NO_POLICY
        return self.policy or self.config.async_training.dynamic_schedule_policy


@attrs.frozen(kw_only=True)
class Scenario:
    """A scenario as it will be run.

    Attributes:
        name: The packaged name, or the path as given.
        section: The ``benchmark`` section, complete.
        runs: What is compared, in the file's order.
        study: The sensitivity study to make; None for none.
        is_quick: Whether it was cut down for a quick answer.
        is_as_written: Whether nothing but the number of seeds was replaced: neither keys nor the
            policy nor, for a quick answer, the size.
    """

    name: str
    section: BenchmarkSection
    runs: tuple[ScenarioRun, ...]
    study: SensitivitySection | None
    is_quick: bool
    is_as_written: bool

    @property
    def seeds(self) -> int:
        """Repetitions of each run."""
        return self.section.seeds


def scenario_names() -> tuple[str, ...]:
    """Return the names of the scenarios that come with the package, sorted."""
    return tuple(sorted(path.stem for path in _SCENARIOS.glob("*.yaml")))


def load_scenario(
    name_or_path: str,
    overrides: Sequence[str] = (),
    *,
    quick: bool = False,
    policy: str | None = None,
    seeds: int | None = None,
    sensitivity: bool = False,
) -> Scenario:
    """Return a scenario with everything in it checked: a run of it can fail, but not be refused.

    Args:
        name_or_path: A packaged name, or a path to a YAML file.
        overrides: ``key=value`` each, applied to the file before its runs are derived from it.
        quick: Whether to cut it down as its section says.
        policy: A registered name or ``file.py:Class``, for every run that lends GPUs.
        seeds: Repetitions of each run, in place of those of the file.
        sensitivity: Whether to study the parameters in any case. Otherwise that is done where the
            file asks for it and is run in full and as it is written.

    Raises:
        UserError: There is no such scenario, or something in it, in the overrides or in the policy
            cannot be used; a line for each problem.
    """
    path = _scenario_path(name_or_path)
    if policy is not None:
        find_policy(policy)
    repetitions = [] if seeds is None else [f"benchmark.seeds={seeds}"]
    section, rest = _read(path, [*overrides, *repetitions])
    others = [item for item in overrides if not item.startswith(_NAMES_RUNS)]
    _refuse_new_runs(section, _read(path, others)[0])
    if quick:
        cuts = _quick_overrides(section, rest)
        section, rest = _read(path, [*cuts, *overrides, *repetitions])
    base = structure_config(rest)
    section = _completed(section, base)
    problems = tuple(_problems(section, base))
    if problems:
        raise ConfigError("\n".join(problems))
    changes = [item for item in overrides if not item.startswith("benchmark.seeds=")]
    is_as_written = not (quick or policy or changes)
    return Scenario(
        name=name_or_path,
        section=section,
        runs=_runs(section, base, policy),
        study=_study(section, sensitivity, is_as_written),
        is_quick=quick,
        is_as_written=is_as_written,
    )


def _scenario_path(name_or_path: str) -> Path:
    packaged = _SCENARIOS / f"{name_or_path}.yaml"
    if name_or_path in scenario_names():
        return packaged
    path = Path(name_or_path)
    if path.suffix in _SUFFIXES or path.exists():
        return path
    names = scenario_names()
    raise UserError(
        f"unknown scenario {name_or_path!r}{did_you_mean(name_or_path, names)}; "
        f"known: {', '.join(names)}; or write the path of a YAML file"
    )


def _read(path: Path, overrides: Sequence[str]) -> tuple[BenchmarkSection, dict[str, object]]:
    """Return a file's ``benchmark`` section, and everything else in it."""
    rest = read_mapping(path, overrides)
    written = cast("Mapping[str, object]", rest.pop("benchmark", {}))
    return structure_section(BenchmarkSection, written, "benchmark"), rest


def _refuse_new_runs(section: BenchmarkSection, written: BenchmarkSection) -> None:
    """Refuse names of runs that only overrides have: a typo would be one run more."""
    problems = [
        f"benchmark.runs.{name}: {UnknownNameError('run', name, written.runs)}"
        for name in section.runs
        if name not in written.runs
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _as_overrides(values: Mapping[str, object]) -> list[str]:
    # JSON is YAML: the value is read as what it was written as.
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def _quick_overrides(section: BenchmarkSection, rest: Mapping[str, object]) -> list[str]:
    if section.quick:
        return _as_overrides(section.quick)
    prompts = min(structure_config(rest).rollout.total_rollout_steps, _QUICK_PROMPTS)
    return [
        f"rollout.total_rollout_steps={prompts}",
        f"benchmark.seeds={min(section.seeds, _QUICK_SEEDS)}",
    ]


def _completed(section: BenchmarkSection, base: RunConfig) -> BenchmarkSection:
    """Return a section with runs: where none are given, the file itself and its static twin."""
    if section.runs:
        return section
    if not base.async_training.use_dynamic_resource_scheduling:
        return attrs.evolve(section, runs={"static": RunSection()})
    runs = {"dynamic": RunSection()}
    if base.only_hybrid:
        return attrs.evolve(section, runs=runs)
    return attrs.evolve(
        section,
        runs={**runs, "static": RunSection(overrides={_SWITCH: False})},
        comparisons=section.comparisons or (ComparisonSection(run="dynamic", versus="static"),),
    )


def _study(
    section: BenchmarkSection, is_asked_for: bool, is_as_written: bool
) -> SensitivitySection | None:
    if is_asked_for and not section.comparisons:
        raise UserError(
            "--sensitivity: the scenario compares no runs; add comparisons to its benchmark section"
        )
    if is_asked_for:
        return section.sensitivity or SensitivitySection()
    return section.sensitivity if is_as_written and section.comparisons else None


def _runs(
    section: BenchmarkSection, base: RunConfig, policy: str | None
) -> tuple[ScenarioRun, ...]:
    runs = tuple(_run(name, spec, base, policy) for name, spec in section.runs.items())
    if policy is not None and not any(run.policy for run in runs):
        raise UserError(
            f"--policy {policy}: no run of the scenario asks a policy; set {_SWITCH}=true"
        )
    return runs


def _run(name: str, spec: RunSection, base: RunConfig, policy: str | None) -> ScenarioRun:
    try:
        config = load_config(dump_config(base), _as_overrides(spec.overrides))
        check_executor(config)
        is_dynamic = config.async_training.use_dynamic_resource_scheduling
        replacement = policy if is_dynamic else None
        build_configured_policy(config, replacement)
    except UserError as error:
        lines = str(error).splitlines()
        raise ConfigError("\n".join(f"{line} (run {name!r})" for line in lines)) from error
    return ScenarioRun(name=name, label=spec.label or name, config=config, policy=replacement)


def _problems(section: BenchmarkSection, base: RunConfig) -> Iterator[str]:
    """Say which names in a section lead nowhere."""
    for place, name in _names_of_runs(section):
        if name not in section.runs:
            yield f"benchmark.{place}: {UnknownNameError('run', name, section.runs)}"
    for index, expectation in enumerate(section.expectations):
        if expectation.metric not in METRICS:
            error = UnknownNameError("metric", expectation.metric, METRICS)
            yield f"benchmark.expectations[{index}].metric: {error}"
    parameters = executor_parameters(base)
    sections = {".".join(key.split(".")[:length]) for key in parameters for length in (1, 2, 3)}
    moved = section.sensitivity.keys if section.sensitivity else ()
    for place, keys, known in (
        ("fitted", section.fitted, set(parameters)),
        ("sensitivity.keys", moved, {*parameters, *sections}),
        ("sources", section.sources, {*parameters, *sections}),
    ):
        for key in keys:
            if key not in known:
                yield (
                    f"benchmark.{place}: unknown parameter {key!r}{did_you_mean(key, known)}; "
                    "expected the full key of a number below executor"
                )


def _names_of_runs(section: BenchmarkSection) -> Iterator[tuple[str, str]]:
    for i, comparison in enumerate(section.comparisons):
        yield f"comparisons[{i}].run", comparison.run
        yield f"comparisons[{i}].versus", comparison.versus
    for i, expectation in enumerate(section.expectations):
        yield f"expectations[{i}].run", expectation.run
        for key, bound in expectation.bounds.items():
            if bound.run is not None:
                yield f"expectations[{i}].{key}.run", bound.run
