"""Speed and memory of a whole simulated run, beside a skeleton of its path."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TextIO

from swingshift.benchmarks.perf.figure import Figure, Measured, Target, best_of
from swingshift.benchmarks.scenario import load_scenario
from swingshift.executors.app.assembly import execute, executor_adapter
from swingshift.executors.app.run_log import RunLogWriter
from swingshift.executors.runtime.load_balancer import Lease, LoadBalancer
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError
from swingshift.sdk.events import Event, EventSink, SampleQueued

REQUESTS_PER_S = Target(limit=15_000, is_floor=True)
KEPT_BYTES_PER_REQUEST = Target(limit=100, is_floor=False)

_SKELETON_REPLICAS = 4
_SKELETON_IN_FLIGHT = 512
_SKELETON_LENGTHS = 997
_DEADLINE_S = 14_400.0


def dynamic_config(scenario: str, prompts: int) -> RunConfig:
    """Return the configuration of a scenario's run that lends GPUs, with some of its prompts.

    Raises:
        UserError: No run of the scenario lends GPUs, or the scenario cannot be used.
    """
    loaded = load_scenario(scenario, [f"rollout.total_rollout_steps={prompts}"])
    for run in loaded.runs:
        if run.config.async_training.use_dynamic_resource_scheduling:
            return run.config
    raise UserError(f"no run of scenario {scenario!r} lends GPUs; name another scenario")


def simulator_figures(config: RunConfig, repetitions: int) -> Iterator[Figure]:
    """Measure requests per second with and without a run log, and the skeleton's.

    Args:
        config: A simulated run.
        repetitions: At least 1, of each.
    """
    requests = _requests(config)
    # imported before anything is timed
    executor_adapter(config.executor.name)
    with tempfile.TemporaryDirectory(prefix="swingshift-perf-") as folder:
        path = Path(folder) / "run.jsonl"
        logged = best_of(repetitions, partial(_simulated, config, path), highest=True)
        megabytes = path.stat().st_size / 1e6
        bare = best_of(repetitions, partial(_simulated, config, None), highest=True)
        skeleton = best_of(repetitions, partial(_skeleton, requests, path), highest=True)
    run = f"requests per CPU second of one process, over a whole dynamic run of {requests:,}"
    yield Figure(
        name="simulator with run log",
        unit="req/s",
        target=REQUESTS_PER_S,
        how=f"{run}; every event is written to a temporary file as a JSON line",
        detail=f"{megabytes:.0f} MB",
        measured=logged,
    )
    yield Figure(
        name="beside the skeleton",
        unit="x",
        how="simulator with run log, over the skeleton of the path",
        measured=Measured(value=logged.value / skeleton.value),
    )
    yield Figure(
        name="simulator without log",
        unit="req/s",
        how=f"{run}; nobody listens to its events",
        measured=bare,
    )
    yield Figure(
        name="skeleton of the path",
        unit="req/s",
        how=f"the same for {requests:,} requests that model nothing: a task each, routed by the "
        f"balancer, asleep under a timeout on the virtual loop, two JSON lines; "
        f"{_SKELETON_IN_FLIGHT} at a time",
        measured=skeleton,
    )


def memory_figure(config: RunConfig) -> Figure:
    """Measure how the peak of Python's memory grows after the first quarter of a run.

    Args:
        config: A simulated run of at least 4 prompts.
    """
    watch = _PeakWatch(quarter=config.rollout.total_rollout_steps // 4)
    tracemalloc.start()
    try:
        execute(config, event_sinks=(watch,))
        later_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    requests = _requests(config)
    growth_bytes = later_bytes - watch.peak_bytes
    return Figure(
        name="memory kept per request",
        measured=Measured(value=max(0.0, growth_bytes / (0.75 * requests))),
        unit="bytes",
        target=KEPT_BYTES_PER_REQUEST,
        how=f"tracemalloc over a dynamic run of {requests:,} requests: the peak of the last three "
        "quarters less the peak of the first, per request of the last three; the report keeps "
        "some metrics per cycle, nothing per request",
        detail=f"peak {watch.peak_bytes / 1e6:.1f} MB in the first quarter, "
        f"{later_bytes / 1e6:.1f} MB later",
    )


def _requests(config: RunConfig) -> int:
    return config.rollout.total_rollout_steps * config.actor_rollout_ref.rollout.n


def _simulated(config: RunConfig, log: Path | None) -> float:
    # CPU time, because the run is one thread and the machine may have other work
    started_s = time.process_time()
    with nullcontext() if log is None else RunLogWriter(log) as writer:
        sinks: tuple[EventSink, ...] = () if writer is None else (writer,)
        execute(config, event_sinks=sinks)
    return _requests(config) / (time.process_time() - started_s)


class _PeakWatch:
    """An event sink that notes the memory peak of the first quarter of the samples."""

    def __init__(self, quarter: int) -> None:
        self.peak_bytes = 0
        self._left = max(1, quarter)

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        if isinstance(event, SampleQueued):
            self._left -= 1
            if self._left == 0:
                self.peak_bytes = tracemalloc.get_traced_memory()[1]
                tracemalloc.reset_peak()


def _skeleton(requests: int, log: Path) -> float:
    started_s = time.process_time()
    with (
        log.open("w", encoding="ascii") as file,
        asyncio.Runner(loop_factory=VirtualLoop) as runner,
    ):
        runner.run(_skeleton_run(requests, file))
    return requests / (time.process_time() - started_s)


async def _skeleton_run(requests: int, file: TextIO) -> None:
    loop = asyncio.get_running_loop()
    balancer = LoadBalancer()
    for number in range(_SKELETON_REPLICAS):
        balancer.add(f"replica-{number}")

    def log(event: str, lease: Lease) -> None:
        file.write(json.dumps({"t_s": loop.time(), "event": event, **lease._asdict()}) + "\n")

    async def request(index: int) -> None:
        key = str(index)
        lease = await balancer.acquire(key, key)
        log("request_routed", lease)
        async with asyncio.timeout(_DEADLINE_S):
            await asyncio.sleep(1.0 + index % _SKELETON_LENGTHS)
        balancer.release(lease)
        balancer.forget(key)
        log("request_returned", lease)

    async def lane(first: int) -> None:
        for index in range(first, requests, _SKELETON_IN_FLIGHT):
            await loop.create_task(request(index))

    await asyncio.gather(*map(lane, range(_SKELETON_IN_FLIGHT)))
