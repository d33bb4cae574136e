"""Validators and converters that every value of the SDK shares.

A `Validator` goes into ``attrs.field(validator=...)``; its ``check`` serves the arguments of plain
functions. All of them refuse what Python would let pass: ``True`` as a number, NaN and infinity.
Converters only change what they know how to change, so that the validator behind them sees, and
names, what was really given.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

import attrs

from swingshift.sdk.errors import SwingshiftError

_T = TypeVar("_T")
_LARGEST_FLOAT = sys.float_info.max


class InvalidValueError(SwingshiftError, ValueError):
    """An attribute was given a value outside its contract.

    Attributes:
        name: The attribute, with an index for an element: ``step_wait_times[2]``.
        given: The value that was refused.
        allowed: What would have been accepted, in words.
    """

    def __init__(self, name: str, given: object, allowed: str) -> None:
        """Keep the three parts of the message."""
        super().__init__(name, given, allowed)
        self.name = name
        self.given = given
        self.allowed = allowed

    def __str__(self) -> str:
        kind = type(self.given).__name__
        return f"{self.name} must be {self.allowed}; got {self.given!r} ({kind})"


class Named(Protocol):
    """What a validator reads of an ``attrs.Attribute``."""

    @property
    def name(self) -> str:
        """The attribute's name."""


@attrs.frozen
class Validator(Generic[_T]):
    """A test with the words for what passes it.

    Attributes:
        allowed: Completes the sentence "must be ...".
        accepts: Says whether a value passes. It must not raise, whatever the value.
        element: For sequences, the validator of each element: errors can name the element.
    """

    allowed: str
    accepts: Callable[[object], bool]
    element: Validator[object] | None = None

    def __call__(self, instance: object, attribute: Named, value: _T) -> None:
        """Validate an attrs attribute; attrs calls this after conversion."""
        if not self.accepts(value):
            self._refuse(attribute.name, value)

    def check(self, name: str, value: object) -> None:
        """Validate a value that is not an attrs attribute.

        Args:
            name: What to call the value in the error.
            value: Anything.

        Raises:
            InvalidValueError: The value is outside the contract.
        """
        if not self.accepts(value):
            self._refuse(name, value)

    def _refuse(self, name: str, value: object) -> None:
        if self.element is None or not isinstance(value, tuple):
            raise InvalidValueError(name, value, self.allowed)
        accepts = self.element.accepts
        index = next(index for index, item in enumerate(value) if not accepts(item))
        self.element.check(f"{name}[{index}]", value[index])


def finite(
    *, ge: float | None = None, gt: float | None = None, le: float | None = None
) -> Validator[float]:
    """Accept a real number that is neither NaN nor infinite, within the given bounds."""
    # With the largest float as the outer bound, one comparison refuses NaN, infinities and
    # integers that no float can hold.
    low = -_LARGEST_FLOAT if ge is None else ge
    high = _LARGEST_FLOAT if le is None else le

    def accepts(value: object) -> bool:
        if not isinstance(value, (float, int)) or isinstance(value, bool):
            return False
        return low <= value <= high and (gt is None or value > gt)

    return Validator("a finite number" + _bounds(ge, gt, le), accepts)


def integer(*, ge: int | None = None, le: int | None = None) -> Validator[int]:
    """Accept an ``int`` that is not a ``bool``, within the given bounds."""

    def accepts(value: object) -> bool:
        if not isinstance(value, int) or isinstance(value, bool):
            return False
        return (ge is None or value >= ge) and (le is None or value <= le)

    return Validator("an integer" + _bounds(ge, None, le), accepts)


def boolean() -> Validator[bool]:
    """Accept ``True`` and ``False`` alone."""
    return Validator("true or false", lambda value: isinstance(value, bool))


def text() -> Validator[str]:
    """Accept a string with something other than blanks in it."""
    return Validator(
        "a string that is not empty",
        lambda value: isinstance(value, str) and bool(value.strip()),
    )


def instance_of(kind: type[_T]) -> Validator[_T]:
    """Accept an instance of a class."""
    return Validator(f"a {kind.__name__}", lambda value: isinstance(value, kind))


def tuple_of(element: Validator[_T]) -> Validator[tuple[_T, ...]]:
    """Accept a tuple whose elements all pass; a converter turns lists into tuples before it."""

    def accepts(value: object) -> bool:
        return isinstance(value, tuple) and all(map(element.accepts, value))

    return Validator(
        f"a sequence, each element {element.allowed}",
        accepts,
        Validator(element.allowed, element.accepts),
    )


def optional(inner: Validator[_T]) -> Validator[_T | None]:
    """Accept ``None`` besides what another validator accepts."""
    return Validator(
        f"{inner.allowed}, or none",
        lambda value: value is None or inner.accepts(value),
        inner.element,
    )


def to_float(value: float) -> float:
    """Return an ``int`` as a ``float``, and anything else as it is."""
    if type(value) is int and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:
        return float(value)
    return value


def to_optional_float(value: float | None) -> float | None:
    """Return an ``int`` as a ``float``, and anything else, ``None`` included, as it is."""
    return None if value is None else to_float(value)


def to_tuple(value: Iterable[_T]) -> tuple[_T, ...]:
    """Return a list or a deque as a tuple, and anything else as it is."""
    if isinstance(value, (list, deque)):
        return tuple(value)
    return value  # type: ignore[return-value]  # a tuple already, or for the validator to refuse


def to_int_tuple(value: Iterable[int]) -> tuple[int, ...]:
    """Do as `to_tuple` does: attrs' typing needs a converter that is not generic."""
    return to_tuple(value)


def to_float_tuple(value: Iterable[float]) -> tuple[float, ...]:
    """Return a list, deque or tuple as a tuple with each ``int`` as a ``float``."""
    if isinstance(value, (list, deque, tuple)):
        return tuple(map(to_float, value))
    return to_tuple(value)


def _bounds(ge: float | None, gt: float | None, le: float | None) -> str:
    words = [
        f"{sign} {bound}"
        for sign, bound in ((">=", ge), (">", gt), ("<=", le))
        if bound is not None
    ]
    return " " + " and ".join(words) if words else ""
