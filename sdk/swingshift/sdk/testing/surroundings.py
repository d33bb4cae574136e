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
_BROKEN_DOWN = ("localtime", "gmtime")
_REAL_DATETIME = dt.datetime


@attrs.define
class _Clock:
    now_s: float
    step_s: float

    def read_s(self) -> float:
        self.now_s += self.step_s
        return self.now_s

    def read_ns(self) -> int:
        return int(self.read_s() * 1e9)


class Surroundings:
    """What a policy could read besides its arguments.

    Replaces the functions of `time` and the ``now`` of `datetime.datetime`, in their modules and
    under the names that the policy's own modules imported them by. Other threads see the
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
        with self._held(_Clock(1_000_000_000.0, 0.0), 0):
            yield

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Let every clock show another time and run fast, and seed global randomness otherwise."""
        with self._held(_Clock(1_700_000_000.0, 977.25), 1):
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
    names = (*_SECONDS, *(f"{name}_ns" for name in _SECONDS), *_BROKEN_DOWN)
    return tuple(name for name in names if hasattr(time, name))


def _replacements(clock: _Clock) -> dict[int, object]:
    """Return what stands in for each original, by the original's identity."""
    found: dict[int, object] = {id(_REAL_DATETIME): _datetime_of(clock)}
    for name in _names_of_time():
        original = getattr(time, name)
        if name in _BROKEN_DOWN:
            found[id(original)] = _broken_down(original, clock)
        else:
            found[id(original)] = clock.read_ns if name.endswith("_ns") else clock.read_s
    return found


def _broken_down(
    original: Callable[[float], time.struct_time], clock: _Clock
) -> Callable[[float | None], time.struct_time]:
    def at(seconds: float | None = None) -> time.struct_time:
        return original(clock.read_s() if seconds is None else seconds)

    return at


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
