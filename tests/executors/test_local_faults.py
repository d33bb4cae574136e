"""Processes that are killed in the midst of a run, and what the run makes of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.executors.local_runs import (
    DEADLINE_S,
    ROLLOUT_BOUND,
    LocalRun,
    is_running,
    local_config,
    own_nursery,
    run_local,
    train_locally,
    until,
)
from tests.executors.support import ScriptedPolicy

from swingshift.executors.local import scratch as scratch_module
from swingshift.executors.local.executor import LocalExecutor
from swingshift.executors.local.nursery import Nursery
from swingshift.executors.local.scratch import Scratch
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.events import BatchCollected, BatchTrained, Event, ReplicaMoved, RoutingChanged
from swingshift.sdk.executor import ExecutorError

SAMPLES = 32
ROOT = Path(__file__).resolve().parents[2]
Strike = Callable[..., None]


def _concerns(process: str, arguments: Sequence[object]) -> bool:
    """Return whether a call is about a process: by name, in a list of names, or of the trainer."""
    names = [argument for argument in arguments if isinstance(argument, str)]
    lists = [argument for argument in arguments if isinstance(argument, list | tuple)]
    return process.startswith("trainer") or process in names or any(process in it for it in lists)


@pytest.fixture
def strike(monkeypatch: pytest.MonkeyPatch) -> Strike:
    """Return what lets a process be killed during the n-th call that concerns it."""

    def prepare(verb: str, process: str, *, call: int = 1, waits: bool = True) -> None:
        """Arm it.

        Args:
            verb: Of the executor.
            process: Name of its engine.
            call: Which call.
            waits: Whether it is held from the start of the call, so that it cannot end it.
        """
        original = getattr(LocalExecutor, verb)
        calls = itertools.count(1)

        async def struck(self: LocalExecutor, *arguments: object) -> object:
            work = original(self, *arguments)
            if not _concerns(process, arguments) or next(calls) != call:
                return await work
            pid = self.pids()[process]
            if waits:
                os.kill(pid, signal.SIGSTOP)
            task = asyncio.ensure_future(work)
            await asyncio.sleep(0.02)
            if verb == "generate":
                await until(lambda: task.done() or self.progress(process).running > 0)
            os.kill(pid, signal.SIGKILL)
            return await task

        monkeypatch.setattr(LocalExecutor, verb, struck)

    return prepare


def run(*overrides: str) -> LocalRun:
    config = local_config(*ROLLOUT_BOUND, f"rollout.total_rollout_steps={SAMPLES}", *overrides)
    return run_local(train_locally(config, ScriptedPolicy(wait=1)))


def collected(ran: LocalRun) -> list[int]:
    return [sample for event in ran.sink.of(BatchCollected) for sample in event.samples]


def expect_to_go_on_without(ran: LocalRun, replica: str) -> None:
    """Expect that it was lost, that it serves again later, and that all data is trained, once."""
    assert (ran.report.outcome, ran.report.reason) == (RunOutcome.EXHAUSTED, "")
    assert sorted(collected(ran)) == list(range(SAMPLES))
    assert ran.report.trained_samples == SAMPLES
    assert ran.payloads == 0
    story = [
        event.after if isinstance(event, ReplicaMoved) else "routing"
        for event in ran.sink.events
        if (isinstance(event, ReplicaMoved) and event.replica == replica)
        or (isinstance(event, RoutingChanged) and event.replica == replica and event.routed)
    ]
    assert "dead" in story
    assert "routing" in story[story.index("dead") :]


def expect_to_fail_for(ran: LocalRun, process: str) -> None:
    """Expect that the reason names the process, and that no sample is trained twice or lost."""
    assert ran.report.outcome is RunOutcome.FAILED
    assert f"{process} (process " in ran.report.reason
    assert "ended with signal SIGKILL" in ran.report.reason
    taken = collected(ran)
    assert len(taken) == len(set(taken))
    # the batch whose fit step failed was collected and is not trained
    assert ran.report.trained_samples == 4 * len(ran.sink.of(BatchTrained)) <= len(taken)
    assert ran.report.trained_samples + ran.report.unused_samples == SAMPLES


@pytest.mark.parametrize(
    ("replica", "call", "partial"),
    [("standalone-0", 5, "true"), ("standalone-0", 5, "false"), ("hybrid-0", 2, "true")],
)
def test_a_replica_that_dies_while_it_generates_is_replaced(
    strike: Strike, replica: str, call: int, partial: str
) -> None:
    """Its requests begin again elsewhere, or when it is back."""
    strike("generate", replica, call=call, waits=False)
    ran = run(f"async_training.partial_rollout={partial}")
    expect_to_go_on_without(ran, replica)


@pytest.mark.parametrize(
    ("verb", "replica", "call"),
    [
        ("sync_weights", "standalone-0", 2),
        ("sync_weights", "hybrid-0", 1),
        ("resume", "standalone-0", 2),
        ("wake", "hybrid-0", 1),
        ("pause", "hybrid-0", 1),
        ("sleep", "hybrid-0", 1),
    ],
)
def test_a_replica_that_dies_in_a_switch_or_a_sync_is_replaced(
    strike: Strike, verb: str, replica: str, call: int
) -> None:
    """The others go on, and it serves again after a later sync."""
    strike(verb, replica, call=call)
    expect_to_go_on_without(run(), replica)


@pytest.mark.parametrize(
    ("verb", "call"),
    [
        ("fit_step", 3),
        ("discard", 2),
        ("sync_weights", 3),
        ("reload_training", 2),
    ],
)
def test_the_death_of_the_trainer_ends_the_run(strike: Strike, verb: str, call: int) -> None:
    """In a fit step, between two, in a sync and in a switch; the reason names the process."""
    strike(verb, "trainer-0", call=call, waits=verb != "fit_step")
    expect_to_fail_for(run(), "trainer-0")


def test_of_several_ranks_the_one_that_died_is_named(strike: Strike) -> None:
    """The other one only lost its connection."""
    strike("fit_step", "trainer-1", call=3, waits=False)
    expect_to_fail_for(run("trainer.n_gpus_per_node=2"), "trainer-1")


def test_a_replica_that_cannot_come_back_is_done_without(
    monkeypatch: pytest.MonkeyPatch, strike: Strike
) -> None:
    """Lending keeps the run alive when the only standalone replica stays away."""

    async def never(self: LocalExecutor, replicas: Sequence[str]) -> None:
        raise ExecutorError("no more processes")

    strike("generate", "standalone-0", call=5, waits=False)
    monkeypatch.setattr(LocalExecutor, "restart", never)
    ran = run("runtime.restart_attempts=2")
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.report.trained_samples == SAMPLES


class EndOfNursery:
    """Kills a nursery when some training is done, once."""

    def __init__(self, nursery: Nursery) -> None:
        self._nursery = nursery
        self._is_done = False

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Look for the second batch."""
        if isinstance(event, BatchTrained) and event.batch == 1 and not self._is_done:
            self._is_done = True
            assert self._nursery.pid is not None
            os.kill(self._nursery.pid, signal.SIGKILL)


@pytest.mark.slow
def test_the_end_of_the_nursery_ends_the_run_and_not_the_next_one() -> None:
    """It takes every process with it; the next run has a new one."""
    config = local_config(*ROLLOUT_BOUND, f"rollout.total_rollout_steps={SAMPLES}")
    with own_nursery() as nursery:
        sinks = [EndOfNursery(nursery)]
        failed, good = (
            run_local(train_locally(config, ScriptedPolicy(), event_sinks=sinks)) for _ in range(2)
        )
    expect_to_fail_for(failed, "trainer-0")
    assert good.report.outcome is RunOutcome.EXHAUSTED


DRIVER = """
import asyncio, sys
from pathlib import Path
from tests.executors.local_runs import build_local, local_config
from tests.executors.support import ScriptedPolicy
from swingshift.executors.local import scratch
from swingshift.executors.local.nursery import NURSERY
from swingshift.executors.runtime.run import TrainingRun

scratch._SHARED_MEMORY = Path(sys.argv[1])
config = local_config("rollout.total_rollout_steps=100000")
executor, task = build_local(config)

class Tell:
    def write(self, sequence, t_s, event):
        if event.kind == "batch_trained" and event.batch == 3:
            pids = (NURSERY.pid, *executor.pids().values())
            print(executor._scratch.path, *pids, flush=True)

asyncio.run(TrainingRun(config, executor, task, ScriptedPolicy(), event_sinks=[Tell()]).run())
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_no_process_and_the_next_run_sweeps_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nobody is there to end the workers: they end because it is gone."""
    # a directory that no other run on this machine sweeps
    monkeypatch.setattr(scratch_module, "_SHARED_MEMORY", tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            told = driver.stdout.readline().split()
        finally:
            driver.kill()
        # its output ends when the last process that could write to it has
        _, said = driver.communicate(timeout=DEADLINE_S)
    assert len(told) == 5, said
    directory, pids = Path(told[0]), [int(pid) for pid in told[1:]]

    async def gone() -> None:
        await until(lambda: not any(map(is_running, pids)))

    run_local(gone())
    assert list(tmp_path.iterdir()) == [directory]
    following = Scratch()
    following.create()
    assert list(tmp_path.iterdir()) == [following.path]
    following.remove()
