"""Scenario files: how they are found, derived and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.small_world import BENCHMARK, WORLD, write_policies, write_scenario

from swingshift.benchmarks.parameters import executor_parameters, source_of
from swingshift.benchmarks.scenario import Scenario, load_scenario, scenario_names
from swingshift.benchmarks.scenario_section import SensitivitySection
from swingshift.sdk.errors import UserError

SWITCH = "async_training.use_dynamic_resource_scheduling"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of the small scenario."""
    return write_scenario(tmp_path)


def refusal(name_or_path: str, *overrides: str, policy: str | None = None) -> str:
    """Return the message with which a scenario is refused."""
    with pytest.raises(UserError) as caught:
        load_scenario(name_or_path, overrides, policy=policy)
    return str(caught.value)


def prompts(scenario: Scenario) -> list[int]:
    """Return the prompts of each run."""
    return [run.config.rollout.total_rollout_steps for run in scenario.runs]


def test_runs_are_the_file_with_their_overrides(path: str) -> None:
    """Each run keeps the file's keys but those that it replaces."""
    scenario = load_scenario(path)
    assert [(run.name, run.label, run.policy_name) for run in scenario.runs] == [
        ("fixed", "Fixed", "none"),
        ("lending", "Lending", "default"),
    ]
    assert prompts(scenario) == [44, 44]
    assert (scenario.seeds, scenario.is_quick, scenario.is_as_written) == (2, False, True)


def test_overrides_reach_every_run(path: str) -> None:
    """An override applies before the runs are derived, and the scenario is no longer as written."""
    scenario = load_scenario(path, ["rollout.total_rollout_steps=30"])
    assert prompts(scenario) == [30, 30]
    assert not scenario.is_as_written


def test_quick_cuts_down_and_overrides_win(path: str) -> None:
    """The file says what quick means; what is asked for on top of it has the last word."""
    quick = load_scenario(path, quick=True)
    assert (prompts(quick), quick.seeds) == ([20, 20], 1)
    longer = load_scenario(path, ["rollout.total_rollout_steps=33"], quick=True, seeds=3)
    assert (prompts(longer), longer.seeds) == ([33, 33], 3)


def test_seeds_can_be_replaced_without_changing_the_scenario(path: str) -> None:
    """More seeds are more repetitions of what is written."""
    for scenario in (load_scenario(path, seeds=5), load_scenario(path, ["benchmark.seeds=5"])):
        assert (scenario.seeds, scenario.is_as_written) == (5, True)


def test_a_policy_replaces_that_of_the_runs_that_lend(path: str) -> None:
    """Runs without lending have no policy to replace."""
    scenario = load_scenario(path, policy="fixed_ratio")
    assert [run.policy_name for run in scenario.runs] == ["none", "fixed_ratio"]
    assert not scenario.is_as_written


def test_a_file_without_a_section_gets_a_static_twin(tmp_path: Path) -> None:
    """Someone's own configuration is compared with itself without lending."""
    scenario = load_scenario(write_scenario(tmp_path, WORLD), quick=True)
    assert [(run.name, run.policy_name) for run in scenario.runs] == [
        ("dynamic", "default"),
        ("static", "none"),
    ]
    (comparison,) = scenario.section.comparisons
    assert (comparison.run, comparison.versus, comparison.published) == ("dynamic", "static", None)
    assert (prompts(scenario), scenario.seeds) == ([44, 44], 2)


def test_a_file_that_does_not_lend_is_one_run(tmp_path: Path) -> None:
    """There is nothing to compare it with."""
    scenario = load_scenario(write_scenario(tmp_path, WORLD), [f"{SWITCH}=false"])
    assert [run.name for run in scenario.runs] == ["static"]
    assert scenario.section.comparisons == ()


def test_a_file_with_hybrid_replicas_alone_has_no_twin(tmp_path: Path) -> None:
    """Without lending nothing would generate."""
    scenario = load_scenario(write_scenario(tmp_path, WORLD), ["rollout.nnodes=0"])
    assert [run.name for run in scenario.runs] == ["dynamic"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.total_rollout_step=5", "rollout.total_rollout_step: unknown key (value 5); did"),
        ("benchmark.seed=3", "benchmark.seed: unknown key (value 3); did you mean 'seeds'?"),
        ("benchmark.seeds=0", "benchmark.seeds: 0 is not allowed; expected an integer >= 1"),
        (
            "benchmark.comparisons=[{run: lendin, versus: fixed}]",
            "benchmark.comparisons[0].run: unknown run 'lendin'; did you mean 'lending'?",
        ),
        (
            "benchmark.comparisons=[{run: lending, versus: fixd}]",
            "benchmark.comparisons[0].versus: unknown run 'fixd'; did you mean 'fixed'?",
        ),
        (
            "benchmark.comparisons=[{run: lending, versus: fixed, tolerance: 0.1}]",
            "benchmark.comparisons[0]: tolerance says how far from published",
        ),
        (
            "benchmark.expectations=[{result: a, run: fixed, metric: x, at_most: {value: 1}}]",
            "benchmark.expectations[0].metric: unknown metric 'x'",
        ),
        (
            "benchmark.expectations="
            "[{result: a, run: fixed, metric: timing_s/gen, at_most: {run: nope}}]",
            "benchmark.expectations[0].at_most.run: unknown run 'nope'",
        ),
        (
            "benchmark.expectations=[{result: a, run: fixed, metric: timing_s/gen}]",
            "benchmark.expectations[0]: no limit; expected at least one of",
        ),
        (
            "benchmark.fitted=[executor.training.mfuu]",
            "benchmark.fitted: unknown parameter 'executor.training.mfuu'; did you mean",
        ),
        ("benchmark.sources={executor.gpus: x}", "benchmark.sources: unknown parameter"),
        ("benchmark.sensitivity.keys=[a]", "benchmark.sensitivity.keys: unknown parameter 'a'"),
        ("benchmark.sensitivity.change=0.95", "benchmark.sensitivity.change: 0.95 is not allowed"),
        (
            "benchmark.runs.fixed.overrides={trainer.nnode: 2}",
            "trainer.nnode: unknown key (value 2); did you mean 'nnodes'?",
        ),
        (
            "executor.gpu.memory_bytes=1.0e9",
            "actor_rollout_ref.rollout.gpu_memory_utilization: 0.5 is not allowed; expected a rep",
        ),
        ("executor.training.mfu=1.7", "executor.training.mfu: 1.7 is not allowed"),
        ("executor.name=simulatd", "executor.name: unknown executor 'simulatd'; did you mean"),
        ("policy.window=3", "policy.window: unknown key (value 3); policy DefaultDynamicSchedu"),
        (
            "actor_rollout_ref.actor.megatron.expert_model_parallel_size=3",
            "actor_rollout_ref.actor.megatron.expert_model_parallel_size: 3 is not allowed; expect",
        ),
        (
            "executor.lengths.prompt.max_tokens=4096",
            "executor.lengths.prompt.max_tokens: 4096 is not allowed; expected at most data.max_p",
        ),
        (
            "benchmark.runs.lendin.label=x",
            "benchmark.runs.lendin: unknown run 'lendin'; did you mean 'lending'?; known: fixed, l",
        ),
        (
            "benchmark={runs: {more: {label: x}}}",
            "benchmark.runs.more: unknown run 'more'; known: fixed, lending",
        ),
    ],
)
def test_every_problem_is_one_line_that_names_the_key(
    path: str, override: str, message: str
) -> None:
    """A scenario with a fault in it is refused before anything runs."""
    found = refusal(path, override)
    assert found.startswith(message)
    assert "\n" not in found


def test_a_problem_of_one_run_names_it(path: str) -> None:
    """After the key, so that the line begins as any other."""
    assert refusal(path, "benchmark.runs.lending.overrides={trainer.nnodes: x}").endswith(
        "trainer.nnodes: 'x' is not allowed; expected an integer >= 1 (run 'lending')"
    )


def test_keys_left_open_in_a_file_can_be_given(tmp_path: Path) -> None:
    """Also together with a change to one of its runs."""
    text = (WORLD + BENCHMARK).replace("trainer: {nnodes: 1", "trainer: {nnodes: '???'")
    overrides = ["trainer.nnodes=1", "benchmark.runs.fixed.label=Other"]
    assert load_scenario(write_scenario(tmp_path, text), overrides).runs[0].label == "Other"


@pytest.mark.parametrize(
    ("overrides", "options", "is_studied"),
    [
        ((), {}, True),
        ((), {"seeds": 1}, True),
        (("seed=3",), {}, False),
        ((), {"policy": "fixed_ratio"}, False),
        ((), {"quick": True}, False),
        (("seed=3",), {"quick": True, "sensitivity": True}, True),
    ],
)
def test_parameters_are_studied_as_written_or_when_asked_for(
    path: str, overrides: tuple[str, ...], options: dict[str, bool], is_studied: bool
) -> None:
    """Minutes of study are no part of trying something out."""
    assert (load_scenario(path, overrides, **options).study is not None) is is_studied  # type: ignore[arg-type]


def test_a_study_needs_comparisons_and_has_defaults(tmp_path: Path) -> None:
    """Without a section of its own it is as large as the defaults say."""
    plain = write_scenario(tmp_path, WORLD)
    assert load_scenario(plain, sensitivity=True).study == SensitivitySection()
    with pytest.raises(UserError, match=r"^--sensitivity: the scenario compares no runs"):
        load_scenario(plain, [f"{SWITCH}=false"], sensitivity=True)


def test_several_problems_are_told_at_once(path: str) -> None:
    """A user does not have to run once per mistake."""
    found = refusal(path, "benchmark.fitted=[a, b]", "benchmark.sources={c: d}")
    assert len(found.splitlines()) == 3


def test_an_unknown_scenario_is_told_the_nearest_name(tmp_path: Path) -> None:
    """Names, files and folders that lead nowhere are one line each."""
    assert "unknown scenario 'publised'; did you mean 'published'?; known:" in refusal("publised")
    assert "No such file" in refusal(str(tmp_path / "missing.yaml"))
    assert "Is a directory" in refusal(str(tmp_path))


def test_an_unknown_policy_is_refused_before_anything_runs(path: str, tmp_path: Path) -> None:
    """Registered names and files alike."""
    assert "did you mean 'default'?" in refusal(path, policy="defalt")
    assert "has no class 'Nope'" in refusal(path, policy=f"{write_policies(tmp_path)}:Nope")


def test_a_policy_without_a_run_that_lends_is_refused(path: str) -> None:
    """The answer would not depend on it."""
    assert refusal(path, f"{SWITCH}=false", policy="default").startswith("--policy default: no run")


@pytest.mark.parametrize("name", scenario_names())
def test_every_packaged_scenario_loads_at_both_sizes(name: str) -> None:
    """What comes with the package runs, and its quick form is smaller."""
    full, quick = load_scenario(name), load_scenario(name, quick=True)
    assert full.section.description
    assert sum(prompts(quick)) * quick.seeds < sum(prompts(full)) * full.seeds


@pytest.mark.parametrize("name", scenario_names())
def test_every_parameter_of_a_packaged_scenario_is_accounted_for(name: str) -> None:
    """A number is fitted, and there are at most three of those, or its source is said."""
    scenario = load_scenario(name)
    section = scenario.section
    unexplained = [
        key
        for key in executor_parameters(scenario.runs[0].config)
        if key not in section.fitted and source_of(key, section.sources) is None
    ]
    assert unexplained == []
    assert len(section.fitted) <= 3


def test_one_set_of_parameters_serves_every_published_run() -> None:
    """The runs differ in topology and lending, and in nothing that was fitted."""
    runs = load_scenario("published").runs
    assert all(run.config.executor == runs[0].config.executor for run in runs)
    gpus = {run.config.hybrid_gpus + run.config.standalone_gpus for run in runs}
    assert gpus == {32}
