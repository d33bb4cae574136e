"""What a law of the policy contract is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

import attrs
from hypothesis import strategies as st

from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.surroundings import Surroundings
from swingshift.sdk.testing.watchdog import StuckError

_T = TypeVar("_T")


class Breach(Exception):  # noqa: N818  # what a law found, and no error of the kit
    """A policy broke a law.

    Attributes:
        message: What happened, and after what.
        example: The run it happened in, in words.
    """

    def __init__(self, message: str, example: object) -> None:
        """Keep both in words."""
        super().__init__(message)
        self.message = message
        self.example = str(example)


class Draw(Protocol):
    """Draws a value; Hypothesis makes it as small as the breach allows."""

    def __call__(self, strategy: st.SearchStrategy[_T], /) -> _T:
        """Return a value of the strategy."""


@attrs.frozen
class Subject:
    """The policy under test.

    Attributes:
        new: Builds one; every judgement starts from a policy just built.
        surroundings: What it could read besides its arguments.
    """

    new: Callable[[], DynamicSchedulePolicyBase]
    surroundings: Surroundings

    def still(self, run: object) -> AbstractContextManager[None]:
        """Keep what it could read as it is, for as long as it is put through a run."""
        return _in_run(run, self.surroundings.still())

    def elsewhere(self, run: object) -> AbstractContextManager[None]:
        """Let it find everything changed, for as long as it is put through a run."""
        return _in_run(run, self.surroundings.elsewhere())


@attrs.frozen(kw_only=True)
class Law:
    """One promise of the policy contract.

    Attributes:
        name: How reports and excuses call it.
        promise: What a policy promises.
        judge: Draws a run, puts the subject through it, and raises `Breach` if it breaks the law.
    """

    name: str
    promise: str
    judge: Callable[[Subject, Draw], None]


@contextmanager
def _in_run(run: object, surroundings: AbstractContextManager[None]) -> Iterator[None]:
    try:
        with surroundings:
            yield
    except StuckError as stuck:
        stuck.run = str(run)
        raise
