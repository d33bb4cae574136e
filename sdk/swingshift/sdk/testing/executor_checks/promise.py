"""What a group of promises is made of, and how a judgement ends other than well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from swingshift.sdk.testing.executor_checks.stage import Stage

Judge: TypeAlias = "Callable[[Stage], Awaitable[None]]"
"""Puts an executor that was just made through a few verbs.

It raises `BrokenPromise` if the executor breaks the promise, and `NotOffered` if the executor does
not have what the promise is about.
"""


class BrokenPromise(Exception):  # noqa: N818  # the executor's, and no error of the kit
    """An executor did not do what it promises; the message says what it did."""


class NotOffered(Exception):  # noqa: N818  # no error: the promise is about something else
    """The executor lacks what a promise is about; the message says what."""


@attrs.frozen(kw_only=True)
class Promise:
    """One promise of the executor contract.

    Attributes:
        name: Its group and its own name, with a dot between them.
        text: What an executor promises.
        judge: Judges an executor by it.
    """

    name: str
    text: str
    judge: Judge


class Group:
    """The promises of one area, in the order of their definition."""

    def __init__(self, name: str) -> None:
        """Begin with none."""
        self.name = name
        self._promises: list[Promise] = []

    def promise(self, text: str, name: str = "") -> Callable[[Judge], Judge]:
        """Return a decorator that adds a promise.

        Args:
            text: What an executor promises.
            name: Its own name, by default that of the function that judges it.
        """

        def add(judge: Judge) -> Judge:
            own_name = name or getattr(judge, "__name__", "").lstrip("_")
            self._promises.append(Promise(name=f"{self.name}.{own_name}", text=text, judge=judge))
            return judge

        return add

    @property
    def promises(self) -> tuple[Promise, ...]:
        """All of them."""
        return tuple(self._promises)


def expect(holds: bool, otherwise: str) -> None:
    """Do nothing if something holds.

    Raises:
        BrokenPromise: It does not, with ``otherwise`` as the message.
    """
    if not holds:
        raise BrokenPromise(otherwise)
