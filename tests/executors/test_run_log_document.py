"""``docs/run-log.md`` describes every kind of event as its class does.

``SWINGSHIFT_REGENERATE_GOLDENS=1`` writes the reference in the document anew.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import get_type_hints

import attrs

from swingshift.executors.app.run_log import FORMAT_VERSION, read_run_log
from swingshift.executors.app.run_log_lines import in_words
from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.events import EVENT_TYPES
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.metrics import GpuState

DOCUMENT = Path(__file__).parents[2] / "docs" / "run-log.md"
BEGIN, END = "<!-- reference: begin -->\n", "<!-- reference: end -->\n"


def descriptions(event_type: type) -> dict[str, str]:
    """Return what the class's docstring says of each field."""
    _, _, attributes = inspect.cleandoc(event_type.__doc__ or "").partition("Attributes:\n")
    fields, _, _ = attributes.partition("\n\n")
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", fields, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text).replace("``", "`") for name, text in found}


def table(kind: type, words: Callable[[str], str]) -> Iterator[str]:
    """Yield a table of a class's fields."""
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for name, text in descriptions(kind).items():
        yield f"| `{name}` | {words(name)} | {text} |"
    yield ""


def reference() -> Iterator[str]:
    """Yield the lines of the reference."""
    for kind, event_type in EVENT_TYPES.items():
        hints = get_type_hints(event_type)

        def words(name: str, hints: Mapping[str, object] = hints) -> str:
            return "a snapshot, see below" if name == "context" else in_words(hints[name])

        yield f"### `{kind}`"
        yield ""
        yield inspect.cleandoc(event_type.__doc__ or "").splitlines()[0].replace("``", "`")
        yield ""
        yield from table(event_type, words)
    yield "### Snapshots"
    yield ""
    yield "What a policy sees when it is asked, and what a decision is logged with."
    yield ""
    hints = get_type_hints(DynamicScheduleContext)
    yield from table(
        DynamicScheduleContext,
        lambda name: "telemetry or null" if name == "telemetry" else in_words(hints[name]),
    )
    yield "Telemetry:"
    yield ""
    yield from table(Telemetry, lambda name: in_words(get_type_hints(Telemetry)[name]))
    yield "### States"
    yield ""
    for states in (ControllerState, ReplicaState, GpuState):
        yield f"- `{states.__name__}`: {', '.join(f'`{state.value}`' for state in states)}"
    yield ""


def test_every_field_of_every_event_is_described() -> None:
    """Where an event's class says nothing about a field, the document could not either."""
    for event_type in (*EVENT_TYPES.values(), DynamicScheduleContext, Telemetry):
        assert list(descriptions(event_type)) == [f.name for f in attrs.fields(event_type)]


def test_document_has_the_reference_of_every_event() -> None:
    """Kinds, fields, types and meanings are those of the classes."""
    expected = "\n".join(reference())
    text = DOCUMENT.read_text()
    head, _, rest = text.partition(BEGIN)
    written, _, tail = rest.partition(END)

    if os.environ.get("SWINGSHIFT_REGENERATE_GOLDENS") == "1":
        DOCUMENT.write_text(f"{head}{BEGIN}\n{expected}{END}{tail}")
        written = f"\n{expected}"

    assert written == f"\n{expected}"


def test_example_in_the_document_is_a_log(tmp_path: Path) -> None:
    """Whoever copies it has a file that can be read."""
    [example] = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    path = tmp_path / "run.jsonl"
    path.write_text(example)

    assert json.loads(example.splitlines()[0])["version"] == FORMAT_VERSION
    assert len(list(read_run_log(path))) == len(example.splitlines()) - 1 > 3
