"""What a check of the contract kit reports, and the error that carries it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import attrs

from swingshift.sdk.errors import SwingshiftError


class Finding(Protocol):
    """What every breach of a contract has; as a string it says all that is known of it."""

    @property
    def check(self) -> str:
        """Name of the check that found it."""


@attrs.frozen(kw_only=True)
class Violation:
    """One breach of the contract that an event log shows.

    Attributes:
        check: Name of the check that found it.
        sequence: Number of the event that showed it; None when the end of the log did.
        t_s: Time of that event in seconds.
        text: What was seen and what the contract wants.
    """

    check: str
    sequence: int | None
    t_s: float
    text: str

    def __str__(self) -> str:
        place = "at the end" if self.sequence is None else f"at event {self.sequence}"
        return f"{self.check}: {place} ({self.t_s:g} s): {self.text}"


class ContractViolation(SwingshiftError, AssertionError):  # noqa: N818  # what it is, not its cause
    """Something under test broke its contract; the message lists every violation.

    Attributes:
        violations: All of them, in the order they were found.
    """

    def __init__(self, subject: str, violations: Iterable[Finding]) -> None:
        """Word the message.

        Args:
            subject: What was checked.
            violations: What was found, one or more.
        """
        self.violations: tuple[Finding, ...] = tuple(violations)
        count = len(self.violations)
        head = f"{subject} breaks its contract in {count} place{'s' if count > 1 else ''}:"
        super().__init__("\n  ".join((head, *map(str, self.violations))))
