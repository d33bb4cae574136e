"""Local executors small enough for tests, and what can be seen of them past their verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar, cast

import attrs
import pytest
from tests.executors.support import ListSink

from swingshift.executors.app.assembly import build_configured_policy
from swingshift.executors.app.configuration import load_config
from swingshift.executors.app.structuring import structure_section
from swingshift.executors.local import process as process_module
from swingshift.executors.local.adapter import LocalAdapter
from swingshift.executors.local.executor import LocalExecutor
from swingshift.executors.local.nursery import Nursery
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.rl.text_task import TextTask
from swingshift.executors.runtime.run import RunReport, TrainingRun
from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import Event, EventSink
from swingshift.sdk.executor import ExecutorError, Prompt
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing import BackDoor, EventLogChecker, ExecutorUnderTest

T = TypeVar("T")

DEADLINE_S = 120.0
"""Longer than any test takes that does not hang, on a busy machine."""

TINY_MODEL: Mapping[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
"""A model of 80,000 parameters: it learns, and a decode step takes a millisecond."""

HEAVY_MODEL: Mapping[str, object] = {
    **TINY_MODEL,
    "hidden_size": 192,
    "intermediate_size": 1152,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
"""A model of 2.4 million parameters: its memory shows among that of the process."""


ROLLOUT_BOUND = (
    "data.max_response_length=40",
    "executor.ignore_eos=true",
    "actor_rollout_ref.rollout.max_num_seqs=8",
    "async_training.concurrent_samples_per_replica=3",
)
"""Responses take a while, and a replica that joins is given new ones: lending makes sense."""


def local_config(
    *overrides: str, model: Mapping[str, object] = TINY_MODEL, dynamic: bool = True
) -> RunConfig:
    """Return a run of the copying example on one trainer core and one rollout core."""
    return load_config(
        {
            "data": {"max_prompt_length": 16, "max_response_length": 8},
            "actor_rollout_ref": {
                "actor": {"ppo_mini_batch_size": 4},
                "rollout": {"n": 4, "max_num_seqs": 64},
            },
            "trainer": {"nnodes": 1, "n_gpus_per_node": 1},
            "rollout": {"nnodes": 1, "n_gpus_per_node": 1, "total_rollout_steps": 48},
            "async_training": {
                "use_dynamic_resource_scheduling": dynamic,
                "trigger_parameter_sync_step": 2,
                "staleness_threshold": 0.5,
            },
            "executor": {
                "name": "local",
                "share_devices": True,
                "model": {"config": dict(model)},
                "task": {"example": "copy"},
                "learning": {"learning_rate": 1e-3},
            },
        },
        overrides,
    )


def build_local(config: RunConfig) -> tuple[LocalExecutor, TextTask]:
    """Return the executor and the task of a configuration."""
    options = structure_section(LocalOptions, config.executor.options, "executor")
    executor, task = LocalAdapter().build(config, options)
    return cast("LocalExecutor", executor), cast("TextTask", task)


@attrs.frozen(kw_only=True)
class LocalRun:
    """A run that ended.

    Attributes:
        report: What it came to.
        sink: Its events.
        payloads: How many lay in memory when it ended; -1 where its trainer was gone by then.
    """

    report: RunReport
    sink: ListSink
    payloads: int


class _Processes:
    """Notes every process that a run ever has."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.pids: set[int] = set()
        self._executor = executor

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Look at who runs."""
        self.pids.update(self._executor.pids().values())


async def train_locally(
    config: RunConfig,
    policy: DynamicSchedulePolicyBase | None = None,
    *,
    event_sinks: Sequence[EventSink] = (),
) -> LocalRun:
    """Run a whole training, check its event log, and see that nothing of it is left.

    Args:
        config: What to run.
        policy: Decides; the configured one by default.
        event_sinks: Get every event too.
    """
    executor, task = build_local(config)
    sink, checker, payloads = ListSink(), EventLogChecker(), -1
    seen = _Processes(executor)
    directory = executor._scratch.path

    async def count_payloads() -> None:
        nonlocal payloads
        payloads = len(list((directory / "payloads").iterdir()))

    run = TrainingRun(
        config,
        executor,
        task,
        policy or build_configured_policy(config),
        strict_policy=True,
        event_sinks=(sink, checker, seen, *event_sinks),
        before_stop=count_payloads,
    )
    report = await run.run()
    checker.assert_sound()
    assert seen.pids
    # those whose nursery was killed end with it, and nobody can wait for that
    await until(lambda: not any(map(is_running, seen.pids)))
    assert not directory.exists()
    return LocalRun(report=report, sink=sink, payloads=payloads)


def run_local(main: Coroutine[object, object, T], *, deadline_s: float = DEADLINE_S) -> T:
    """Run a test on a loop of its own, to its end or to a deadline that shows that it hangs."""

    async def bounded() -> T:
        async with asyncio.timeout(deadline_s):
            return await main

    return asyncio.run(bounded())


@asynccontextmanager
async def started(config: RunConfig) -> AsyncIterator[tuple[LocalExecutor, TextTask]]:
    """Start the executor of a configuration, and stop it at the end."""
    executor, task = build_local(config)
    try:
        await executor.start()
        yield executor, task
    finally:
        await executor.stop()


async def until(holds: Callable[[], bool]) -> None:
    """Return when something holds that nothing tells of, such as the state of a process."""
    while not holds():  # noqa: ASYNC110 -- that is why
        await asyncio.sleep(0.005)


class LocalBackDoor(BackDoor):
    """Asks the processes themselves, the files and the operating system."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor

    async def in_flight(self, replica: str) -> int:
        return cast("int", (await self.executor.look_at_replica(replica))["in_flight"])

    async def token_count(self, replica: str) -> int:
        return cast("int", (await self.executor.look_at_replica(replica))["generated_tokens"])

    async def free_bytes(self, gpu: str) -> int:
        return await self.executor.free_bytes(gpu)

    async def weight_version(self, replica: str) -> int | None:
        return cast("int | None", (await self.executor.look_at_replica(replica))["version"])

    async def times_trained(self, batch_id: int) -> int:
        seen = (await self.executor.look_at_trainer())["times_trained"]
        return cast("dict[str, int]", seen).get(str(batch_id), 0)

    async def payload_tokens(self, handle: str) -> int | None:
        try:
            return self.executor.payload_tokens(handle)
        except ExecutorError:
            return None


def under_test() -> ExecutorUnderTest[LocalExecutor]:
    """Return the local executor as the contract kit wants it: two replicas of each kind."""
    config = local_config(
        "trainer.n_gpus_per_node=2",
        "rollout.n_gpus_per_node=2",
        "executor.ignore_eos=true",
        "data.max_response_length=512",
        model=HEAVY_MODEL,
    )
    _, task = build_local(config)
    return ExecutorUnderTest(
        make=lambda: build_local(config)[0],
        prompts=[Prompt(*task.prompt(index)) for index in range(2)],
        max_new_tokens=220,
        observe=LocalBackDoor,
        moment_s=0.1,
        deadline_s=60.0,
        memory_tolerance_bytes=4 * 2**20,
    )


@contextmanager
def own_nursery() -> Iterator[Nursery]:
    """Make worker processes from a nursery that may be ended, and end it."""
    nursery = Nursery()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process_module, "NURSERY", nursery)
        yield nursery
    nursery.close()


def is_running(pid: int) -> bool:
    """Return whether there is such a process, and it is not only waiting to be asked how it ended.

    Source: Linux, proc_pid_stat(5): the state follows the name, which is in parentheses.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"
