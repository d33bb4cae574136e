"""What is kept of a run while it goes on, and how it is shown."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from rich.console import Console
from tests.executors.support import run_training

from swingshift.executors.app.live_view import LiveView
from swingshift.executors.app.plain_view import PlainView
from swingshift.executors.app.run_tally import MetricRow, RunTally
from swingshift.executors.app.train_config import example_names, load_plan
from swingshift.executors.app.train_wording import duration, percent, sparkline
from swingshift.sdk.config import ExecutorSection
from swingshift.sdk.events import (
    Advisory,
    BatchCollected,
    BatchTrained,
    CycleEnded,
    Event,
    GpuStateChanged,
    RunEnded,
    RunStarted,
    SampleQueued,
    ValidationEnded,
)
from swingshift.sdk.metrics import GpuState

METRICS = {"perf/time_per_step": 4.0, "perf/total_num_tokens": 1000.0}


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def started(trainers: int = 1, total: int = 40) -> RunStarted:
    """Return the first event of a run with one rollout GPU."""
    gpus = tuple(f"trainer-{i}" for i in range(trainers))
    return RunStarted("x", "none", gpus, ("rollout-0",), {}, {}, {}, 4, 2, 8, 4, 2, total)


def trained(batch: int, reward: float) -> BatchTrained:
    """Return the event of a batch of eight responses, three of them stale and two partial."""
    return BatchTrained(batch, 0, {}, {"reward/mean": reward, "kl": 1.0}, 1, 3, 2, 5 - batch, 8, 99)


def collected(batch: int) -> BatchCollected:
    """Return the event of a batch of four samples."""
    return BatchCollected(batch, (0, 1, 2, 3), 0.0, 0)


def queued(size: int) -> SampleQueued:
    """Return the event of a sample that made the queue so long."""
    return SampleQueued(0, 0, size, 1.0, 1, 1, 1, 0, 0, 0)


def feed(tally: RunTally, *events: tuple[float, Event]) -> None:
    """Give events at times."""
    for sequence, (t_s, event) in enumerate(events):
        tally.write(sequence, t_s, event)


CYCLE: tuple[tuple[float, Event], ...] = (
    (10.0, started()),
    (10.0, GpuStateChanged(("rollout-0",), "rollout")),
    (11.0, queued(5)),
    (12.0, collected(0)),
    (12.0, GpuStateChanged(("trainer-0",), "train")),
    (14.0, trained(0, 0.2)),
    (14.0, collected(1)),
    (18.0, trained(1, 0.4)),
    (18.0, GpuStateChanged(("trainer-0",), "rollout_idle")),
    (20.0, CycleEnded(1, METRICS)),
)


def test_a_tally_counts_what_was_trained() -> None:
    """Worked out by hand; the algorithm's metrics are averaged over the cycle."""
    rows: list[MetricRow] = []
    tally = RunTally()
    tally.on_row = rows.append
    feed(tally, *CYCLE)

    assert (tally.trained, tally.total, tally.trajectories, tally.version) == (8, 40, 16, 1)
    assert (tally.stale_samples, tally.stale_trajectories) == (2, 6)
    assert (tally.partial_trajectories, tally.max_partial_span) == (4, 5)
    assert tally.rewards == [pytest.approx(0.3)]
    assert tally.tokens_per_s == 250.0
    (row,) = rows
    assert (row.version, row.t_s) == (1, 10.0)
    assert row.metrics == {**METRICS, "kl": 1.0, "reward/mean": pytest.approx(0.3)}


def test_averages_begin_anew_with_each_cycle() -> None:
    """What a cycle does not report is not carried over."""
    tally = RunTally()
    feed(tally, *CYCLE, (21.0, collected(2)), (22.0, trained(2, 0.9)), (23.0, CycleEnded(2, {})))
    feed(tally, (24.0, CycleEnded(3, {})))

    assert tally.rewards == [pytest.approx(0.3), 0.9]
    assert tally.latest == {}
    assert tally.tokens_per_s == 0.0


def test_a_tally_knows_what_every_gpu_does_and_since_when() -> None:
    """Between events real time runs on; the useful share is that of training and generating."""
    clock = Clock()
    tally = RunTally(now_s=clock)
    feed(tally, *CYCLE)
    clock.now_s += 2.0
    trainer, rollout = tally.gpus().values()

    assert (trainer.is_trainer, trainer.state, trainer.for_s) == (True, GpuState.ROLLOUT_IDLE, 4.0)
    assert (rollout.is_trainer, rollout.state, rollout.for_s) == (False, GpuState.ROLLOUT, 12.0)
    assert (trainer.useful, rollout.useful) == pytest.approx((6 / 12, 1.0))
    tally.is_simulated = True
    assert tally.gpus()["trainer-0"].for_s == 2.0


def test_the_rest_is_estimated_from_the_pace_since_the_start() -> None:
    """Bringing the executor up does not count, and is not repeated."""
    clock = Clock()
    tally = RunTally(now_s=clock)
    clock.now_s += 30.0
    assert (tally.remaining_s, tally.elapsed_s) == (None, 30.0)
    feed(tally, CYCLE[0])
    clock.now_s += 6.0
    feed(tally, *CYCLE[1:])

    assert tally.elapsed_s == 36.0
    assert tally.remaining_s == pytest.approx(6.0 * 32 / 8)


def test_the_tally_agrees_with_the_report_of_a_run() -> None:
    """It hears the same events as everybody else."""
    tally = RunTally()
    report = run_training(event_sinks=[tally]).report

    assert (tally.trained, tally.cycles) == (report.trained_samples, len(report.cycles))
    assert tally.run_s == report.wall_clock_s
    assert tally.gpu_seconds() == pytest.approx(report.gpu_seconds)
    assert tally.latest == report.cycles[-1]


def screen(*, width: int = 90, terminal: bool = True) -> Console:
    """Return a console that writes to a string."""
    return Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False)


def shown(console: Console) -> str:
    """Return what a console wrote, without colours."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def drawn(tally: RunTally) -> list[str]:
    """Return the lines of the view."""
    console = screen(terminal=False)
    console.print(LiveView("copy-1", tally, console).render())
    return [line.rstrip() for line in shown(console).splitlines()]


def test_the_view_shows_how_far_how_good_and_who_does_what() -> None:
    """A trainer's GPU that generates is lent."""
    clock = Clock()
    tally = RunTally(now_s=clock)
    assert drawn(tally) == ["copy-1   starting   0.0 s"]
    feed(tally, *CYCLE, (20.0, queued(3)))
    clock.now_s += 4.0
    lines = drawn(tally)

    assert lines[0] == "copy-1   running   4.0 s, about 16.0 s left"
    assert lines[1:3] == ["version     1 after 0 fit steps", "reward      0.300  ▁  0.300 to 0.300"]
    assert lines[3].endswith("8 of 40 trained")
    assert lines[4] == "queue       3 samples; a fit step takes 4"
    assert lines[5] == "last cycle    250 tokens/s trained"
    assert lines[7].split() == ["device", "state", "for", "useful"]
    assert [" ".join(line.split()) for line in lines[9:11]] == [
        "trainer-0 rollout_idle lent: serves, has no request 6.0 s 43 %",
        "rollout-0 rollout generates 14.0 s 100 %",
    ]


def test_time_of_a_simulation_is_called_so() -> None:
    """Nobody is to take it for their own."""
    tally = RunTally()
    tally.is_simulated = True
    feed(tally, *CYCLE)
    lines = drawn(tally)

    assert " for 10.0 s of simulated time" in lines[0]
    assert any("for, simulated" in line for line in lines)


def test_many_devices_are_shown_in_groups() -> None:
    """One row for those of a side that do the same, with the time of the last to join."""
    tally = RunTally(now_s=Clock())
    feed(
        tally,
        (0.0, started(trainers=16)),
        (1.0, GpuStateChanged(tuple(f"trainer-{i}" for i in range(10)), "train")),
        (3.0, GpuStateChanged(("trainer-15",), "idle")),
        (5.0, GpuStateChanged(("trainer-9",), "sync")),
        (5.0, RunEnded("failed", "", 0, 0, 0)),
    )
    rows = [line.split() for line in drawn(tally)[7:] if line]
    assert [(row[0], row[2]) for row in rows] == [
        ("9", "train"),
        ("1", "sync"),
        ("6", "idle"),
        ("1", "idle"),
    ]
    assert [row[-4] for row in rows] == ["4.0", "0.0", "2.0", "5.0"]


def test_messages_stand_above_the_view_and_handlers_are_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A warning in the middle of a run does not tear what is drawn."""
    real = io.StringIO()
    monkeypatch.setattr(real, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", real)
    handler = logging.StreamHandler(real)
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    console = screen()
    view = LiveView("copy-1", RunTally(), console)
    with view:
        logging.getLogger("swingshift").warning("out of the way")
        view.write(0, 0.0, Advisory("worth [knowing]"))
        view.write(1, 0.0, ValidationEnded(3, 7, 8, 0.5, 1.0))

    lines = [line.strip() for line in shown(console).splitlines()]
    assert "out of the way" in lines
    assert "advisory: worth [knowing]" in lines
    assert "validation of version 3: mean reward 0.500, 7 of 8 prompts answered" in lines
    assert (handler.stream, real.getvalue(), sys.stderr) == (real, "", real)


def plain(events: Iterable[tuple[float, Event]], *, is_quiet: bool = False) -> list[str]:
    """Return the lines of the plain view."""
    console, tally = screen(terminal=False), RunTally(now_s=Clock())
    view = PlainView(tally, console, is_quiet=is_quiet)
    with view:
        for sequence, (t_s, event) in enumerate(events):
            tally.write(sequence, t_s, event)
            view.write(sequence, t_s, event)
    view.leave()
    return shown(console).splitlines()


def test_plain_lines_are_never_broken() -> None:
    """One for each cycle, validation and advisory."""
    utilization = {
        f"dynamic_resource/{name}resource_utilization": share
        for name, share in (("train_", 0.5), ("rollout_", 1.0), ("", 0.75))
    }
    events = (
        *CYCLE[:-1],
        (20.0, CycleEnded(1, {**METRICS, **utilization})),
        (20.0, Advisory("worth knowing")),
        (20.0, ValidationEnded(1, 0, 8, None, 1.0)),
    )
    assert plain(events) == [
        "version 1  reward 0.300  trained 8/40  queue 0/4  train 50 %  rollout 100 %  cluster 75 %"
        "  250 tokens/s  0.0 s, about 0.0 s left",
        "advisory: worth knowing",
        "validation of version 1: mean reward no, 0 of 8 prompts answered",
    ]
    assert plain(events, is_quiet=True) == []


def test_a_validation_is_a_row_of_its_own() -> None:
    """It judges a version that has ended already."""
    rows: list[MetricRow] = []
    tally = RunTally()
    tally.on_row = rows.append
    feed(
        tally,
        *CYCLE,
        (21.0, ValidationEnded(1, 8, 8, 0.75, 1.0)),
        (22.0, ValidationEnded(2, 0, 8, None, 1.0)),
    )
    assert [(row.version, row.metrics.get("validation/mean_reward")) for row in rows[1:]] == [
        (1, 0.75),
        (2, None),
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60.0, "1:00"), (3599.4, "59:59"), (3723.0, "1:02:03")],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    """In the unit that says most."""
    assert duration(seconds) == words
    assert percent(seconds / 1e4) == f"{seconds / 100:.0f} %"


def test_sparklines_show_a_course() -> None:
    """From the least to the most; more values than fit are averaged."""
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([0.0, 0.5, 1.0], 10, ascii_only=True) == "_+@"
    assert sparkline([3.0, 3.0], 10) == "▁▁"
    assert sparkline([], 10) == ""
    assert sparkline([0.0, 0.0, 1.0, 1.0, 2.0], 2) == "▁█"
    assert len(sparkline(list(range(1000)), 40)) == 40


def test_every_packaged_example_loads_and_runs_on_the_local_executor() -> None:
    """By its name alone; what it says is checked with the executor's own tests."""
    for name in example_names():
        plan = load_plan(name, ["seed=7"])
        assert (plan.name, plan.config.executor.name, plan.config.seed) == (name, "local", 7)


def test_a_file_that_names_no_executor_gets_the_local_one(tmp_path: Path) -> None:
    """One that names another keeps it."""
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\n")

    def executor(*overrides: str) -> ExecutorSection:
        return load_plan(str(path), overrides).config.executor

    assert executor() == ExecutorSection(name="local")
    assert executor("executor.device=cuda").name == "local"
    assert executor("executor.name=simulated") == ExecutorSection(name="simulated")
    assert load_plan(str(path)).name == "mine"
