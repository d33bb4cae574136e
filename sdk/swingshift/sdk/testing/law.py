"""What a law of the policy contract is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import attrs
from hypothesis import strategies as st

from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.surroundings import Surroundings

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
