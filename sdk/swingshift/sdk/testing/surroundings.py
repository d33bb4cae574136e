"""Clocks and global randomness as a policy would find them, under the kit's control.

A policy must read neither. Held still, they keep such a policy from disturbing the other checks;
changed between two replays of one history, they show it.
"""

from __future__ import annotations

import datetime as dt
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

_SECONDS = ("time", "monotonic", "perf_counter", "process_time", "thread_time")
_OF_SECONDS = ("localtime", "gmtime", "ctime")
_BY_NUMBER = ("clock_gettime", "clock_gettime_ns")
_FORMATTING = ("asctime", "strftime")
_REAL_DATETIME = dt.datetime
_THEN_NS = 1_000_000_000_000_000_000
_LATER_NS = 1_700_000_000_000_000_000
# odd, so that no digit of a reading stays as it was
_STEP_NS = 977_251_937_113


@attrs.define
class _Clock:
    now_ns: int
    step_ns: int

    def read_ns(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def read_s(self) -> float:
        return self.read_ns() / 1e9


class Surroundings:
    """What a policy could read besides its arguments.

    Replaces whatever in `time` and `datetime` tells the time, in their modules and under the names
    that the policy's own modules imported it by. Other threads see the
    replacements too, so hold them for as long as a policy runs and no longer.
    """

    def __init__(self, policy: object) -> None:
        """Find the modules of a policy.

        Args:
            policy: One policy of the class that will run.
        """
        own = (sys.modules.get(cls.__module__) for cls in type(policy).__mro__)
        modules = {id(module): module for module in (time, dt, *own) if module is not None}
        originals = {id(getattr(time, name)) for name in _names_of_time()} | {id(_REAL_DATETIME)}
        self._places = [
            (module, name, value)
            for module in modules.values()
            for name, value in vars(module).items()
            if id(value) in originals
        ]

    @contextmanager
    def still(self) -> Iterator[None]:
        """Stop every clock, and give global randomness one fixed seed."""
        with self._held(_Clock(_THEN_NS, 0), 0):
            yield

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let every clock show another time and run fast, and seed global randomness otherwise."""
        with self._held(_Clock(_LATER_NS, _STEP_NS), 1):
            yield

    @contextmanager
    def _held(self, clock: _Clock, seed: int) -> Iterator[None]:
        replacements = _replacements(clock)
        drawn = random.getstate()
        random.seed(seed)
        for module, name, original in self._places:
            setattr(module, name, replacements[id(original)])
        try:
            yield
        finally:
            for module, name, original in self._places:
                setattr(module, name, original)
            random.setstate(drawn)


def _names_of_time() -> tuple[str, ...]:
    seconds = (*_SECONDS, *(f"{name}_ns" for name in _SECONDS))
    names = (*seconds, *_OF_SECONDS, *_BY_NUMBER, *_FORMATTING)
    return tuple(name for name in names if hasattr(time, name))


def _replacements(clock: _Clock) -> dict[int, object]:
    """Return what stands in for each original, by the original's identity.

    ``datetime.date.today`` needs nothing: it asks `time.time`.
    """
    found: dict[int, object] = {id(_REAL_DATETIME): _datetime_of(clock)}
    local = time.localtime
    for name in _names_of_time():
        original = getattr(time, name)
        read = clock.read_ns if name.endswith("_ns") else clock.read_s
        if name in _OF_SECONDS:
            found[id(original)] = _of_seconds(original, clock)
        elif name in _BY_NUMBER:
            found[id(original)] = _by_number(read)
        elif name in _FORMATTING:
            found[id(original)] = _formatting(original, lambda: local(clock.read_s()))
        else:
            found[id(original)] = read
    return found


def _of_seconds(original: Callable[[float], object], clock: _Clock) -> Callable[..., object]:
    def at(seconds: float | None = None) -> object:
        return original(clock.read_s() if seconds is None else seconds)

    return at


def _by_number(read: Callable[[], float]) -> Callable[[int], float]:
    def read_any(_number: int, /) -> float:
        return read()

    return read_any


def _formatting(
    original: Callable[..., str], now: Callable[[], time.struct_time]
) -> Callable[..., str]:
    def formatted(*arguments: object) -> str:
        """Put the present time where none is given: the time is the last argument."""
        is_given = any(isinstance(argument, tuple) for argument in arguments)
        return original(*arguments) if is_given else original(*arguments, now())

    return formatted


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _REAL_DATETIME)


def _datetime_of(clock: _Clock) -> type[dt.datetime]:
    class Datetime(_REAL_DATETIME, metaclass=_AnyDatetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return _REAL_DATETIME.fromtimestamp(clock.read_s(), tz)

        @classmethod
        def utcnow(cls) -> dt.datetime:  # type: ignore[override]
            return cls.now(dt.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> dt.datetime:  # type: ignore[override]
            return cls.now()

    return Datetime
