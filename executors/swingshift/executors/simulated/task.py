"""The data set of a simulated run: prompts with modelled lengths and no content."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swingshift.executors.rl.task import EpisodeRequest, Task, Turn
from swingshift.executors.simulated.costs.episodes import EpisodeSource
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.sdk.executor import Episode, FinishReason, Observation, Prompt


class SimulatedTask(Task):
    """Prompts by number; answers are as long as the length model says and worth nothing."""

    def __init__(
        self,
        lengths: LengthSource,
        prompts: int,
        validation_prompts: int = 0,
        episodes: EpisodeSource | None = None,
    ) -> None:
        """Take the lengths.

        Args:
            lengths: Where prompt lengths come from.
            prompts: How many prompts there are.
            validation_prompts: How many the validation set has; they follow after the others.
            episodes: Where turns and tool pauses come from; None for a single turn.
        """
        self._episodes = None if episodes is None or episodes.is_single_turn else episodes
        self._validation_prompts = validation_prompts
        self._lengths = lengths
        self._prompts = prompts

    def __len__(self) -> int:
        """Return the number of prompts."""
        return self._prompts

    def prompt(self, index: int) -> Prompt:
        """Return a prompt; its handle is its number."""
        return Prompt(index, self._lengths.prompt_tokens(index), str(index))

    def validation_prompts(self) -> Sequence[Prompt]:
        """Return prompts of their own, never trained on."""
        first = self._prompts
        return tuple(self.prompt(first + number) for number in range(self._validation_prompts))

    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        """Take the modelled turns, and let the modelled time of tools pass between them."""
        episode = await turn(request)
        source = self._episodes
        if source is None:
            return episode
        position, index = request.prompt.position, request.response_index
        turns = source.turns(position, index)
        while episode.turns < turns and episode.finish_reason is FinishReason.STOP:
            number = episode.turns
            await asyncio.sleep(source.pause_s(position, index, number))
            tokens = source.observation_tokens(position, index, number)
            handle = f"{request.request_id}/{number}"
            episode = await turn(request, Observation(handle=handle, tokens=tokens))
        return episode

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        """Return zeros: learning is not modelled."""
        return (0.0,) * len(episodes)
