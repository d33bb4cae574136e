"""What the contract kit found: a verdict on every promise, and all breaches at once."""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Iterable, Mapping

import attrs

from swingshift.sdk.errors import UnknownNameError
from swingshift.sdk.testing.violation import ContractViolation
from swingshift.sdk.validators import text

_WIDTH = 96


class Verdict(enum.Enum):
    """What became of a promise, or of the excuse for breaking it."""

    HOLDS = "holds"
    """Nothing was found that breaks it."""

    VIOLATED = "VIOLATED"
    """It is broken, and nothing excuses that."""

    EXCUSED = "excused"
    """It is broken, as was expected."""

    UNEXCUSED = "NOT BROKEN"
    """It was expected to be broken and holds: the excuse hides the next breach."""

    NOT_JUDGED = "not judged"
    """It could not be put to the proof; the message says what that needs."""


@attrs.frozen(kw_only=True)
class CheckResult:
    """The verdict on one promise of a contract.

    Attributes:
        check: Name of the check that judged it.
        promise: What is promised.
        verdict: What became of it.
        message: What happened and after what, why an excuse is not needed, or why there is no
            judgement; empty if it holds.
        example: The smallest run that shows it, in words; empty if there is none.
        excuse: The reason given for an expected failure, empty if none was.
    """

    check: str
    promise: str
    verdict: Verdict
    message: str = ""
    example: str = ""
    excuse: str = ""

    @property
    def is_violation(self) -> bool:
        """Whether something has to be repaired: what was checked, or its excuses."""
        return self.verdict in (Verdict.VIOLATED, Verdict.UNEXCUSED)

    @classmethod
    def of(
        cls, check: str, promise: str, breach: tuple[str, str] | None, excuse: str
    ) -> CheckResult:
        """Return the verdict on a promise that was put to the proof.

        Args:
            check: Name of the check.
            promise: What is promised.
            breach: What happened, and the smallest run that shows it; ``None`` if it holds.
            excuse: The reason given for an expected failure, empty if none was.
        """
        message, example = breach or ("", "")
        if breach is not None:
            verdict = Verdict.EXCUSED if excuse else Verdict.VIOLATED
        elif excuse:
            verdict = Verdict.UNEXCUSED
            message = "the promise holds: remove it from expected_failures"
        else:
            verdict = Verdict.HOLDS
        return cls(
            check=check,
            promise=promise,
            verdict=verdict,
            message=message,
            example=example,
            excuse=excuse,
        )

    def __str__(self) -> str:
        head = f"{self.verdict.value:<10} {self.check}: {self.promise}"
        more = (
            self.message,
            f"smallest run: {self.example}" if self.example else "",
            f"excuse: {self.excuse}" if self.excuse else "",
        )
        return "\n".join([head, *(_indented(words) for words in more if words)])


@attrs.frozen(kw_only=True)
class CheckReport:
    """What `check_policy` or `check_executor` found.

    Attributes:
        subject: Name of the class that was checked.
        results: One per promise, in the order of the contract.
    """

    subject: str
    results: tuple[CheckResult, ...]

    @property
    def violations(self) -> tuple[CheckResult, ...]:
        """The promises broken without an excuse, and the excuses that are not needed."""
        return tuple(result for result in self.results if result.is_violation)

    @property
    def not_judged(self) -> tuple[CheckResult, ...]:
        """The promises that could not be put to the proof."""
        return tuple(item for item in self.results if item.verdict is Verdict.NOT_JUDGED)

    @property
    def is_sound(self) -> bool:
        """Whether there is no violation."""
        return not self.violations

    def assert_sound(self) -> None:
        """Do nothing if there is no violation.

        Raises:
            ContractViolation: There are some; the message holds them all.
        """
        __tracebackhide__ = True
        if self.violations:
            raise ContractViolation(self.subject, self.violations)

    def __str__(self) -> str:
        broken, left_out = len(self.violations), len(self.not_judged)
        judged = len(self.results) - left_out
        head = f"{self.subject}: {broken} of {judged} promises broken"
        if not broken:
            head = f"{self.subject}: keeps the contract, {judged} promises judged"
        if left_out:
            head += f", {left_out} not judged"
        return "\n".join([head, *(textwrap.indent(str(result), "  ") for result in self.results)])


def checked_excuses(
    what: str, chosen: Iterable[str], excuses: Mapping[str, str] | None, known: Iterable[str]
) -> dict[str, str]:
    """Return the excuses, if they and the choice of checks can be used.

    Args:
        what: How the contract calls a check.
        chosen: Names of the checks to make.
        excuses: Names of checks expected to fail, with the reason.
        known: All names.

    Raises:
        UnknownNameError: A name is not known.
        InvalidValueError: A reason is missing.
    """
    names, given = tuple(known), dict(excuses or {})
    for name in (*chosen, *given):
        if name not in names:
            raise UnknownNameError(what, name, names)
    for name, reason in given.items():
        text().check(f"expected_failures[{name!r}]", reason)
    return given


def _indented(words: str) -> str:
    return textwrap.fill(words, _WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 13)
