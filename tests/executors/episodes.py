"""Tasks whose episodes do what a test says, and the small world with episodes of several turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import attrs
from tests.executors.support import Fault, Ran, lengths_of, run_training, small_options

from swingshift.executors.rl.task import EpisodeRequest, Task, Turn
from swingshift.executors.simulated.costs.episodes import (
    EpisodeModel,
    EpisodeSource,
    ObservationLengths,
    ToolPauses,
)
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import Episode, Observation, Prompt
from swingshift.sdk.policy import DynamicSchedulePolicyBase

Play = Callable[[Turn, EpisodeRequest], Awaitable[Episode]]

SEVERAL_TURNS = EpisodeModel(
    min_turns=2,
    mean_turns=4.0,
    max_turns=6,
    pause=ToolPauses(mean_s=5.0),
    observation=ObservationLengths(mean_tokens=200.0),
)


class Played(Task):
    """A task whose episodes a function plays."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def __len__(self) -> int:
        return 100

    def prompt(self, index: int) -> Prompt:
        return Prompt(index, 20, str(index))

    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        return await self._play(turn, request)

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        return (0.0,) * len(episodes)


def seen(tokens: int, number: int = 1) -> Observation:
    """Return what a tool returned."""
    return Observation(handle=f"tool-{number}", tokens=tokens)


class Watched(SimulatedTask):
    """The modelled data set; keeps what every sample was scored with.

    Attributes:
        episodes: Every episode of every sample, in the order of their ends.
    """

    episodes: list[Episode]

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        self.episodes.extend(episodes)
        return await super().score(prompt, episodes)


def several_turns_options(
    model: EpisodeModel = SEVERAL_TURNS, *, mean_tokens: float = 2_000.0
) -> SimulatedOptions:
    """Return the small world with episodes of several turns."""
    options = small_options(mean_tokens=mean_tokens, max_tokens=8_000)
    return attrs.evolve(options, episodes=model)


def run_episodes(
    config: RunConfig,
    policy: DynamicSchedulePolicyBase | None = None,
    *,
    options: SimulatedOptions | None = None,
    faults: Iterable[tuple[str, str, Fault, int]] = (),
    pause_keep: bool = True,
    virtual_time: bool = True,
) -> tuple[Ran, list[Episode]]:
    """Run a whole training of episodes, check its event log, and return the episodes too."""
    options = options or several_turns_options()
    source = EpisodeSource(options.episodes, seed=config.seed)
    task = Watched(lengths_of(config, options), config.rollout.total_rollout_steps, 0, source)
    task.episodes = []
    ran = run_training(
        config,
        policy,
        options=options,
        task=task,
        faults=faults,
        pause_keep=pause_keep,
        virtual_time=virtual_time,
    )
    return ran, task.episodes
