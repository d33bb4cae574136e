"""The sensitivity study: what it runs, what it reports, what it says about limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.small_world import report, small_scenario

from swingshift.benchmarks import sensitivity
from swingshift.benchmarks.runner import Job, JobFailure, OnProgress, run_jobs
from swingshift.benchmarks.scenario import Scenario
from swingshift.benchmarks.scenario_section import SensitivitySection
from swingshift.benchmarks.sensitivity import Sensitivity, study_sensitivity
from swingshift.executors.runtime.run import RunReport

pytestmark = pytest.mark.slow

MFU = "executor.training.mfu"
NETWORK = "executor.transfer.network_efficiency"


def study(scenario: Scenario, section: SensitivitySection | None = None) -> Sensitivity:
    """Return the study of a scenario, made in this process."""
    asked = section or scenario.section.sensitivity
    assert asked is not None
    found = study_sensitivity(scenario, asked, workers=1)
    assert isinstance(found, Sensitivity)
    return found


def test_a_parameter_that_matters_moves_the_reduction(tmp_path: Path) -> None:
    """Slower training makes waiting rarer: the two directions differ, largest effect first."""
    found = study(small_scenario(tmp_path))
    assert [row.key for row in found.rows] == [MFU, NETWORK]
    mfu, network = found.rows
    assert (mfu.is_fitted, network.is_fitted) == (True, False)
    assert [mfu.lower.value, mfu.higher.value] == pytest.approx([0.24, 0.36])
    assert mfu.lower.reductions != mfu.higher.reductions
    assert mfu.largest >= network.largest > 0.0


def test_a_study_has_no_more_prompts_than_the_runs(tmp_path: Path) -> None:
    """A short run is not studied by longer ones, and the figures say how many there were."""
    section = SensitivitySection(prompts=2000, keys=(MFU,))
    assert study(small_scenario(tmp_path), section).section.prompts == 44


def test_a_section_stands_for_its_real_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers only move where they are named."""
    monkeypatch.setattr(sensitivity, "run_jobs", lambda jobs, **rest: (report(),) * len(jobs))
    layers = "executor.model.layers"
    section = SensitivitySection(keys=("executor.gpu", layers))
    found = study(small_scenario(tmp_path), section)
    assert {row.key.rpartition(".")[0] for row in found.rows} == {"executor.gpu", "executor.model"}
    assert len(found.rows) == 7


def test_limits_and_zeros_are_told(tmp_path: Path) -> None:
    """0.9 moves up to 1 and says so; what is 0 cannot move by a share of itself."""
    found = study(small_scenario(tmp_path))
    network = found.rows[1]
    assert (network.higher.value, network.higher.is_clipped) == (1.0, True)
    assert not network.lower.is_clipped
    assert found.zeros == ("executor.variation.noise_sigma",)


def test_without_keys_every_real_number_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers, such as layers and heads, stay as they are."""
    monkeypatch.setattr(sensitivity, "run_jobs", lambda jobs, **rest: (report(),) * len(jobs))
    found = study(small_scenario(tmp_path), SensitivitySection(prompts=8, seeds=2))
    keys = {row.key for row in found.rows}
    assert {MFU, NETWORK, "executor.cold_start_s", "executor.lengths.mean_tokens"} <= keys
    assert "executor.model.layers" not in keys


def test_a_variant_that_fails_is_a_row_without_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are still worth knowing."""

    def fail_one(
        jobs: list[Job], *, workers: int | None, on_progress: OnProgress | None
    ) -> tuple[RunReport | JobFailure, ...]:
        results = list(run_jobs(jobs, workers=1))
        results[2] = JobFailure(job=jobs[2].name, reason="no replica")
        return tuple(results)

    monkeypatch.setattr(sensitivity, "run_jobs", fail_one)
    found = study(small_scenario(tmp_path))
    failed = next(row for row in found.rows if row.key == MFU)
    assert failed.lower.reductions is None
    assert failed.lower.problem == "no replica"
    assert failed.higher.reductions is not None


def test_without_the_scenario_s_own_values_there_is_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There would be nothing to compare with."""
    failure = JobFailure(job="x", reason="no replica")
    monkeypatch.setattr(sensitivity, "run_jobs", lambda jobs, **rest: (failure,) * len(jobs))
    scenario = small_scenario(tmp_path)
    assert study_sensitivity(scenario, SensitivitySection(keys=(MFU,))) == failure
