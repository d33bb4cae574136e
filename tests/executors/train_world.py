"""Adapters for tests of ``swingshift train``: a modelled cluster in which time really passes.

It saves a "model", which can be told to fail, to hang or to take its time with the environment
variable ``SAVE``. Its fit steps report a reward.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from swingshift.executors.rl.task import Task
from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import (
    Capabilities,
    Executor,
    ExecutorError,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
)


class SavingExecutor(SimulatedExecutor):
    """Saves, reports rewards, and says on stdout when it generates, saves and stops."""

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        self._say("generating")
        return await super().generate(replica, request)

    async def fit_step(self, batch: FitBatch) -> FitResult:
        if os.environ.get("FIT") == "fail":
            raise ExecutorError("the trainer of gpu 0 is gone")
        result = await super().fit_step(batch)
        metrics: Mapping[str, float] = {"reward/mean": batch.batch_id / 10, "actor/loss@1": 0.5}
        return attrs.evolve(result, metrics=metrics)

    async def save(self, directory: Path) -> None:
        """Write one file, as the environment says."""
        self._say("saving")
        how = os.environ.get("SAVE")
        if how == "fail":
            raise ExecutorError("the disk is full")
        if how == "hang":
            await asyncio.get_running_loop().create_future()
        if how == "slow":
            await asyncio.sleep(0.5)
        _write_model(directory)

    async def stop(self) -> None:
        self._say("stopping")
        await super().stop()

    def _say(self, what: str) -> None:
        if os.environ.get("SAY"):
            sys.stdout.write(f"executor: {what}\n")
            sys.stdout.flush()


def _write_model(directory: Path) -> None:
    directory.mkdir()
    (directory / "weights").write_text("trained")


class RealTimeExecutor(SavingExecutor):
    """Says that its time is not virtual."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(pause_keep=True, lend=True, virtual_time=False)


class SavingAdapter(SimulatedAdapter):
    """``executor.name: saving``."""

    executor: type[SimulatedExecutor] = SavingExecutor

    def build(self, config: RunConfig, options: object) -> tuple[Executor, Task]:
        if config.seed == 13:
            raise ConfigError("seed: 13 is not allowed here; take another")
        assert isinstance(options, SimulatedOptions)
        _, task = super().build(config, options)
        lengths = LengthSource(
            options.lengths,
            seed=config.seed,
            responses_per_prompt=config.actor_rollout_ref.rollout.n,
        )
        return self.executor(config, options, lengths), task


class RealTimeAdapter(SavingAdapter):
    """``executor.name: real_time``."""

    executor = RealTimeExecutor

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        return asyncio.new_event_loop
