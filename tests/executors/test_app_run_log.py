"""The run log: what is written is what is read, and whatever else is in a file is refused."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.app.run_log import (
    LoggedEvent,
    RunLogError,
    RunLogWriter,
    read_run_log,
    recompute,
)
from swingshift.executors.app.run_log_lines import LineEncoder, LineError, decode_event
from swingshift.sdk.errors import UserError
from swingshift.sdk.events import (
    EVENT_TYPES,
    Advisory,
    CycleEnded,
    Event,
    LentWaitEnded,
    RequestRouted,
    SampleSubmitted,
)

ROUTED = RequestRouted("17/3", "standalone-0", 5, 2, 812)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LEAVES: dict[object, st.SearchStrategy[object]] = {
    str: st.text(),
    int: st.integers(),
    float: FINITE,
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def values(annotation: object) -> st.SearchStrategy[Any]:
    """Return a strategy for whatever an event's field may hold."""
    if annotation in LEAVES:
        return LEAVES[annotation]
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        return st.lists(values(arguments[0]), max_size=3).map(tuple)
    if get_origin(annotation) is Mapping:
        return st.dictionaries(st.text(max_size=5), values(arguments[1]), max_size=3)
    return st.one_of(*map(values, arguments))


def events() -> st.SearchStrategy[Event]:
    """Draw an event of any class with any contents."""
    drawn = []
    for event_type in EVENT_TYPES.values():
        hints = get_type_hints(event_type)
        fields = {field.name: values(hints[field.name]) for field in attrs.fields(event_type)}
        drawn.append(st.builds(event_type, **fields))
    return cast("st.SearchStrategy[Event]", st.one_of(*drawn))


def write(path: Path, *events: Event, max_bytes: int | None = None) -> list[LoggedEvent]:
    """Write events half a second apart, and return them as they must be read."""
    logged = [LoggedEvent(number, number / 2, event) for number, event in enumerate(events)]
    with RunLogWriter(path, max_bytes=max_bytes) as log:
        for entry in logged:
            log.write(*entry)
    return logged


def advisories(count: int) -> list[Event]:
    return [Advisory(f"advice number {number:04d}") for number in range(count)]


@given(st.integers(0, 10**9), FINITE, events())
def test_every_event_is_read_as_it_was_written(sequence: int, t_s: float, event: Event) -> None:
    """Text, integers of any size, floats to the last bit: repr shows every difference."""
    line = LineEncoder().encode(sequence, t_s, event)

    assert line.isascii()
    assert line.endswith("\n")
    assert "\n" not in line[:-1]
    assert repr(decode_event(json.loads(line))) == repr((sequence, t_s, event))


def test_line_is_plain_json() -> None:
    """The keys are the field names, after number, time and kind."""
    assert LineEncoder().encode(41, 12.5, ROUTED) == (
        '{"seq":41,"t_s":12.5,"event":"request_routed","request":"17/3","replica":"standalone-0",'
        '"epoch":5,"attempt":2,"resumed_tokens":812}\n'
    )


@pytest.mark.parametrize(
    ("t_s", "event"),
    [
        (math.nan, Advisory("late")),
        (0.0, CycleEnded(1, {"timing_s/step": math.inf})),
        (0.0, SampleSubmitted(cast("int", "one"), 0, 1, 1)),
        (0.0, Advisory(cast("str", None))),
        (0.0, CycleEnded(1, {"timing_s/step": cast("float", object())})),
    ],
)
def test_what_has_no_place_in_json_is_not_written(tmp_path: Path, t_s: float, event: Event) -> None:
    """A log with NaN in it would be unreadable to most programs."""
    with pytest.raises(LineError, match="event 3 cannot be written"):
        LineEncoder().encode(3, t_s, event)
    with (
        RunLogWriter(tmp_path / "run.jsonl") as log,
        pytest.raises(RunLogError, match=r"run\.jsonl: event 3 cannot be written"),
    ):
        log.write(3, t_s, event)


def test_log_begins_with_a_header_and_continues_in_order(tmp_path: Path) -> None:
    """The first line says what the file is; closing twice is harmless."""
    path = tmp_path / "run.jsonl"
    logged = write(path, ROUTED, *advisories(3))

    header, *lines = path.read_text().splitlines()

    assert json.loads(header) == {"format": "swingshift-run-log", "version": 1, "segment": 0}
    assert len(lines) == 4
    assert list(read_run_log(path)) == logged


@pytest.mark.parametrize("max_bytes", [1, 200, 1_000, 100_000])
def test_segments_keep_to_their_size(tmp_path: Path, max_bytes: int) -> None:
    """Each holds at least one event, none more than fit, and together they are the log."""
    path = tmp_path / "run.jsonl"
    logged = write(path, *advisories(50), max_bytes=max_bytes)

    segments = sorted(tmp_path.iterdir())
    for number, segment in enumerate([path, *(tmp_path / f"run.{i}.jsonl" for i in range(1, 50))]):
        if segment.exists():
            lines = segment.read_text().splitlines()
            assert json.loads(lines[0])["segment"] == number
            assert segment.stat().st_size <= max_bytes or len(lines) == 2
    assert len(segments) == {1: 50, 200: 25, 1_000: 4, 100_000: 1}[max_bytes]
    assert list(read_run_log(path)) == logged


def test_new_log_replaces_the_old_one(tmp_path: Path) -> None:
    """All segments of it, and nothing else in the folder."""
    path = tmp_path / "run.jsonl"
    write(path, *advisories(50), max_bytes=200)
    (tmp_path / "run.x.jsonl").write_text("not ours")

    logged = write(path, ROUTED)

    assert list(read_run_log(path)) == logged
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["run.jsonl", "run.x.jsonl"]


def test_writer_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    """A folder that is missing, a size that is none: errors a user can act on."""
    with pytest.raises(RunLogError, match=r"run\.jsonl cannot be written: No such file"):
        RunLogWriter(tmp_path / "missing" / "run.jsonl")
    with pytest.raises(RunLogError, match="max_bytes is 0; expected 1 or more"):
        RunLogWriter(tmp_path / "run.jsonl", max_bytes=0)
    assert issubclass(RunLogError, UserError)


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    """A log may be closed by hand inside its context."""
    with RunLogWriter(tmp_path / "run.jsonl") as log:
        log.write(0, 0.0, ROUTED)
        log.close()
    assert len(list(read_run_log(tmp_path / "run.jsonl"))) == 1


LINE = '{"seq":1,"t_s":0.5,"event":"advisory","text":"hello"}'


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (LINE[:-9], "the line is cut off after 44 bytes"),
        (LINE[:-9] + "\n", "no JSON: Expecting ':' delimiter at column 45"),
        ('["hello"]\n', "expected a JSON object"),
        (LINE.replace("advisory", "advise") + "\n", "event is 'advise'; known kinds: advisory, "),
        (LINE.replace('"advisory"', "[]") + "\n", r"event is \[\]; known kinds"),
        (LINE.replace(',"text":"hello"', "") + "\n", "advisory lacks 'text'"),
        (LINE.replace('"t_s":0.5,', "") + "\n", "advisory lacks 't_s'"),
        (LINE[:-1] + ',"mood":"good"}\n', "advisory has an unknown field 'mood'"),
        (LINE.replace('"hello"', "7") + "\n", "advisory.text is 7; expected a string"),
        (LINE.replace("0.5", "NaN") + "\n", "advisory.t_s is nan; expected a finite number"),
        (LINE.replace("0.5", "1e999") + "\n", "advisory.t_s is inf; expected a finite number"),
        (LINE.replace('"seq":1', '"seq":true') + "\n", "advisory.seq is True; expected an integer"),
        (LINE.replace('"seq":1', '"seq":2') + "\n", "seq is 2; expected 1"),
    ],
)
def test_bad_line_is_refused_with_its_place(tmp_path: Path, line: str, fault: str) -> None:
    """File, line number, fault; what came before has been yielded."""
    path = tmp_path / "run.jsonl"
    logged = write(path, ROUTED)
    with path.open("a") as file:
        file.write(line)

    reader = read_run_log(path)
    assert next(reader) == logged[0]
    with pytest.raises(RunLogError, match=rf"run\.jsonl line 3: {fault}"):
        next(reader)


def test_line_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A damaged file is told from one with a fault in its JSON."""
    path = tmp_path / "run.jsonl"
    write(path, ROUTED)
    with path.open("ab") as file:
        file.write(b'{"seq":1,"text":"\xff"}\n')
    with pytest.raises(RunLogError, match="line 3: no UTF-8: invalid start byte at byte 17"):
        list(read_run_log(path))


def test_whole_number_in_a_float_field_stays_one() -> None:
    """It is equal either way, and the log does not pretend a precision."""
    line = LineEncoder().encode(0, 1, LentWaitEnded("reached", 3, 2, 2))

    assert '"t_s":1,' in line
    assert '"wait_s":3,' in line
    assert decode_event(json.loads(line)) == (0, 1, LentWaitEnded("reached", 3.0, 2, 2))


@pytest.mark.parametrize(
    ("kind", "field", "value", "allowed"),
    [
        ("run_started", "hybrid_gpus", "t0", "a list, each item a string"),
        ("run_started", "hybrid_gpus", [1], "a list, each item a string"),
        ("cycle_ended", "metrics", [], "an object, each value a finite number"),
        ("cycle_ended", "metrics", {"x": None}, "an object, each value a finite number"),
        ("policy_decided", "forced", 1, "true or false"),
        (
            "policy_decided",
            "answer",
            [],
            "a string or an integer or a finite number or true or fal",
        ),
        ("replica_moved", "version", 1.0, "an integer or null"),
    ],
)
def test_field_of_another_type_is_refused(
    kind: str, field: str, value: object, allowed: str
) -> None:
    """The error says what is allowed, for every shape a field can have."""
    hints = get_type_hints(EVENT_TYPES[kind])
    fields = {f.name: _example(hints[f.name]) for f in attrs.fields(EVENT_TYPES[kind])}
    line = {"seq": 0, "t_s": 0.0, "event": kind, **fields}

    decode_event(line)
    with pytest.raises(LineError) as caught:
        decode_event({**line, field: value})
    assert str(caught.value).startswith(f"{kind}.{field} is {value!r}; expected {allowed}")


def _example(annotation: object) -> object:
    origin = get_origin(annotation)
    if origin is types.UnionType:
        return _example(get_args(annotation)[0])
    examples = {str: "x", int: 1, float: 0.5, bool: True, tuple: [], Mapping: {}}
    return examples[cast("type", origin or annotation)]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("", "line 1: the header is missing; the file is empty"),
        (
            LINE + "\n",
            "line 1: the header's format is None; this program reads 'swingshift-run-log'",
        ),
        (
            '{"format": "swingshift-run-log", "version": 2, "segment": 0}\n',
            "line 1: the header's version is 2; this program reads 1 here",
        ),
        (
            '{"format": "swingshift-run-log", "version": 1, "segment": 4}\n',
            "line 1: the header's segment is 4; this program reads 0 here",
        ),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, fault: str) -> None:
    """What is no run log, or one of another version, says so at its first line."""
    path = tmp_path / "run.jsonl"
    path.write_text(content)
    with pytest.raises(RunLogError, match=fault):
        list(read_run_log(path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    """The log itself, or a segment from its middle."""
    path = tmp_path / "run.jsonl"
    with pytest.raises(RunLogError, match=r"run\.jsonl cannot be read: No such file"):
        list(read_run_log(path))
    write(path, *advisories(10), max_bytes=200)
    (tmp_path / "run.2.jsonl").unlink()
    with pytest.raises(RunLogError, match=r"run\.2\.jsonl is missing from the log"):
        list(read_run_log(path))


def test_sequence_runs_on_through_segments(tmp_path: Path) -> None:
    """A segment of another run does not pass for a part of this one."""
    path = tmp_path / "run.jsonl"
    write(path, *advisories(4), max_bytes=200)
    second = tmp_path / "run.1.jsonl"
    lines = second.read_text().splitlines(keepends=True)
    second.write_text("".join([lines[0], *lines[2:]]))

    with pytest.raises(RunLogError, match=r"run\.1\.jsonl line 2: seq is 3; expected 2"):
        list(read_run_log(path))


def test_log_without_a_start_recomputes_to_nothing(tmp_path: Path) -> None:
    """There is nothing to measure, and nothing breaks."""
    path = tmp_path / "run.jsonl"
    write(path, *advisories(3))

    again = recompute(path)

    assert (again.wall_clock_s, again.cycles, again.decisions) == (1.0, (), ())
    assert not again.gpu_seconds
