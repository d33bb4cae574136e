"""Deadlines with one rule: on modelled time an expired deadline is a fault of the control plane
and raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from swingshift.sdk.errors import SwingshiftError


class DeadlineExpiredError(SwingshiftError):
    """A step did not end in its time."""


class UnexpectedDeadlineError(SwingshiftError):
    """A deadline expired where no fault was injected: a wait that nothing would have ended."""


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
        text = f"{what} did not end within {seconds:g} s"
        if self._expiry_is_fault:
            raise UnexpectedDeadlineError(f"{text}, and no fault was injected")
        return DeadlineExpiredError(text)

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
