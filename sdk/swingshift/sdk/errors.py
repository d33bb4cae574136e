"""Errors grouped by consequence, and the wording they share.

Every error a user can cause says what was given, what is allowed and what to do. The command line
prints a `UserError` as one line and exits with status 2; anything else is a fault of the system or
of a plug-in.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SwingshiftError(Exception):
    """Base of every error that swingshift raises on purpose."""


class UserError(SwingshiftError):
    """Something the user wrote cannot be used; the message says what to write instead."""


class ConfigError(UserError):
    """A configuration key or value is not acceptable."""


class UnknownNameError(UserError):
    """A name is not registered: policy, executor, scenario or metric."""

    def __init__(self, what: str, given: str, known: Iterable[str]) -> None:
        """Word the message.

        Args:
            what: The kind of thing looked up, for example ``"policy"``.
            given: The name that was asked for.
            known: Every name that would have been accepted.
        """
        names = sorted(known)
        super().__init__(
            f"unknown {what} {given!r}{did_you_mean(given, names)}; "
            f"known: {', '.join(names) or 'none'}"
        )


class PolicyError(SwingshiftError):
    """A policy raised, or answered with a value outside its contract."""


class CallOrderError(SwingshiftError):
    """The caller asked a policy out of turn: a fault of the control plane, never of the policy."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, or "" when none is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""
