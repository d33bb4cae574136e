"""The data set of a simulated run: prompts with modelled lengths and no content."""

from __future__ import annotations

from collections.abc import Sequence

from swingshift.executors.rl.task import SingleTurn
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.sdk.executor import Episode, Prompt


class SimulatedTask(SingleTurn):
    """Prompts by number; answers are as long as the length model says and worth nothing."""

    def __init__(self, lengths: LengthSource, prompts: int) -> None:
        """Take the lengths.

        Args:
            lengths: Where prompt lengths come from.
            prompts: How many prompts there are.
        """
        self._lengths = lengths
        self._prompts = prompts

    def __len__(self) -> int:
        """Return the number of prompts."""
        return self._prompts

    def prompt(self, index: int) -> Prompt:
        """Return a prompt; its handle is its number."""
        return Prompt(index, self._lengths.prompt_tokens(index), str(index))

    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        """Return zeros: learning is not modelled."""
        return (0.0,) * len(episodes)
