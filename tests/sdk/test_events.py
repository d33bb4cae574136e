"""The event types: one name each, frozen, and plain enough for JSON."""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable

import attrs
import pytest

from swingshift.sdk.events import EVENT_TYPES, Event, RequestRouted

EVENTS: tuple[type[Event], ...] = typing.get_args(Event)
EXAMPLES: dict[str, object] = {
    "str": "s",
    "int": 1,
    "float": 0.5,
    "bool": True,
    "int | None": None,
    "float | None": None,
    "Scalar": 2,
    "tuple[str, ...]": ("a", "b"),
    "tuple[int, ...]": (1, 2),
    "Mapping[str, str]": {"a": "b"},
    "Mapping[str, int]": {"a": 1},
    "Mapping[str, float]": {"a": 0.5},
    "Mapping[str, tuple[str, ...]]": {"a": ("b",)},
    "Mapping[str, Scalar | tuple[float, ...] | Mapping[str, Scalar | tuple[float, ...]]]": {
        "a": (0.5,),
        "b": {"c": None},
    },
}


def example(kind: type[Event]) -> Event:
    """Return an event of a class, its fields filled by their annotations."""
    build: Callable[..., Event] = kind
    return build(**{field.name: EXAMPLES[str(field.type)] for field in attrs.fields(kind)})


def plain(value: object) -> object:
    """Return a value as JSON has it: sequences are lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def test_every_event_is_found_under_its_kind() -> None:
    """The table that a reader of a run log uses holds every event, once."""
    assert {event.kind: event for event in EVENTS} == EVENT_TYPES
    assert len(EVENT_TYPES) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_a_kind_is_the_class_name_in_snake_case(event: type[Event]) -> None:
    """Whoever knows the class knows the key in the log, and the other way round."""
    assert re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower() == event.kind


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_an_event_is_plain_json(event: type[Event]) -> None:
    """Every field survives JSON as the same value; the kind is the class's, not the value's."""
    values = attrs.asdict(example(event))
    assert json.loads(json.dumps(values)) == plain(values)
    assert "kind" not in values


def test_an_event_cannot_be_changed() -> None:
    """A sink sees what happened, not what an earlier sink made of it."""
    event = example(RequestRouted)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        setattr(event, "replica", "other")  # noqa: B010
