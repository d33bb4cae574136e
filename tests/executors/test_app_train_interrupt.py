"""Ctrl-C and SIGTERM: the first one ends a run in order, the second one ends the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from swingshift.executors.app.interrupts import Interrupts
from swingshift.executors.app.run_log import read_run_log
from swingshift.sdk.events import RunEnded

pytestmark = pytest.mark.slow

# A process that was started in the background ignores SIGINT, and leaves it so.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from swingshift.executors.app.cli import main
main()
"""
REPOSITORY = Path(__file__).parents[2]
POINT = "[swingshift.executors]\nreal_time = tests.executors.train_world:RealTimeAdapter\n"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the command and waits until the executor does something."""
    info = tmp_path / "train_world-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: train-world\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINT)
    source = files("swingshift.executors.app") / "templates" / "scenario.yaml.template"
    scenario = OmegaConf.create(source.read_text(encoding="utf-8"))
    OmegaConf.update(scenario, "executor.name", "real_time")
    OmegaConf.save(scenario, tmp_path / "slow.yaml")
    processes: list[subprocess.Popen[str]] = []

    def begin(until: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "train", "slow.yaml", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "SAY": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        wait_for(process, until)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Read what a process prints until a line has these words."""
    assert process.stdout is not None
    assert any(words in line for line in iter(process.stdout.readline, ""))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_ends_the_run_in_order(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """The model is saved before the executor stops, the log is whole, status 130."""
    process = start("executor: generating")
    process.send_signal(number)
    out, err = process.communicate()

    assert (process.returncode, err) == (130, "")
    lines = [line for line in out.splitlines() if line != "executor: generating"]
    assert lines[0] == "interrupted: the run ends in order; once more to leave at once"
    assert lines[1:4] == [
        "executor: saving",
        "executor: stopping",
        f"slow-1 interrupted: {number.name}",
    ]
    run = tmp_path / "runs" / "slow-1"
    found = json.loads((run / "summary.json").read_text())
    assert (found["outcome"], found["reason"]) == ("interrupted", number.name)
    assert (run / "model" / "weights").read_text() == "trained"
    *_, (_, _, last) = read_run_log(run / "run.jsonl")
    assert isinstance(last, RunEnded)
    assert (last.outcome, last.reason) == ("failed", "cancelled")


def test_a_signal_while_the_model_is_saved_waits_for_it(start: Start, tmp_path: Path) -> None:
    """The run had ended by itself, so that this is what it says."""
    short = ("rollout.total_rollout_steps=1", "executor.lengths.mean_tokens=40")
    process = start("executor: saving", *short, SAVE="slow")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 0
    assert "slow-1 done: all data is trained" in out
    assert (tmp_path / "runs" / "slow-1" / "model" / "weights").exists()


def test_the_second_signal_ends_the_process(start: Start, tmp_path: Path) -> None:
    """Whatever hangs; nothing is written any more."""
    process = start("executor: generating", SAVE="hang")
    process.send_signal(signal.SIGINT)
    wait_for(process, "executor: saving")
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate()

    assert process.returncode == 130
    assert "executor: stopping" not in out
    assert not (tmp_path / "runs" / "slow-1" / "summary.json").exists()


def test_a_signal_that_came_before_the_run_cancels_it_at_once() -> None:
    """Executors may take long to import."""
    told: list[str] = []

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        interrupts.cancel_on_signal(task)
        await asyncio.sleep(60)

    interrupts = Interrupts(on_first=lambda: told.append("first"), before_leaving=lambda: None)
    with interrupts:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(main())
    assert (told, interrupts.received) == (["first"], signal.SIGTERM)
    assert interrupts.has_cancelled


def test_handlers_are_put_back_and_what_is_ignored_stays_ignored() -> None:
    """A process in the background of a script is not ended by Ctrl-C in its terminal."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts(on_first=lambda: None, before_leaving=lambda: None) as interrupts:
            assert signal.getsignal(signal.SIGTERM) != before[0]
            signal.raise_signal(signal.SIGINT)
            assert interrupts.received is None
    finally:
        signal.signal(signal.SIGINT, before[1])
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
