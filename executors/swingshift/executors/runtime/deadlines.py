"""Deadlines with one rule: on modelled time an expired one is a fault of the control plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swingshift.sdk.errors import SwingshiftError


class AdapterFaultError(SwingshiftError):
    """A call of the executor raised what its contract does not name: the run cannot go on."""


class DeadlineExpiredError(SwingshiftError):
    """A step did not end in its time."""


class UnexpectedDeadlineError(SwingshiftError):
    """A deadline expired where no fault was injected: a wait that nothing would have ended.

    Attributes:
        what: Names the step.
        seconds: What it was given.
    """

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(f"{_overdue(what, seconds)}, and no fault was injected")
        self.what = what
        self.seconds = seconds


def _overdue(what: str, seconds: float) -> str:
    return f"{what} did not end within {seconds:g} s"


class Deadlines:
    """Makes the deadline of every step."""

    def __init__(self, *, expiry_is_fault: bool) -> None:
        """Set the rule.

        Args:
            expiry_is_fault: Raise `UnexpectedDeadlineError`, which ends the run, instead of the
                `DeadlineExpiredError` that the control plane recovers from.
        """
        self._expiry_is_fault = expiry_is_fault

    def expired(self, what: str, seconds: float) -> DeadlineExpiredError:
        """Return the error to recover from, by the rule.

        Raises:
            UnexpectedDeadlineError: Nothing should have made this deadline expire.
        """
        if self._expiry_is_fault:
            raise UnexpectedDeadlineError(what, seconds)
        return DeadlineExpiredError(_overdue(what, seconds))

    @asynccontextmanager
    async def step(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Bound a step.

        Args:
            what: Names the step in the error.
            seconds: From now.

        Raises:
            DeadlineExpiredError: It expired and the caller recovers.
            UnexpectedDeadlineError: It expired and nothing should have made it.
        """
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                yield
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise self.expired(what, seconds) from error

    @asynccontextmanager
    async def call(self, what: str, seconds: float) -> AsyncIterator[None]:
        """Bound a call of the executor, as `step` does.

        Raises:
            ExecutorError: The call failed in a way that its contract names.
            AdapterFaultError: It raised anything else; the cause is kept.
            DeadlineExpiredError: It expired and the caller recovers.
            UnexpectedDeadlineError: It expired and nothing should have made it.
        """
        try:
            async with self.step(what, seconds):
                yield
        except SwingshiftError:
            raise
        except Exception as error:
            raise AdapterFaultError(f"{what}: {type(error).__name__}: {error}") from error


class Watchdog:
    """One deadline of one length for many tasks at once: a single timer instead of one per task.

    A drop-in for ``asyncio.timeout`` on the path of every request, with its rule about
    cancellation: an expired watch turns the cancellation it caused into TimeoutError and passes on
    any other.
    """

    def __init__(self, seconds: float) -> None:
        """Set the length.

        Args:
            seconds: From the start of each watch; above 0.
        """
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        # in order of expiry, since all are of one length
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> Watch:
        """Return a context manager that bounds the current task from now on."""
        task = asyncio.current_task(self._loop)
        if task is None:
            raise RuntimeError("a watch bounds a task; call it from inside one")
        watch = Watch(self, task, self._loop.time() + self._seconds)
        self._watches[watch] = None
        if self._timer is None:
            self._timer = self._loop.call_at(watch.expires_s, self._expire)
        return watch

    def close(self) -> None:
        """Cancel the timer; called at the end of a run, when no watch is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def forget(self, watch: Watch) -> None:
        """End a watch; its context manager calls this."""
        self._watches.pop(watch, None)

    def _expire(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for watch in list(self._watches):
            if watch.expires_s > now_s:
                self._timer = self._loop.call_at(watch.expires_s, self._expire)
                break
            del self._watches[watch]
            watch.expire()


class Watch:
    """One use of a `Watchdog`.

    Attributes:
        expires_s: Loop time at which it expires.
        is_expired: Whether it did.
    """

    __slots__ = ("_cancelling", "_task", "_watchdog", "expires_s", "is_expired")

    def __init__(self, watchdog: Watchdog, task: asyncio.Task[object], expires_s: float) -> None:
        self._watchdog = watchdog
        self._task = task
        self._cancelling = task.cancelling()
        self.is_expired = False
        self.expires_s = expires_s

    def expire(self) -> None:
        """Cancel the task; the watchdog calls this when time is up."""
        self.is_expired = True
        self._task.cancel()

    def __enter__(self) -> None:
        """Do nothing: the watch began when it was made."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the watch.

        Raises:
            TimeoutError: The body ended by the cancellation that the expired watch caused.
        """
        self._watchdog.forget(self)
        if (
            self.is_expired
            and self._task.uncancel() <= self._cancelling
            and kind is asyncio.CancelledError
        ):
            raise TimeoutError
