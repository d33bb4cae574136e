"""Tasks: where prompts come from, how a response is produced, and what it is worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from swingshift.sdk.executor import Episode, Prompt


class EpisodeRequest(NamedTuple):
    """One response to produce: the prompt and which of its ``rollout.n`` responses this is."""

    request_id: str
    prompt: Prompt
    response_index: int


class Turn(Protocol):
    """Generates one turn of an episode, wherever there is room, across aborts and moves."""

    async def __call__(self, request: EpisodeRequest) -> Episode:
        """Return the turn once it ended by itself or at its token budget."""
        ...


class Task(ABC):
    """What a run learns: prompts in a fixed order, episodes that answer them, and their scores."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of prompts."""

    @abstractmethod
    def prompt(self, index: int) -> Prompt:
        """Return prompt ``index``, 0 <= index < len(self).

        Called once per sample; must be cheap.
        """

    @abstractmethod
    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        """Produce one response.

        Called once per response, concurrently with others; they share no state.
        """

    @abstractmethod
    async def score(self, prompt: Prompt, episodes: Sequence[Episode]) -> tuple[float, ...]:
        """Return one reward per episode, in order.

        Called once per sample, before it is queued.
        """


class SingleTurn(Task):
    """A task whose episodes are one turn; subclasses give prompts and scores."""

    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        """Generate once."""
        return await turn(request)
