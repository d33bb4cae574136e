"""Validators that the cost models share: finite, in range, and never a bool taken for a number."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from swingshift.sdk.errors import ConfigError

FloatValidator = Callable[[object, "attrs.Attribute[float]", float], None]
IntValidator = Callable[[object, "attrs.Attribute[int]", int], None]


def number(
    *, above: float | None = None, at_least: float | None = None, at_most: float | None = None
) -> FloatValidator:
    """Return a validator that accepts a finite int or float within the bounds given."""
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", at_least), ("at most", at_most))
        if bound is not None
    ]
    allowed = " ".join(["a finite number", " and ".join(bounds)]).strip()

    def check(instance: object, attribute: attrs.Attribute[float], value: object) -> None:
        accepted = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(value)
            and (above is None or value > above)
            and (at_least is None or value >= at_least)
            and (at_most is None or value <= at_most)
        )
        if not accepted:
            raise ConfigError(_message(instance, attribute.name, value, allowed))

    return check


def whole(at_least: int) -> IntValidator:
    """Return a validator that accepts an int (not a bool) of at least the bound."""

    def check(instance: object, attribute: attrs.Attribute[int], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            allowed = f"an integer of at least {at_least}"
            raise ConfigError(_message(instance, attribute.name, value, allowed))

    return check


def require_whole(name: str, value: object, at_least: int) -> None:
    """Raise `ValueError` unless an argument is an int (not a bool) of at least the bound."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, got {value!r}")


def _message(instance: object, name: str, value: object, allowed: str) -> str:
    return f"{type(instance).__name__}.{name} must be {allowed}, got {value!r}"
