"""The entry point of the simulated executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swingshift.executors.rl.task import Task
from swingshift.executors.simulated.costs.episodes import EpisodeSource
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.faulty import FaultyExecutor
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.sizes import check_prompt_lengths
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import Executor


class SimulatedAdapter:
    """``executor.name: simulated``."""

    options_type: type = SimulatedOptions

    def build(self, config: RunConfig, options: object) -> tuple[Executor, Task]:
        """Make the modelled cluster and its data set.

        Raises:
            ConfigError: The options are of another type, or do not fit the configuration.
        """
        if not isinstance(options, SimulatedOptions):
            raise ConfigError(
                f"the simulated executor takes SimulatedOptions; got {type(options).__name__}"
            )
        check_prompt_lengths(config, options)
        lengths = LengthSource(
            options.lengths,
            seed=config.seed,
            responses_per_prompt=config.actor_rollout_ref.rollout.n,
        )
        task = SimulatedTask(
            lengths,
            config.rollout.total_rollout_steps,
            options.validation_prompts,
            EpisodeSource(options.episodes, seed=config.seed),
        )
        executor = SimulatedExecutor(config, options, lengths)
        if options.faults.is_empty:
            return executor, task
        return FaultyExecutor(executor, options.faults), task

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        """Return the virtual loop."""
        return VirtualLoop
