"""A limit on how long a policy may compute before it comes back."""

from __future__ import annotations

import signal
import threading  # noqa: TID251  # tells which thread this is; none is started
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeVar

_T = TypeVar("_T")
_SDK = "swingshift.sdk."

LIMIT_S = 2.0
"""Seconds of processor time that one call of a policy may take; a usual one takes microseconds.

Processor time, so that neither a busy machine nor the prompt of a debugger is taken for a hang.
"""


# A KeyboardInterrupt, because whatever goes on after an Exception ends with one: the guard of a
# policy, Hypothesis and event loops.
class StuckError(KeyboardInterrupt):
    """A call took longer than its limit.

    Attributes:
        run: The run it was made in, in words; empty where that is not known.
    """

    run = ""


class _Alarm(KeyboardInterrupt):
    """The time is up."""


@contextmanager
def watchdog() -> Iterator[None]:
    """Let `within_limit` end what takes too long, in the body and in the main thread.

    Elsewhere, and where the operating system has no timer of processor time, it ends nothing.
    """
    if not hasattr(signal, "setitimer") or not _is_main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGVTALRM, before or signal.SIG_DFL)


def within_limit(what: str, call: Callable[[], _T], limit_s: float | None = None) -> _T:
    """Return what a call returns.

    A call that catches everything, or that stays within one call of compiled code, is not ended.

    Args:
        what: The call, for the error's message.
        call: Is called once.
        limit_s: Processor time it may take, in seconds; `LIMIT_S` if None.

    Raises:
        StuckError: It took longer.
    """
    limit_s = LIMIT_S if limit_s is None else limit_s
    if not restart(limit_s):
        return call()
    try:
        try:
            return call()
        finally:
            _stop()
    except _Alarm as alarm:
        _stop()  # the alarm may have come before the first of the two did it
        place = _place(alarm)
        raise StuckError(
            f"{what} took more than {limit_s:g} s of computing and was ended{place}"
        ) from None


def restart(limit_s: float) -> bool:
    """Begin the time limit of the call under way anew; return whether there can be a limit."""
    if not (
        hasattr(signal, "setitimer")
        and _is_main_thread()
        and signal.getsignal(signal.SIGVTALRM) is _interrupt
    ):
        return False
    # again and again, for a call that goes on after the first alarm
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s, limit_s)
    return True


def _stop() -> None:
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise _Alarm


def _place(alarm: _Alarm) -> str:
    """Return where a call was ended: the innermost line that is none of this kit or of its SDK."""
    lines = [
        f" at line {line} of {Path(frame.f_code.co_filename).name}"
        for frame, line in traceback.walk_tb(alarm.__traceback__)
        if not frame.f_globals.get("__name__", "").startswith(_SDK)
    ]
    return lines[-1] if lines else ""


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
