"""A scenario on measured costs is written, read again and run like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tests.docs.documents import ROOT, blocks
from tests.executors.measured import COSTS, LENGTHS, measured_options

from swingshift.benchmarks.parameters import executor_parameters, with_parameter
from swingshift.benchmarks.runner import Job, run_jobs
from swingshift.benchmarks.scenario import ScenarioRun, load_scenario
from swingshift.executors.app.assembly import configured_executor
from swingshift.executors.app.configuration import dump_section
from swingshift.executors.runtime.run import RunReport
from swingshift.executors.simulated.options import SimulatedOptions

WORLD = """
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4}
  rollout: {n: 2, max_num_seqs: 16}
trainer: {nnodes: 1, n_gpus_per_node: 1}
rollout: {nnodes: 1, n_gpus_per_node: 1, total_rollout_steps: 40}
async_training: {use_dynamic_resource_scheduling: true, staleness_threshold: 0.5}
"""


def loaded(folder: Path, executor: dict[str, object]) -> tuple[ScenarioRun, ...]:
    """Return the runs of a scenario file with this executor section."""
    path = folder / "measured.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(WORLD), "executor": executor}))
    return load_scenario(str(path)).runs


@pytest.fixture
def runs(tmp_path: Path) -> tuple[ScenarioRun, ...]:
    """Return the runs of a file that holds what was measured and seen, and nothing else."""
    return loaded(
        tmp_path,
        {"name": "simulated", "measured": dump_section(COSTS), "lengths": dump_section(LENGTHS)},
    )


def test_what_was_measured_survives_the_file(runs: tuple[ScenarioRun, ...]) -> None:
    """The keys written are those read, whichever run of the scenario is asked."""
    assert [run.name for run in runs] == ["dynamic", "static"]
    assert [configured_executor(run.config)[1] for run in runs] == [measured_options()] * 2


def test_options_survive_whole(tmp_path: Path) -> None:
    """With every key written out, those without effect too."""
    section = {"name": "simulated", **dump_section(measured_options())}
    (run, _) = loaded(tmp_path, section)

    assert configured_executor(run.config)[1] == measured_options()


def test_example_of_the_page_is_complete(tmp_path: Path) -> None:
    """Whoever copies it has a machine that can be run."""
    (text,) = (
        block.text
        for block in blocks(ROOT / "docs/scenarios.md", "yaml")
        if "measured:" in block.text
    )
    runs = loaded(tmp_path, yaml.safe_load(text)["executor"])

    assert [run.name for run in runs] == ["dynamic", "static"]


def test_runs_on_measured_costs_end_well(runs: tuple[ScenarioRun, ...]) -> None:
    """Lending and not, as `swingshift bench` runs them."""
    jobs = [Job(name=run.name, config=run.config, policy=run.policy) for run in runs]

    for report in run_jobs(jobs, workers=1):
        assert isinstance(report, RunReport)
        assert report.trained_samples == 40


def test_measured_numbers_can_be_moved(runs: tuple[ScenarioRun, ...]) -> None:
    """They are parameters of the world like those of a modelled one."""
    key, config = "executor.measured.switch.sleep_s", runs[0].config
    assert executor_parameters(config)[key] == 0.3

    _, options = configured_executor(with_parameter(config, key, 0.6))
    assert isinstance(options, SimulatedOptions)
    assert options.measured is not None
    assert options.measured.switch.sleep_s == 0.6
