"""The run log: everything a run did, one line of JSON per event, in files anybody can read.

``docs/run-log.md`` describes the format. The log alone suffices to compute every metric again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TextIO

import attrs

from swingshift.executors.app.run_log_lines import LineEncoder, LineError, decode_event
from swingshift.executors.runtime.measurement import Measurement
from swingshift.sdk.errors import UserError
from swingshift.sdk.events import CycleEnded, Event, PolicyDecided
from swingshift.sdk.metrics import GpuState

FORMAT = "swingshift-run-log"
"""What the first line of every segment calls itself."""

FORMAT_VERSION = 1
"""Raised whenever a reader of the version before could misread a log."""

_BUFFER_BYTES = 1 << 18


class RunLogError(UserError):
    """A run log cannot be written or read; the message names file and line."""


class LoggedEvent(NamedTuple):
    """An event as the run stamped it."""

    sequence: int
    t_s: float
    event: Event


class RunLogWriter:
    """An event sink that writes a run log; also a context manager.

    ``run.jsonl`` is continued in ``run.1.jsonl``, ``run.2.jsonl`` and so on: segments, each with a
    header line, never renamed. A log that lies at the path is replaced, all its segments.
    """

    def __init__(self, path: Path, *, max_bytes: int | None = None) -> None:
        """Begin the log.

        Args:
            path: The first segment; its folder exists.
            max_bytes: Size at which the next segment begins, 1 or more; a segment holds at least
                one event. None for a single segment of any size.

        Raises:
            RunLogError: The file cannot be written, or the size is not positive.
        """
        if max_bytes is not None and max_bytes < 1:
            raise RunLogError(f"max_bytes is {max_bytes}; expected 1 or more, or None")
        self._path = path
        self._encoder = LineEncoder()
        self._max_bytes = max_bytes
        self._segment = 0
        self._has_events = False
        try:
            for number in _continuations(path):
                _segment_path(path, number).unlink()
            self._file = self._open()
        except OSError as error:
            raise RunLogError(f"{path} cannot be written: {error.strerror}") from error

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Append one event; what lies in the buffer is written by `close` at the latest.

        Raises:
            RunLogError: A number in it is not finite, or a value has no place in JSON.
        """
        try:
            line = self._encoder.encode(sequence, t_s, event)
        except LineError as error:
            raise RunLogError(f"{self._path}: {error}") from error
        if self._max_bytes is not None:
            self._make_room(len(line))
        self._file.write(line)

    def close(self) -> None:
        """Write out what is buffered; idempotent."""
        self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _make_room(self, line_bytes: int) -> None:
        if self._has_events and self._bytes + line_bytes > (self._max_bytes or 0):
            self._file.close()
            self._segment += 1
            self._file = self._open()
        self._has_events = True
        self._bytes += line_bytes

    def _open(self) -> TextIO:
        path = _segment_path(self._path, self._segment)
        # lines are ASCII, so their characters are bytes
        file = path.open("w", encoding="ascii", newline="\n", buffering=_BUFFER_BYTES)
        header = json.dumps(_header(self._segment)) + "\n"
        file.write(header)
        self._bytes, self._has_events = len(header), False
        return file


def read_run_log(path: Path) -> Iterator[LoggedEvent]:
    """Yield the events of a run log in order, all segments, checked line by line.

    Args:
        path: The first segment.

    Raises:
        RunLogError: A file is missing or no segment of a log this program reads; a line is cut
            off, no JSON or no event as its class declares it; a sequence number is out of turn.
            Everything before the fault has been yielded.
    """
    continuations = _continuations(path)
    for number in range(len(continuations)):
        if number + 1 != continuations[number]:
            raise RunLogError(f"{_segment_path(path, number + 1)} is missing from the log {path}")
    sequence = 0
    for number in (0, *continuations):
        for event in _read_segment(_segment_path(path, number), number, sequence):
            yield event
            sequence = event.sequence + 1


@attrs.frozen(kw_only=True)
class RecomputedRun:
    """What a run came to, from its log alone.

    Attributes:
        wall_clock_s: Seconds from the first event to the last.
        cycles: Metrics of each sync cycle, in order, by their public names.
        gpu_seconds: GPU-seconds by state; they sum to wall clock x GPUs.
        decisions: Every decision of the guarded policy, in order.
    """

    wall_clock_s: float
    cycles: tuple[Mapping[str, float], ...]
    gpu_seconds: Mapping[GpuState, float]
    decisions: tuple[PolicyDecided, ...]


def recompute(path: Path) -> RecomputedRun:
    """Compute a run's metrics again, from what happened and not from the metrics it logged.

    Raises:
        RunLogError: The log cannot be read.
        LedgerError: GPU states do not sum to wall clock x GPUs.
    """
    measurement = Measurement()
    cycles: list[Mapping[str, float]] = []
    decisions: list[PolicyDecided] = []
    for sequence, t_s, event in read_run_log(path):
        if isinstance(event, CycleEnded):
            cycles.append(measurement.cycle_metrics())
        elif isinstance(event, PolicyDecided):
            decisions.append(event)
        measurement.write(sequence, t_s, event)
    return RecomputedRun(
        wall_clock_s=measurement.elapsed_s,
        cycles=tuple(cycles),
        gpu_seconds=measurement.gpu_seconds(),
        decisions=tuple(decisions),
    )


def _segment_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}.{number}{path.suffix}") if number else path


def _continuations(path: Path) -> list[int]:
    """Return the numbers of the segments that lie beside the first one, in order."""
    name = re.compile(rf"{re.escape(path.stem)}\.([1-9][0-9]*){re.escape(path.suffix)}")
    found = (name.fullmatch(other.name) for other in path.parent.glob("*"))
    return sorted(int(match[1]) for match in found if match)


def _header(segment: int) -> dict[str, str | int]:
    return {"format": FORMAT, "version": FORMAT_VERSION, "segment": segment}


def _read_segment(path: Path, number: int, sequence: int) -> Iterator[LoggedEvent]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise RunLogError(f"{path} cannot be read: {error.strerror}") from error
    with file:
        for line_number, line in enumerate(file, start=1):
            try:
                parsed = _parse(line)
                if line_number == 1:
                    _check_header(parsed, number)
                    continue
                event = LoggedEvent(*decode_event(parsed))
                if event.sequence != sequence:
                    raise LineError(f"seq is {event.sequence}; expected {sequence}")
            except LineError as error:
                raise RunLogError(f"{path} line {line_number}: {error}") from error
            yield event
            sequence += 1
        if file.tell() == 0:
            raise RunLogError(f"{path} line 1: the header is missing; the file is empty")


def _parse(line: bytes) -> Mapping[str, object]:
    if not line.endswith(b"\n"):
        raise LineError(f"the line is cut off after {len(line)} bytes")
    try:
        parsed = json.loads(line[:-1])
    except json.JSONDecodeError as error:
        raise LineError(f"no JSON: {error.msg} at column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise LineError(f"no UTF-8: {error.reason} at byte {error.start}") from error
    if not isinstance(parsed, dict):
        raise LineError("expected a JSON object")
    return parsed


def _check_header(header: Mapping[str, object], number: int) -> None:
    for key, expected in _header(number).items():
        if header.get(key) != expected:
            raise LineError(
                f"the header's {key} is {header.get(key)!r}; this program reads {expected!r} here"
            )
