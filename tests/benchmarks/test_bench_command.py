"""``swingshift bench`` from end to end, in a small world."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from rich.console import Console
from tests.benchmarks.small_world import BENCHMARK, WORLD, write_policies, write_scenario
from typer.testing import CliRunner, Result

from swingshift.benchmarks import session
from swingshift.benchmarks.command import register
from swingshift.benchmarks.document import RunDocument
from swingshift.benchmarks.progress import showing_progress
from swingshift.benchmarks.runner import JobFailure
from swingshift.benchmarks.scenario import load_scenario
from swingshift.benchmarks.session import Outputs, Session
from swingshift.sdk.errors import UserError


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the runs in this process: starting others takes longer than the runs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})


def bench(*arguments: str) -> Result:
    """Call the command and return what came of it."""
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, list(arguments))


def document(path: Path) -> dict[str, RunDocument]:
    """Return the runs of a written result, by name."""
    runs: list[RunDocument] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return {run["name"]: run for run in runs}


def test_a_scenario_is_run_shown_and_written(tmp_path: Path) -> None:
    """In full: tables, the sensitivity study, the report, the document, exit status 0."""
    out, file = tmp_path / "report", tmp_path / "deep" / "result.json"
    shown = bench(write_scenario(tmp_path), "--out", str(out), "--json", str(file))
    assert shown.exit_code == 0, shown.output
    for words in ("A small world.", "Trained samples", "training.mfu (fitted)", "All 3 thresholds"):
        assert words in shown.output
    assert "running: 4/4 runs" in shown.stderr
    assert (out / "summary.md").is_file()
    runs = document(file)
    assert runs.keys() == {"fixed", "lending"}
    assert all(
        run["trained_samples"]["mean"] + run["unused_samples"]["mean"] == 44
        for run in runs.values()
    )


def test_one_command_gives_one_result(tmp_path: Path) -> None:
    """The same seeds give the same document, an override another one."""
    scenario, files = write_scenario(tmp_path), [tmp_path / name for name in "abc"]
    bench(scenario, "--quick", "--json", str(files[0]))
    bench(scenario, "--quick", "--json", str(files[1]))
    bench(scenario, "--quick", "executor.training.mfu=0.1", "--json", str(files[2]))
    first, second, third = (file.read_text(encoding="utf-8") for file in files)
    assert first == second
    assert first != third


def test_a_policy_from_a_file_takes_part(tmp_path: Path) -> None:
    """It replaces the policy of the run that lends, and changes what comes out."""
    scenario, policy = write_scenario(tmp_path), f"{write_policies(tmp_path)}:NeverLend"
    mine, own = tmp_path / "mine.json", tmp_path / "own.json"
    shown = bench(scenario, "--quick", "--policy", policy, "--json", str(mine))
    bench(scenario, "--quick", "--json", str(own))
    assert shown.exit_code == 0, shown.output
    assert document(mine)["lending"]["policy"] == policy
    assert document(mine)["lending"]["wall_clock_s"] != document(own)["lending"]["wall_clock_s"]
    assert document(mine)["fixed"] == document(own)["fixed"]


def test_a_policy_that_fails_ends_with_status_1_and_its_line(tmp_path: Path) -> None:
    """The reason and the line of the policy are shown; there are no figures."""
    shown = bench(
        write_scenario(tmp_path), "--quick", "--policy", f"{write_policies(tmp_path)}:Broken"
    )
    assert shown.exit_code == 1
    assert "run lending, seed 0 failed: Broken.should_activate_after_step raised" in shown.stderr
    assert "return 1 / 0" in shown.stderr
    assert "Trained samples" not in shown.output


@pytest.mark.parametrize(("arguments", "status"), [((), 1), (("--quick",), 0), (("seed=3",), 0)])
def test_a_missed_threshold_counts_for_the_scenario_as_written(
    tmp_path: Path, arguments: tuple[str, ...], status: int
) -> None:
    """A full run that misses what it promises has exit status 1; any other is for orientation."""
    promise = "published: 0.9, tolerance: 0.0"
    text = (WORLD + BENCHMARK).replace("published: 0.2, tolerance: 0.9", promise)
    shown = bench(write_scenario(tmp_path, text), *arguments)
    assert shown.exit_code == status
    assert "1 of 3 thresholds do not hold." in shown.output
    assert ("They were set for the scenario" in shown.output) is (status == 0)


def test_a_file_without_a_section_is_compared_with_its_static_twin(tmp_path: Path) -> None:
    """Nothing was published, so nothing is judged."""
    shown = bench(write_scenario(tmp_path, WORLD), "--seeds", "1")
    assert shown.exit_code == 0
    assert "Wall clock vs static" in shown.output
    assert "thresholds" not in shown.output


def test_a_single_run_is_just_shown(tmp_path: Path) -> None:
    """Without lending there is no comparison."""
    switch = "async_training.use_dynamic_resource_scheduling=false"
    shown = bench(write_scenario(tmp_path, WORLD), switch, "--seeds", "1")
    assert shown.exit_code == 0
    assert "Comparisons" not in shown.output


def test_logs_are_written_per_run_and_seed(tmp_path: Path) -> None:
    """Each has a name of its own."""
    bench(write_scenario(tmp_path), "--quick", "--log", str(tmp_path / "logs"))
    names = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert names == ["fixed-seed-0.jsonl", "lending-seed-0.jsonl"]


def test_mistakes_are_refused_before_anything_runs(tmp_path: Path) -> None:
    """They are left to the root command, which prints them as one line and exits with 2."""
    file = tmp_path / "file"
    file.touch()
    for arguments, words in (
        (("publishd",), "did you mean 'published'?"),
        ((write_scenario(tmp_path), "benchmark.seeds=0"), "benchmark.seeds: 0 is not allowed"),
        ((write_scenario(tmp_path), "--out", str(file / "x")), f"--out {file}/x: cannot be writ"),
        ((write_scenario(tmp_path), "--log", "/proc/logs"), "--log /proc/logs: cannot be written"),
        ((write_scenario(tmp_path), "--out", "/proc"), "--out /proc: cannot be written: "),
        ((write_scenario(tmp_path), "--json", str(tmp_path)), ": Is a directory; name another"),
        (
            (write_scenario(tmp_path), "--json", "/proc/x.json"),
            "--json /proc/x.json: cannot be wri",
        ),
    ):
        shown = bench(*arguments)
        assert isinstance(shown.exception, UserError)
        assert words in str(shown.exception)
        assert "running" not in shown.stderr


def test_a_place_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """An older result stays until the new one is there, and nothing is left of the trial."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}", encoding="utf-8")
    for file in (old, new):
        Outputs(json_file=file, report=tmp_path / "out", logs=tmp_path / "logs").prepare()
    assert {path.name for path in tmp_path.rglob("*")} == {"old.json", "out", "logs"}
    assert old.read_text(encoding="utf-8") == "{}"


def test_what_cannot_be_written_in_the_end_is_one_line(tmp_path: Path) -> None:
    """A folder that stands in the report's way is the user's to remove."""
    (tmp_path / "report" / "summary.md").mkdir(parents=True)
    error = bench(write_scenario(tmp_path), "--quick", "--out", str(tmp_path / "report")).exception
    assert isinstance(error, UserError)
    assert str(error).endswith("report: cannot be written: Is a directory; name another place")


def test_a_short_deadline_is_one_line_and_status_1(tmp_path: Path) -> None:
    """It stands for all runs that failed alike, and no traceback follows."""
    shown = bench(write_scenario(tmp_path), "--quick", "runtime.request_deadline_s=0.5")
    assert shown.exit_code == 1
    (line,) = (line for line in shown.stderr.splitlines() if "failed" in line)
    assert line.startswith("run fixed, seed 0 and 1 more failed: request ")
    assert line.endswith("raise runtime.request_deadline_s")
    assert "Traceback" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "is_studied"),
    [(("seed=3",), False), (("--quick",), False), (("--quick", "--sensitivity"), True)],
)
def test_a_study_beside_the_scenario_as_written_has_to_be_asked_for(
    tmp_path: Path, arguments: tuple[str, ...], is_studied: bool
) -> None:
    """Trying something out is not held up by it."""
    shown = bench(write_scenario(tmp_path), *arguments)
    assert shown.exit_code == 0, shown.output
    assert ("training.mfu (fitted)" in shown.output) is is_studied
    assert ("20 prompts per run" in shown.output) is is_studied


def test_an_interrupt_is_one_word_and_status_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No traceback."""

    def interrupt(*arguments: object, **rest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "run_jobs", interrupt)
    shown = bench(write_scenario(tmp_path))
    assert (shown.exit_code, shown.stderr.splitlines()[-1]) == (130, "interrupted")


def test_what_the_executor_refuses_is_the_user_s_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once, however many runs were refused."""
    failure = JobFailure(job="x", reason="memory: too little", is_user_error=True)
    monkeypatch.setattr(session, "run_jobs", lambda jobs, **rest: (failure,) * len(jobs))
    error = bench(write_scenario(tmp_path)).exception
    assert isinstance(error, UserError)
    assert str(error) == "memory: too little"


def test_a_study_that_fails_is_told_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are shown all the same."""
    failure = JobFailure(job="own values", reason="no replica")
    monkeypatch.setattr(session, "study_sensitivity", lambda *arguments, **rest: failure)
    shown = bench(write_scenario(tmp_path))
    assert shown.exit_code == 1
    assert "run own values failed: no replica" in shown.stderr
    assert "Trained samples" in shown.output


def test_progress_is_a_bar_in_a_terminal(tmp_path: Path) -> None:
    """With the runs that ended and the time left; it leaves nothing behind."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with showing_progress(console, "running") as tell:
        tell(0.0, 0, 4)
        tell(0.6, 2, 4)
    assert isinstance(console.file, io.StringIO)
    assert "2/4 runs, time left" in console.file.getvalue()


def test_progress_elsewhere_is_a_line_per_run_that_ended() -> None:
    """Nothing is drawn over, and a call without news prints nothing."""
    console = Console(file=io.StringIO(), width=100)
    with showing_progress(console, "running") as tell:
        tell(0.2, 0, 2)
        tell(0.5, 1, 2)
        tell(0.6, 1, 2)
        tell(1.0, 2, 2)
    assert isinstance(console.file, io.StringIO)
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("running: 1/2 runs, about ")
    assert second == "running: 2/2 runs"


def test_a_session_runs_in_other_processes_too(tmp_path: Path) -> None:
    """As it does for a user, and with the same result."""
    scenario = load_scenario(write_scenario(tmp_path), quick=True)
    shown = []
    for workers in (1, 2):
        screen = Console(file=io.StringIO(), width=100)
        status = Console(file=io.StringIO())
        assert Session(scenario, Outputs(), screen=screen, status=status, workers=workers).run()
        assert isinstance(screen.file, io.StringIO)
        shown.append(screen.file.getvalue())
    assert shown[0] == shown[1]
