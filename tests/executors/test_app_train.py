"""The command ``train``: what it shows, the files it leaves, how it ends."""

from __future__ import annotations

import json
import logging
import struct
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tensorboardX.proto import event_pb2  # type: ignore[import-untyped]

from swingshift.executors.app.cli import main
from swingshift.executors.app.run_log import read_run_log, recompute
from swingshift.sdk.events import RunEnded, RunStarted
from swingshift.sdk.metrics import METRICS

SCENARIO = "templates/scenario.yaml.template"
POINTS = (
    "[swingshift.executors]\n"
    "saving = tests.executors.train_world:SavingAdapter\n"
    "real_time = tests.executors.train_world:RealTimeAdapter\n"
)


class Outcome:
    """What a command came to."""

    def __init__(self, status: object, out: str, err: str) -> None:
        self.status = status or 0
        self.out = out
        self.lines = out.splitlines()
        self.errors = err.splitlines()


Train = Callable[..., Outcome]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder that has a small scenario, with the executors of the test world."""
    place = tmp_path / "work"
    place.mkdir()
    info = tmp_path / "train_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: train-world\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "100")
    text = (files("swingshift.executors.app") / SCENARIO).read_text(encoding="utf-8")
    small = OmegaConf.create(text)
    OmegaConf.update(small, "rollout.total_rollout_steps", 200)
    OmegaConf.update(small, "executor.name", "saving")
    OmegaConf.save(small, place / "small.yaml")
    yield place
    logging.getLogger("swingshift").setLevel(logging.NOTSET)


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Train:
    """Return a function that runs the command in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["swingshift", "train", *arguments])
        # as in a process of its own, whatever handlers the test runner has
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        with pytest.raises(SystemExit) as end:
            main()
        return Outcome(end.value.code, *capsys.readouterr())

    return run


def summary(directory: str) -> dict[str, Any]:
    """Return the summary of a run."""
    found: dict[str, Any] = json.loads(Path(directory, "summary.json").read_text())
    return found


def metric_lines(directory: str) -> list[dict[str, float]]:
    """Return the metrics of a run."""
    lines = Path(directory, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def scalars(directory: str) -> dict[tuple[int, str], float]:
    """Return what a run's TensorBoard files hold: length, checksum, event, checksum; again."""
    (path,) = Path(directory).glob("events.out.tfevents.*")
    data, found = path.read_bytes(), dict[tuple[int, str], float]()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        for value in event.summary.value:
            found[event.step, value.tag] = value.simple_value
        data = data[16 + length :]
    return found


def test_a_run_shows_each_cycle_and_what_it_came_to(train: Train) -> None:
    """Where there is no terminal, in lines; the good end is status 0."""
    shown = train("small.yaml")

    assert (shown.status, shown.errors) == (0, [])
    assert shown.lines[0] == "small-1: files go to runs/small-1"
    cycles = [line for line in shown.lines if line.startswith("version ")]
    assert [line.split("  ")[2] for line in cycles] == [f"trained {n}/200" for n in (64, 128, 192)]
    assert "version 2  reward 0.550  trained 128/200  queue " in shown.out
    assert " %  rollout " in cycles[0]
    assert " of simulated time, about " in cycles[0]
    assert "small-1 done: all data is trained" in shown.lines
    assert "192 of 200 trained, 8 unused, 0 of them given up" in shown.out
    assert "0.150 in the first cycle, 0.950 in the last" in shown.out
    assert "runs/small-1/model" in shown.out
    assert "tensorboard --logdir runs/small-1" in shown.out


def test_a_run_leaves_its_files(train: Train) -> None:
    """All of them say the same."""
    train("small.yaml")
    found, run = summary("runs/small-1"), recompute(Path("runs/small-1/run.jsonl"))

    names = {path.name.partition(".")[0] for path in Path("runs/small-1").iterdir()}
    assert names == {"config", "events", "metrics", "model", "run", "summary"}
    assert (found["outcome"], found["model"], found["cycles"]) == ("exhausted", "saved", 3)
    assert found["wall_clock_s"] == run.wall_clock_s
    assert found["gpu_seconds"] == {state.value: s for state, s in run.gpu_seconds.items()}
    lines = metric_lines("runs/small-1")
    assert [line["version"] for line in lines] == [1, 2, 3]
    for line, cycle in zip(lines, run.cycles, strict=True):
        assert line.items() >= cycle.items()
    assert (
        sum(line["fully_async/partial/total_partial_num"] for line in lines)
        <= (found["partial_trajectories"])
    )


def test_tensorboard_has_every_metric_under_its_own_name(train: Train) -> None:
    """Those of the algorithm too, averaged over the fit steps of the cycle."""
    train("small.yaml")
    seen, lines = scalars("runs/small-1"), metric_lines("runs/small-1")

    expected = {
        (int(line["version"]), name): value
        for line in lines
        for name, value in line.items()
        if name not in ("version", "t_s")
    }
    assert seen == pytest.approx(expected, rel=1e-6)
    assert {name for version, name in seen if version == 1} == {
        *METRICS,
        "reward/mean",
        "actor/loss@1",
    }
    assert seen[2, "reward/mean"] == pytest.approx((0.4 + 0.5 + 0.6 + 0.7) / 4)


def test_without_the_writer_one_warning_says_what_to_install(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without those files."""
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    shown = train("small.yaml", "rollout.total_rollout_steps=64")

    assert shown.status == 0
    (line,) = shown.errors
    assert line.startswith("warning: no TensorBoard files: ")
    assert line.endswith("install the writer: pip install 'swingshift[local]'")
    assert "tensorboard" not in shown.out
    assert summary("runs/small-1")["tensorboard"] == ""


def test_its_configuration_runs_the_same_again(train: Train) -> None:
    """Overrides, the policy and every default of the executor's are in it."""
    train("small.yaml", "seed=3", "--policy", "fixed_ratio", "--quiet")
    written = OmegaConf.load("runs/small-1/config.yaml")
    train("runs/small-1/config.yaml", "--out", "again", "--quiet")

    assert written.executor.decode.bandwidth_efficiency > 0
    assert written.async_training.dynamic_schedule_policy == "fixed_ratio"
    assert summary("again")["policy"] == "FixedRatioDynamicSchedulePolicy"
    first, again = (Path(run, "run.jsonl").read_text() for run in ("runs/small-1", "again"))
    assert first.replace('"run":"small-1"', "") == again.replace('"run":"again"', "")


def test_no_folder_is_written_to_twice(train: Train) -> None:
    """Runs are numbered; a folder that was asked for must be new or empty."""
    short = ("small.yaml", "rollout.total_rollout_steps=64", "--quiet")
    Path("runs/small-7").mkdir(parents=True)
    Path("runs/small-old").mkdir()
    train(*short)
    train(*short)
    assert {path.name for path in Path("runs").iterdir()} == {
        *("small-7", "small-8", "small-9", "small-old")
    }
    refused = train(*short, "--out", "runs/small-8")
    assert refused.status == 2
    assert refused.errors == [
        "error: --out runs/small-8: not empty; name a folder that is new or empty"
    ]
    assert train(*short, "--out", "small.yaml").errors == [
        "error: small.yaml: cannot be written: File exists; name another place with --out"
    ]


def test_quiet_shows_the_summary_alone(train: Train) -> None:
    """For scripts that run many."""
    shown = train("small.yaml", "--quiet")
    assert shown.lines[0] == "small-1 done: all data is trained"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("smal",), "unknown example 'smal'"),
        (("small.yml",), "configuration file small.yml: No such file or directory"),
        (("small.yaml", "sed=1"), "sed: unknown key (value 1); did you mean 'seed'?"),
        (("small.yaml", "executor.name=savin"), "executor.name: unknown executor 'savin'"),
        (("small.yaml", "executor.gpus=1"), "executor.gpus: unknown key (value 1)"),
        (("small.yaml", "--policy", "defalt"), "unknown policy 'defalt'; did you mean 'default'?"),
        (("small.yaml", "seed=13"), "seed: 13 is not allowed here; take another"),
        ((), "CONFIG_OR_EXAMPLE: missing"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_leaves_nothing(
    train: Train, arguments: tuple[str, ...], line: str
) -> None:
    """Status 2; also where only the executor finds out."""
    refused = train(*arguments)

    assert refused.status == 2
    assert len(refused.errors) == 1
    assert refused.errors[0].startswith(f"error: {line}")
    assert not any(Path("runs").glob("*"))


def test_a_run_that_fails_says_why_in_one_line(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 1; the traceback is in a file, the model is saved all the same."""
    monkeypatch.setenv("FIT", "fail")
    shown = train("small.yaml")

    assert shown.status == 1
    assert shown.errors == ["error: run small-1 failed: the trainer of gpu 0 is gone"]
    assert "small-1 failed: the trainer of gpu 0 is gone" in shown.lines
    assert "Traceback" in Path("runs/small-1/log.txt").read_text()
    assert (summary("runs/small-1")["outcome"], summary("runs/small-1")["model"]) == (
        "failed",
        "saved",
    )


def test_a_fault_that_is_raised_fails_the_run_too(train: Train) -> None:
    """A deadline on modelled time, with the key that would allow more."""
    shown = train("small.yaml", "runtime.request_deadline_s=0.5")

    assert shown.status == 1
    assert len(shown.errors) == 1
    assert shown.errors[0].endswith("; raise runtime.request_deadline_s")
    events = [event for _, _, event in read_run_log(Path("runs/small-1/run.jsonl"))]
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], RunEnded)
    assert events[-1].outcome == "failed"


def test_debugging_shows_the_traceback(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the terminal as well as in the file."""
    monkeypatch.setenv("FIT", "fail")
    logging.getLogger("swingshift").setLevel(logging.DEBUG)
    assert any("Traceback" in line for line in train("small.yaml", "--quiet").errors)


def test_a_model_that_cannot_be_saved_is_a_failure(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How the run ended stays as it is; the exit status and a line tell."""
    monkeypatch.setenv("SAVE", "fail")
    shown = train("small.yaml", "--quiet")

    assert shown.status == 1
    assert shown.errors == ["error: before run small-1 stops: the disk is full"]
    assert "not saved; see runs/small-1/log.txt" in shown.out
    found = summary("runs/small-1")
    assert (found["outcome"], found["model"]) == ("exhausted", "not saved")
    assert "model" not in found["files"]


def test_help_shows_an_example(train: Train) -> None:
    """A line to copy, and the names there are."""
    shown = train("--help")
    assert shown.status == 0
    assert "Example: swingshift train copy" in shown.out
    assert "Packaged: " in shown.out
