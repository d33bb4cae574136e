"""Tasks: where prompts come from, how a response is produced, and what it is worth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.executor import Episode, Observation, Prompt


class EpisodeRestartError(SwingshiftError):
    """What an episode had is lost, and its code is run again from the beginning.

    Raised by a turn after the first. Let it pass; clean up as for a cancellation.
    """


class EpisodeRequest(NamedTuple):
    """One response to produce: the prompt and which of its ``rollout.n`` responses this is."""

    request_id: str
    prompt: Prompt
    response_index: int


class Turn(Protocol):
    """Generates the turns of one episode, wherever there is room, across aborts and moves."""

    async def __call__(
        self, request: EpisodeRequest, observation: Observation | None = None
    ) -> Episode:
        """Generate the next turn and return the response so far.

        Called once per turn, one after the other, while the episode's code runs. Between two calls
        the episode holds no replica, however long that takes; it goes back to its last one if that
        still serves. A call that raises, or is cancelled, leaves the response as it was.

        Args:
            request: What the episode was given.
            observation: What to put after the turn before, such as the output of a tool. One that
                does not fit into the token budget is not put there, and ends the response.

        Returns:
            All turns up to now. ``finish_reason`` is LENGTH when the budget of the response is used
            up; there is no further turn then, and calls return the same response.

        Raises:
            EpisodeRestartError: See there.
        """
        ...


class EpisodeRunner(Protocol):
    """Runs an episode to its end; the control plane's way to call `Task.episode`."""

    async def __call__(self, task: Task, request: EpisodeRequest) -> Episode:
        """Return the finished response; nothing of it is left behind, however it ends."""
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

    def validation_prompts(self) -> Sequence[Prompt]:
        """Return the prompts of the validation set; none by default.

        Called once, before the run. They are answered once each, every ``trainer.test_freq``
        cycles.
        """
        return ()

    @abstractmethod
    async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
        """Produce one response.

        Called concurrently for different responses; they share no state. Called again for the same
        one when it has to begin again: after a failure in a later turn, or where a response must be
        of one parameter version and no replica has it any more. With tools between its turns::

            async def episode(self, turn: Turn, request: EpisodeRequest) -> Episode:
                answer = await turn(request)
                while answer.finish_reason is FinishReason.STOP and (call := self.call(answer)):
                    answer = await turn(request, await self.run_tool(call))
                return answer

        Args:
            turn: Generates; every token of the response counts against one budget.
            request: What to respond to.

        Returns:
            What a turn returned, as a rule the last one.
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
