"""Events as lines of a run log and back: what is written is read as the very same values.

What depends on an event's class alone is worked out once per class, from its annotations: a
template and an encoder per field to write, a check per field to read.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii
from operator import attrgetter, call
from typing import TypeAlias, cast, get_args, get_origin, get_type_hints

import attrs

from swingshift.sdk.events import EVENT_TYPES, Event

SEQUENCE, TIME, KIND = "seq", "t_s", "event"

_Encode: TypeAlias = Callable[[object], str]
_Decode: TypeAlias = Callable[[object], object]

_ENCODER = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
# exact types: a bool is an int to Python, but not to a reader of the log
_LEAVES: Mapping[object, tuple[str, tuple[type, ...]]] = {
    str: ("a string", (str,)),
    int: ("an integer", (int,)),
    float: ("a finite number", (float, int)),
    bool: ("true or false", (bool,)),
    types.NoneType: ("null", (types.NoneType,)),
}


class LineError(ValueError):
    """A line, or the event that should become one, says what the format does not allow."""


class _MismatchError(Exception):
    """A value is not what the annotation says."""


class LineEncoder:
    """Encodes the events of one log; on the hot path of every request.

    Many events share a moment, so the text of the latest time is kept.
    """

    __slots__ = ("_t_s", "_t_text")

    def __init__(self) -> None:
        """Start before the first moment."""
        self._t_s = math.nan
        self._t_text = ""

    def encode(self, sequence: int, t_s: float, event: Event) -> str:
        """Return an event's line, in ASCII with its newline.

        A float is written as the shortest decimal that reads back as the same float.

        Raises:
            LineError: A number is not finite, or a value has no place in JSON.
        """
        if t_s != self._t_s:
            self._t_text = _time_text(sequence, t_s, event)
            self._t_s = t_s
        return _encode_event(sequence, self._t_text, event)


def _time_text(sequence: int, t_s: float, event: Event) -> str:
    try:
        return _encode_number(t_s)
    except (TypeError, ValueError) as error:
        raise LineError(f"event {sequence} cannot be written: {error}; got {event!r}") from error


def _encode_event(sequence: int, t_text: str, event: Event) -> str:
    layout = _LAYOUTS[event.kind]
    try:
        values = map(call, layout.encoders, layout.get(event))
        return layout.template % (sequence, t_text, *values)
    except (TypeError, ValueError) as error:
        raise LineError(f"event {sequence} cannot be written: {error}; got {event!r}") from error


def decode_event(line: Mapping[str, object]) -> tuple[int, float, Event]:
    """Return sequence, time and event of a line.

    Args:
        line: The line as parsed from JSON.

    Raises:
        LineError: The kind is unknown, or a field is missing, unknown or of another type.
    """
    kind = line.get(KIND)
    layout = _LAYOUTS.get(kind) if isinstance(kind, str) else None
    if layout is None:
        raise LineError(f"event is {kind!r}; known kinds: {', '.join(sorted(_LAYOUTS))}")
    for what, names in (
        ("lacks", layout.keys - line.keys()),
        ("has an unknown field", line.keys() - layout.keys),
    ):
        if names:
            raise LineError(f"{kind} {what} {', '.join(map(repr, sorted(names)))}")
    fields: dict[str, object] = {}
    for name, (decode, allowed) in layout.decoders.items():
        try:
            fields[name] = decode(line[name])
        except _MismatchError:
            raise LineError(f"{kind}.{name} is {line[name]!r}; expected {allowed}") from None
    sequence, t_s = cast("int", fields.pop(SEQUENCE)), cast("float", fields.pop(TIME))
    return sequence, t_s, layout.event_type(**fields)


def in_words(annotation: object) -> str:
    """Return what a field's annotation means for its value in JSON."""
    if annotation in _LEAVES:
        return _LEAVES[annotation][0]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return f"a list, each item {in_words(arguments[0])}"
    if origin is Mapping:
        return f"an object, each value {in_words(arguments[1])}"
    return " or ".join(map(in_words, arguments))


class _Layout:
    """How the events of one class are laid out in a line."""

    __slots__ = ("decoders", "encoders", "event_type", "get", "keys", "template")

    def __init__(self, event_type: type[Event]) -> None:
        hints = get_type_hints(event_type)
        names = tuple(field.name for field in attrs.fields(event_type))
        self.event_type: Callable[..., Event] = event_type
        self.keys = frozenset((SEQUENCE, TIME, KIND, *names))
        self.get = _getter(names)
        self.encoders = tuple(_encoder(hints[name]) for name in names)
        self.decoders = {
            name: (_decoder(annotation), in_words(annotation))
            for name, annotation in (
                (SEQUENCE, int),
                (TIME, float),
                *((name, hints[name]) for name in names),
            )
        }
        fields = "".join(f',"{name}":%s' for name in names)
        head = f'"{SEQUENCE}":%s,"{TIME}":%s,"{KIND}":"{event_type.kind}"'
        self.template = f"{{{head}{fields}}}\n"


def _getter(names: tuple[str, ...]) -> Callable[[Event], tuple[object, ...]]:
    get = attrgetter(*names)
    if len(names) == 1:
        return lambda event: (get(event),)
    return get


def _encode_number(value: object) -> str:
    if not isinstance(value, float):
        return int.__repr__(value)  # a TypeError for whatever is no number
    if not math.isfinite(value):
        raise ValueError(f"{value!r} is not finite")
    return float.__repr__(value)


def _encoder(annotation: object) -> _Encode:
    if annotation is str:
        return cast("_Encode", encode_basestring_ascii)
    if annotation is int:
        return int.__repr__
    if annotation is float:
        return _encode_number
    return _ENCODER.encode


def _decoder(annotation: object) -> _Decode:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        return _list_decoder(_decoder(arguments[0]))
    if origin is Mapping:
        return _object_decoder(_decoder(arguments[1]))
    if origin is types.UnionType:
        return _union_decoder(tuple(map(_decoder, arguments)))
    return _leaf_decoder(_LEAVES[annotation][1])


def _leaf_decoder(accepted: tuple[type, ...]) -> _Decode:
    def decode(value: object) -> object:
        if type(value) not in accepted or (isinstance(value, float) and not math.isfinite(value)):
            raise _MismatchError
        return value

    return decode


def _list_decoder(item: _Decode) -> _Decode:
    def decode(value: object) -> object:
        if not isinstance(value, list):
            raise _MismatchError
        return tuple(map(item, value))

    return decode


def _object_decoder(item: _Decode) -> _Decode:
    def decode(value: object) -> object:
        if not isinstance(value, dict):
            raise _MismatchError
        return {name: item(inner) for name, inner in value.items()}

    return decode


def _union_decoder(options: tuple[_Decode, ...]) -> _Decode:
    def decode(value: object) -> object:
        for option in options:
            try:
                return option(value)
            except _MismatchError:
                continue
        raise _MismatchError

    return decode


_LAYOUTS: Mapping[str, _Layout] = {
    kind: _Layout(event_type) for kind, event_type in EVENT_TYPES.items()
}
