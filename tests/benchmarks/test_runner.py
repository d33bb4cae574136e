"""Jobs in this process and in others: the same reports, and failures as values."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from tests.benchmarks.small_world import report, small_scenario, write_policies

from swingshift.benchmarks import runner
from swingshift.benchmarks.result import jobs_of
from swingshift.benchmarks.runner import Job, JobFailure, available_cores, run_job, run_jobs
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig


@pytest.fixture
def jobs(tmp_path: Path) -> tuple[Job, ...]:
    """Return the four jobs of the small scenario."""
    return jobs_of(small_scenario(tmp_path))


def test_processes_change_nothing(jobs: tuple[Job, ...]) -> None:
    """Runs in two processes give the very reports of runs in this one, in the order of the jobs."""
    here = run_jobs(jobs, workers=1)
    elsewhere = run_jobs(jobs, workers=2)
    assert here == elsewhere
    assert all(isinstance(result, RunReport) for result in here)
    assert len({result.wall_clock_s for result in here if isinstance(result, RunReport)}) == 4


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_grows_to_the_end(jobs: tuple[Job, ...], workers: int) -> None:
    """Shares never fall, and the last word is that everything is done."""
    told: list[tuple[float, int, int]] = []
    run_jobs(jobs, workers=workers, on_progress=lambda *state: told.append(state))
    assert told == sorted(told)
    assert told[0] == (0.0, 0, 4)
    assert list(told[-1]) == pytest.approx([1.0, 4, 4])


def test_every_sample_is_trained_or_unused(jobs: tuple[Job, ...]) -> None:
    """In every run the two add up to the prompts there are."""
    for result in run_jobs(jobs, workers=1):
        assert isinstance(result, RunReport)
        assert result.trained_samples + result.unused_samples == 44


def test_a_log_is_written_on_request(jobs: tuple[Job, ...], tmp_path: Path) -> None:
    """The run's events are in the file that was named."""
    log = tmp_path / "run.jsonl"
    run_job(attrs.evolve(jobs[0], log=log), lambda share: None)
    assert '"run_ended"' in log.read_text(encoding="utf-8").splitlines()[-1]


def test_a_log_goes_on_in_another_file(
    jobs: tuple[Job, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of it grows beyond what the help promises."""
    assert runner.SEGMENT_BYTES == 256 * 1024 * 1024
    monkeypatch.setattr(runner, "SEGMENT_BYTES", 20_000)
    run_job(attrs.evolve(jobs[0], log=tmp_path / "logs.jsonl"), lambda share: None)
    sizes = [path.stat().st_size for path in tmp_path.glob("logs*.jsonl")]
    assert len(sizes) > 1
    assert max(sizes) <= 20_000


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"request_deadline_s": 5.0}, "runtime.request_deadline_s"),
        (
            {"switch_step_deadline_s": 0.25, "sync_deadline_s": 0.25},
            "runtime.switch_step_deadline_s or runtime.sync_deadline_s",
        ),
    ],
)
def test_a_short_deadline_is_named_by_its_key(
    jobs: tuple[Job, ...], changes: dict[str, float], keys: str
) -> None:
    """One line says what took too long and what to raise; there is no traceback to read."""
    config = jobs[0].config
    config = attrs.evolve(config, runtime=attrs.evolve(config.runtime, **changes))  # type: ignore[arg-type]
    failure = run_job(attrs.evolve(jobs[0], config=config), lambda share: None)
    assert isinstance(failure, JobFailure)
    assert failure.reason.endswith(f"; raise {keys}")
    assert (failure.details, failure.is_user_error) == ("", False)


def test_a_policy_that_raises_is_a_failure_with_its_line(
    jobs: tuple[Job, ...], tmp_path: Path
) -> None:
    """The reason names the question, and the details the line of the policy's own file."""
    job = attrs.evolve(jobs[1], policy=f"{write_policies(tmp_path)}:Broken")
    failure = run_job(job, lambda share: None)
    assert isinstance(failure, JobFailure)
    assert (failure.job, failure.is_user_error) == ("lending, seed 0", False)
    assert "should_activate_after_step" in failure.reason
    assert "policies_of_mine.py" in failure.details
    assert "return 1 / 0" in failure.details


def test_a_refused_configuration_is_the_user_s(jobs: tuple[Job, ...]) -> None:
    """It can be told from a fault of the system."""
    failure = run_job(attrs.evolve(jobs[1], policy="defalt"), lambda share: None)
    assert isinstance(failure, JobFailure)
    assert failure.is_user_error
    assert "unknown policy 'defalt'" in failure.reason


def test_a_run_that_failed_is_no_report(
    jobs: tuple[Job, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures of a run that did not get to its end are not averaged with others."""

    def fail(config: RunConfig, **rest: object) -> RunReport:
        return attrs.evolve(report(), outcome=RunOutcome.FAILED, reason="no replica")

    monkeypatch.setattr(runner, "execute", fail)
    failure = run_job(jobs[0], lambda share: None)
    assert failure == JobFailure(job="fixed, seed 0", reason="no replica")


def test_a_fault_in_code_is_a_failure_with_its_traceback(
    jobs: tuple[Job, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the user from another process as it does from this one."""

    def fail(config: RunConfig, **rest: object) -> RunReport:
        raise KeyError("gone")

    monkeypatch.setattr(runner, "execute", fail)
    failure = run_job(jobs[0], lambda share: None)
    assert isinstance(failure, JobFailure)
    assert failure.reason == "KeyError: 'gone'"
    assert "Traceback" in failure.details


def test_an_interrupt_ends_every_process(jobs: tuple[Job, ...]) -> None:
    """Whatever comes out of the progress call comes out of `run_jobs`, at once."""

    def interrupt(share: float, ended: int, count: int) -> None:
        if share or ended:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs * 20, workers=2, on_progress=interrupt)


def test_workers_share_what_they_did(
    jobs: tuple[Job, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker writes into its job's place of the memory that it was given."""
    shares: dict[int, float] = {}
    monkeypatch.setattr(runner, "_shares", {})
    runner._prepare_worker(shares)
    assert isinstance(runner._run_in_worker(3, jobs[0]), RunReport)
    assert shares == {3: 1.0}


def test_cores_are_counted_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems that do not tell which cores a process may use tell how many there are."""
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert available_cores() == 1
