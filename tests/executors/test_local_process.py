"""Worker processes: how they start, answer and end, and the nursery that they are forks of."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.executors.local_runs import (
    build_local,
    is_running,
    local_config,
    own_nursery,
    run_local,
    until,
)

from swingshift.executors.app.structuring import structure_section
from swingshift.executors.local.channel import Message
from swingshift.executors.local.devices import find_devices
from swingshift.executors.local.nursery import NURSERY, Nursery
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.local.process import WorkerLostError, WorkerProcess, call_all
from swingshift.executors.local.scratch import Scratch
from swingshift.executors.local.settings import rollout_setting, training_setting
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import ExecutorError

Make = Callable[..., WorkerProcess]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return what makes a replica's process; those it lost are in the list ``lost``."""

    def make_one(
        name: str = "replica", lost: list[WorkerProcess] | None = None, **changes: object
    ) -> WorkerProcess:
        setting = {**settings_in(tmp_path)[0], **changes}
        told = [] if lost is None else lost
        return WorkerProcess(name, setting, tmp_path / f"{name}.log", on_lost=told.append)

    (tmp_path / "payloads").mkdir()
    return make_one


def settings_in(directory: Path) -> tuple[Message, Message]:
    """Return the settings of a replica and of a trainer, with a directory as their scratch."""
    config = local_config("executor.ignore_eos=true")
    options = structure_section(LocalOptions, config.executor.options, "executor")
    scratch = Scratch()
    scratch.path = directory
    tokenizer = build_local(config)[1].tokenizer
    (trainer,), (rollout,) = find_devices(config, options)
    place = config, options, tokenizer, scratch
    return (
        rollout_setting(*place, rollout, asleep=False, number=0),
        training_setting(*place, trainer, rank=0, world=1),
    )


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """Return a nursery for one test, which may end it."""
    with own_nursery() as nursery:
        yield nursery


def test_a_worker_answers_until_it_is_killed(make: Make) -> None:
    """Then it is gone, nobody is told that it was lost, and it refuses calls."""

    async def main() -> None:
        lost: list[WorkerProcess] = []
        worker = make(lost=lost)
        assert not worker.is_alive
        ready = await worker.start()
        assert isinstance(ready["weight_bytes"], int)
        assert worker.is_alive
        assert worker.pid is not None
        assert is_running(worker.pid)
        assert (await worker.call("look"))["version"] is None
        for _ in range(2):
            await worker.kill()
            assert not worker.is_alive
            assert not is_running(worker.pid)
        with pytest.raises(WorkerLostError, match=r"replica \(process \d+\) ended with .* SIGKILL"):
            await worker.call("look")
        worker.tell("look")
        assert lost == []

    run_local(main())


def test_what_a_worker_refuses_is_an_error_in_its_name(make: Make) -> None:
    """It goes on serving afterwards."""

    async def main() -> None:
        worker = make("hybrid-3")
        await worker.start()
        for verb, said in (
            ("dance", "hybrid-3: a replica does not know 'dance'"),
            ("load", "hybrid-3: FileNotFoundError: .*"),
        ):
            with pytest.raises(ExecutorError, match=said):
                await worker.call(verb, path="/nowhere", version=0)
        assert (await worker.call("look"))["in_flight"] == 0
        await worker.kill()

    run_local(main())


def test_a_killed_worker_is_lost_with_all_its_calls(make: Make, tmp_path: Path) -> None:
    """Each call under way and each later one says how it ended; the loss is told once."""

    async def main() -> None:
        lost: list[WorkerProcess] = []
        worker = make(lost=lost)
        await worker.start()
        await _load_own_weights(worker, tmp_path)
        assert worker.pid is not None
        endless = worker.sent("generate", **_endless())[1]
        await until(lambda: worker.progress.running == 1)
        os.kill(worker.pid, signal.SIGKILL)
        for answer in (endless, worker.call("look")):
            with pytest.raises(WorkerLostError, match="ended with signal SIGKILL"):
                await answer
        assert lost == [worker]
        assert tuple(worker.progress) == (0, 0, 0)
        await worker.kill()
        assert lost == [worker]

    run_local(main())


def _endless() -> dict[str, object]:
    return {
        "handle": "0",
        "prompt": [2, 3],
        "resume_from": None,
        "observation": [],
        "max_new_tokens": 10**6,
    }


def test_a_message_to_a_worker_that_just_died_does_not_hang(make: Make) -> None:
    """The connection may be found broken by writing before its end was read."""

    async def main() -> None:
        for _ in range(5):
            worker = make()
            await worker.start()
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            # the loop does not see the end before it writes
            while is_running(worker.pid):
                time.sleep(0.001)  # noqa: ASYNC251
            with pytest.raises(WorkerLostError, match="SIGKILL"):
                await worker.call("look")

    run_local(main())


def test_the_last_words_of_a_worker_are_quoted(make: Make, tmp_path: Path) -> None:
    """It ended with a status, and what it printed says why."""

    async def main() -> None:
        worker = make()
        await worker.start()
        await _load_own_weights(worker, tmp_path)
        (tmp_path / "payloads").rmdir()
        with pytest.raises(
            WorkerLostError,
            match=r"replica \(process \d+\) ended with status 1; .*No such file or directory",
        ) as raised:
            await worker.call("generate", **{**_endless(), "max_new_tokens": 1})
        assert "\n" not in str(raised.value)

    run_local(main())


async def _load_own_weights(worker: WorkerProcess, directory: Path) -> None:
    """Sync a replica with a trainer's weights, as a run does."""
    setting = settings_in(directory)[1]
    trainer = WorkerProcess("trainer", setting, directory / "trainer.log")
    await trainer.start()
    path = str(directory / "weights.safetensors")
    await trainer.call("export", path=path)
    await worker.call("load", version=0, path=path)
    await trainer.kill()


def test_a_model_that_cannot_be_built_is_an_error_of_the_configuration(make: Make) -> None:
    """One line, in the words of the model and not of a process."""

    async def main() -> None:
        worker = make(model={"type": "qwen2", "config": {"num_attention_heads": "many"}})
        with pytest.raises(ConfigError, match=r"^executor\.model.*num_attention_heads") as raised:
            await worker.start()
        assert "\n" not in str(raised.value)
        # it was not told what to be, and says so instead of nothing
        with pytest.raises(ExecutorError, match="was not told what to be"):
            await worker.call("look")
        await worker.kill()

    run_local(main())


def test_a_worker_that_dies_before_it_is_ready_is_lost(make: Make) -> None:
    """The start says how it ended."""

    async def main() -> None:
        worker = make()
        start = asyncio.create_task(worker.start())
        await until(lambda: worker.pid is not None)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
        with pytest.raises(WorkerLostError, match="ended with signal SIGTERM"):
            await start
        assert not is_running(worker.pid)

    run_local(main())


@pytest.mark.parametrize("moment", range(4))
def test_a_kill_reaches_a_worker_that_is_being_started(make: Make, moment: int) -> None:
    """However far the start is, no process is left when both have returned."""

    async def main() -> None:
        await asyncio.to_thread(NURSERY.warm_up)
        before = _children_of_nursery()
        worker = make()
        start = asyncio.create_task(worker.start())
        if moment < 3:
            for _ in range(moment):
                await asyncio.sleep(0)
        else:
            await until(lambda: worker.pid is not None)
        await worker.kill()
        with pytest.raises(WorkerLostError):
            await start
        assert not worker.is_alive
        assert _children_of_nursery() == before

    run_local(main())


@pytest.mark.parametrize("moment", range(4))
def test_a_start_that_is_cancelled_leaves_what_a_kill_ends(make: Make, moment: int) -> None:
    """Wherever it was cancelled."""

    async def main() -> None:
        await asyncio.to_thread(NURSERY.warm_up)
        before = _children_of_nursery()
        worker = make()
        start = asyncio.create_task(worker.start())
        if moment < 3:
            for _ in range(moment):
                await asyncio.sleep(0)
        else:
            await until(lambda: worker.pid is not None)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        await worker.kill()
        assert _children_of_nursery() == before

    run_local(main())


def test_a_stopped_worker_with_unread_messages_can_be_killed(make: Make) -> None:
    """What it has not read does not keep the kill waiting."""

    async def main() -> None:
        worker = make()
        await worker.start()
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGSTOP)
        calls = [worker.sent("look", padding="x" * 2**20)[1] for _ in range(4)]
        await worker.kill()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {WorkerLostError}
        assert not is_running(worker.pid)

    run_local(main())


def test_a_cancelled_call_leaves_the_others_alone(make: Make) -> None:
    """Its answer comes to nobody."""

    async def main() -> None:
        worker = make()
        await worker.start()
        calls = [asyncio.create_task(worker.call("look")) for _ in range(3)]
        await asyncio.sleep(0)
        calls[1].cancel()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [dict, asyncio.CancelledError, dict]
        assert not worker._pending
        await worker.kill()

    run_local(main())


def test_many_restarts_leave_nothing_open(make: Make) -> None:
    """Neither here nor in the nursery: no file, no process, no zombie."""

    async def main() -> None:
        await asyncio.to_thread(NURSERY.warm_up)
        pids = os.getpid(), NURSERY.pid
        before = _open_files(*pids), _children_of_nursery()
        for _ in range(8):
            worker = make()
            await worker.start()
            await worker.kill()
        await asyncio.sleep(0)
        assert (_open_files(*pids), _children_of_nursery()) == before

    run_local(main())


def _open_files(*pids: int | None) -> list[int]:
    return [len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids]


def _children_of_nursery() -> list[str]:
    pid = NURSERY.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_worker_that_died_is_named_and_not_the_one_that_missed_it() -> None:
    """Of workers that depend on one another, a living one may complain first."""

    class Complains(WorkerProcess):
        async def call(self, verb: str, **arguments: object) -> dict[str, object]:
            raise ExecutorError("rank 0: connection closed by peer")

    class Died(WorkerProcess):
        async def call(self, verb: str, **arguments: object) -> dict[str, object]:
            await asyncio.sleep(0.01)
            raise WorkerLostError("rank 1 ended with signal SIGKILL")

    class Waits(WorkerProcess):
        async def call(self, verb: str, **arguments: object) -> dict[str, object]:
            await asyncio.sleep(0.02)
            return {}

    def of(*kinds: type[WorkerProcess]) -> list[WorkerProcess]:
        return [kind("rank", {}, Path("log")) for kind in kinds]

    async def main() -> None:
        with pytest.raises(WorkerLostError, match="rank 1 ended"):
            await call_all(of(Complains, Died), "fit")
        with pytest.raises(ExecutorError, match="rank 0: connection closed"):
            await call_all(of(Complains, Waits), "fit")
        assert await call_all(of(Waits, Waits), "fit") == [{}, {}]

    run_local(main())


@pytest.mark.slow
def test_workers_end_with_their_nursery_and_the_next_start_makes_a_new_one(
    make: Make, nursery: Nursery
) -> None:
    """The end of an old worker is not asked of the new nursery, which would not know it."""

    async def main() -> None:
        lost: list[WorkerProcess] = []
        old, never_asked, new = (make(name, lost=lost) for name in ("old", "never", "new"))
        await asyncio.gather(old.start(), never_asked.start())
        assert nursery.pid is not None
        assert never_asked.pid is not None
        os.kill(nursery.pid, signal.SIGKILL)
        await until(lambda: old in lost)
        with pytest.raises(WorkerLostError, match=r"old \(process \d+\) ended with signal SIGKILL"):
            await old.call("look")
        await new.start()
        assert nursery.end(never_asked.pid) == -signal.SIGKILL
        assert (await new.call("look"))["in_flight"] == 0
        await asyncio.gather(old.kill(), never_asked.kill(), new.kill())
        assert set(lost) == {old, never_asked}

    run_local(main())


def test_a_nursery_that_cannot_start_is_an_error(
    make: Make, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says with which status it ended; nothing is left open."""
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def main() -> None:
        with pytest.raises(
            ExecutorError, match="nursery of worker processes has ended, with status 1"
        ):
            await make().start()

    before = _open_files(os.getpid())
    run_local(main())
    assert _open_files(os.getpid()) == before


def test_without_a_nursery_nothing_is_forked(nursery: Nursery, tmp_path: Path) -> None:
    """Whoever forgets to warm it up is told; closing one that was not started is no matter."""
    nursery.close()
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ExecutorError, match="was not started"):
        nursery.fork(theirs, tmp_path / "log")


def test_the_nursery_starts_no_thread() -> None:
    """A fork copies the thread that forks alone, and locks that another one holds."""
    NURSERY.warm_up()
    status = Path(f"/proc/{NURSERY.pid}/status").read_text()
    assert "\nThreads:\t1\n" in status
