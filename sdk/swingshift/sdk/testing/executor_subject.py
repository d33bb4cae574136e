"""What the author of an executor hands to the contract kit: how to make one, and a back door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import attrs

from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.executor import Executor, Prompt
from swingshift.sdk.validators import Validator, finite, integer

_ExecutorT = TypeVar("_ExecutorT", bound=Executor)
_MEBIBYTE = 2**20


class NotObservedError(SwingshiftError):
    """The author's back door does not show what a check has to see."""

    def __init__(self, method: str) -> None:
        """Name what is missing."""
        super().__init__(f"not observed: override BackDoor.{method}")


class BackDoor:
    """What can be seen of one executor past its verbs, by a way that those verbs do not use.

    A verb that lies cannot be found out by asking it. Override what you can see; a check that
    needs more is reported as not observed, and never as passed. The kit makes one for each
    executor, and calls its methods between verbs.
    """

    async def in_flight(self, replica: str) -> int:
        """Return how many requests the engine of a replica itself holds, waiting ones included."""
        raise NotObservedError("in_flight")

    async def token_count(self, replica: str) -> int:
        """Return a count that grows for as long as the engine of a replica generates."""
        raise NotObservedError("token_count")

    async def free_bytes(self, gpu: str) -> int:
        """Return the free memory of a GPU, measured device-wide."""
        raise NotObservedError("free_bytes")

    async def weight_version(self, replica: str) -> int | None:
        """Return the version of the weights that a replica holds; None for one never synced."""
        raise NotObservedError("weight_version")

    async def times_trained(self, batch_id: int) -> int:
        """Return how often the trainer trained on a batch."""
        raise NotObservedError("times_trained")

    async def payload_tokens(self, handle: str) -> int | None:
        """Return for how many tokens a payload holds all that training needs; None if it is gone.

        Only generated tokens count.
        """
        raise NotObservedError("payload_tokens")


def _blind(_: Executor) -> BackDoor:
    return BackDoor()


def _prompts(given: Iterable[Prompt]) -> tuple[Prompt, ...]:
    return tuple(given)


def _are_prompts(given: object) -> bool:
    return isinstance(given, tuple) and len(given) > 1 and all(type(p) is Prompt for p in given)


@attrs.frozen(kw_only=True)
class ExecutorUnderTest(Generic[_ExecutorT]):
    """An executor as `check_executor` needs it.

    Choose prompts and a budget so that a response takes several times ``moment_s`` and ends at its
    budget, not by itself: only such a response can be interrupted, and puts its budget to the
    proof.

    Attributes:
        make: Returns a new executor at each call, not started; called on a running loop of
            ``loop_factory``. Give it two replicas of each kind that it can have: some checks need
            another one.
        prompts: Two or more prompts of the data set.
        observe: Returns the back door of an executor that ``make`` returned.
        loop_factory: Makes the event loop of each check, by default the one of asyncio.
        responses_per_prompt: Responses of each prompt in a batch that is trained.
        max_new_tokens: Token budget of a response.
        moment_s: Seconds after which a request has some tokens and is still under way.
        deadline_s: Seconds after which a call counts as hanging.
        memory_tolerance_bytes: By how much two measurements of one GPU may differ.
    """

    make: Callable[[], _ExecutorT]
    prompts: tuple[Prompt, ...] = attrs.field(
        converter=_prompts,
        validator=Validator("two or more values of Prompt", _are_prompts),
    )
    max_new_tokens: int = attrs.field(validator=integer(ge=2))
    observe: Callable[[_ExecutorT], BackDoor] = _blind
    loop_factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    responses_per_prompt: int = attrs.field(default=2, validator=integer(ge=1))
    moment_s: float = attrs.field(default=0.5, validator=finite(gt=0.0))
    deadline_s: float = attrs.field(default=300.0, validator=finite(gt=0.0))
    memory_tolerance_bytes: int = attrs.field(default=64 * _MEBIBYTE, validator=integer(ge=0))
