"""Attributes to JSON and back, exactly: what the policy base class saves its state with."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from swingshift.sdk.errors import PolicyError

# Marks values that JSON has no word for. A dict of the policy may not use it as a key.
_KIND = "__kind__"


def attributes_of(owner: object) -> dict[str, object]:
    """Return all instance attributes of an object, those in ``__slots__`` included."""
    found: object = object.__getstate__(owner)
    parts = found if isinstance(found, tuple) else (found,)
    return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}


def encode(name: str, value: object) -> object:
    """Return a value as JSON can carry it, sharing nothing with the value.

    Args:
        name: What to call the value in an error.
        value: ``None``, a boolean, number or string, or a list, tuple, deque or string-keyed dict
            of such values, nested at will.

    Raises:
        PolicyError: The value, or one inside it, is of another type. Subclasses count as other
            types because they would not come back as what they were.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_KIND: "float", "value": str(value)}
    if isinstance(value, (list, tuple, deque)) and kind in (list, tuple, deque):
        items = [encode(f"{name}[{index}]", item) for index, item in enumerate(value)]
        if kind is list:
            return items
        limit = {"maxlen": value.maxlen} if isinstance(value, deque) else {}
        return {_KIND: kind.__name__, "items": items, **limit}
    if isinstance(value, dict) and kind is dict and _is_plain(value):
        return {key: encode(f"{name}[{key!r}]", item) for key, item in value.items()}
    raise PolicyError(
        f"{name} cannot be saved: it is {value!r} ({kind.__name__}); keep None, booleans, numbers,"
        " strings, and lists, tuples, deques or string-keyed dicts of them, or override"
        " state_dict and load_state_dict"
    )


def decode(value: object) -> object:
    """Return what `encode` was given, sharing nothing with the encoded value.

    Raises:
        PolicyError: The value does not come from `encode`.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    match dict(value):
        case {"__kind__": "float", "value": str(word)}:
            return float(word)
        case {"__kind__": "tuple", "items": list(items)}:
            return tuple(decode(item) for item in items)
        case {"__kind__": "deque", "items": list(items), "maxlen": int() | None as limit}:
            return deque((decode(item) for item in items), limit)
        case {"__kind__": kind}:
            raise PolicyError(f"a saved state holds a value of the unknown kind {kind!r}")
        case plain:
            return {key: decode(item) for key, item in plain.items()}


def _is_plain(keys: Iterable[object]) -> bool:
    return all(type(key) is str and key != _KIND for key in keys)
