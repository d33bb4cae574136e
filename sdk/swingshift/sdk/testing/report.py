"""What a check of a policy found: a verdict on every law, and all breaches at once."""

from __future__ import annotations

import enum
import textwrap

import attrs

from swingshift.sdk.testing.violation import ContractViolation

_WIDTH = 96


class Verdict(enum.Enum):
    """What became of a law, or of the excuse for breaking it."""

    HOLDS = "holds"
    """No run was found that breaks it."""

    VIOLATED = "VIOLATED"
    """It is broken, and nothing excuses that."""

    EXCUSED = "excused"
    """It is broken, as was expected."""

    UNEXCUSED = "NOT BROKEN"
    """It was expected to be broken and holds: the excuse hides the next breach."""


@attrs.frozen(kw_only=True)
class LawResult:
    """The verdict on one law.

    Attributes:
        check: The law's name.
        promise: What a policy promises.
        verdict: What became of it.
        message: What happened and after what, or why an excuse is not needed; empty if it holds.
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
        """Whether something has to be repaired: the policy, or its excuses."""
        return self.verdict in (Verdict.VIOLATED, Verdict.UNEXCUSED)

    def __str__(self) -> str:
        head = f"{self.verdict.value:<10} {self.check}: {self.promise}"
        more = (
            self.message,
            f"smallest run: {self.example}" if self.example else "",
            f"excuse: {self.excuse}" if self.excuse else "",
        )
        return "\n".join([head, *(_indented(text) for text in more if text)])


@attrs.frozen(kw_only=True)
class PolicyCheckReport:
    """What `check_policy` found.

    Attributes:
        policy: Name of the policy's class.
        results: One per law judged, in the order of the laws.
    """

    policy: str
    results: tuple[LawResult, ...]

    @property
    def violations(self) -> tuple[LawResult, ...]:
        """The laws that are broken without an excuse, and the excuses that are not needed."""
        return tuple(result for result in self.results if result.is_violation)

    @property
    def is_sound(self) -> bool:
        """Whether there is no violation."""
        return not self.violations

    def assert_sound(self) -> None:
        """Do nothing for a sound policy.

        Raises:
            ContractViolation: There are violations; the message holds them all.
        """
        __tracebackhide__ = True
        if self.violations:
            raise ContractViolation(self.policy, self.violations)

    def __str__(self) -> str:
        broken, judged = len(self.violations), len(self.results)
        head = f"{self.policy}: {broken} of {judged} laws violated"
        if not broken:
            head = f"{self.policy}: keeps the contract, {judged} laws judged"
        return "\n".join([head, *(textwrap.indent(str(result), "  ") for result in self.results)])


def _indented(text: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=" " * 11, subsequent_indent=" " * 13)
