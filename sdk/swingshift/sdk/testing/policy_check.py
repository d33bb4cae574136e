"""Check a policy against every law of its contract."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import hypothesis
from hypothesis import HealthCheck, Phase, configuration, given
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from swingshift.sdk.errors import UserError
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing.law import Breach, Law, Subject
from swingshift.sdk.testing.laws import LAW_NAMES, LAWS
from swingshift.sdk.testing.report import CheckReport, CheckResult, checked_excuses
from swingshift.sdk.testing.surroundings import Surroundings
from swingshift.sdk.testing.watchdog import StuckError, watchdog, within_limit
from swingshift.sdk.validators import integer

MAX_EXAMPLES = 100
"""Runs drawn for each law, unless told otherwise."""


def check_policy(
    factory: Callable[[], DynamicSchedulePolicyBase],
    *,
    expected_failures: Mapping[str, str] | None = None,
    max_examples: int = MAX_EXAMPLES,
    laws: Iterable[str] | None = None,
    seed: int = 0,
) -> CheckReport:
    """Return a verdict on every law of the policy contract, each breach with its smallest run.

    Authors call it in a test, and ``assert_sound()`` on the report. It is deterministic: the same
    call in the same program gives the same report. It leaves no file behind.

    Args:
        factory: Returns a new policy at each call, always built alike.
        expected_failures: Laws the policy is known to break, with the reason. One that holds is
            a violation too.
        max_examples: Runs drawn for each law, 1 or more.
        laws: Names of the laws to judge, by default all; excuses for others are not considered.
        seed: Selects the runs.

    Returns:
        The report; ``print`` shows it.

    Raises:
        UnknownNameError: There is no law of that name.
        UserError: The factory does not return, or not a new policy at each call.
        InvalidValueError: ``max_examples`` is no count, or an excuse has no reason.
    """
    chosen = LAW_NAMES if laws is None else tuple(laws)
    excuses = checked_excuses("law", chosen, expected_failures, LAW_NAMES)
    integer(ge=1).check("max_examples", max_examples)
    policy = new_policy(factory)
    if policy is new_policy(factory):
        raise UserError(
            "the factory returned the same policy twice; it must build a new one at each call"
        )
    subject = Subject(partial(_built, factory), Surroundings(policy))
    with _no_files_left(), watchdog():
        results = tuple(
            _result(law, _breach(law, subject, max_examples, seed), excuses)
            for law in LAWS
            if law.name in chosen
        )
    return CheckReport(subject=type(policy).__name__, results=results)


def new_policy(factory: Callable[[], DynamicSchedulePolicyBase]) -> DynamicSchedulePolicyBase:
    """Return a policy that a factory builds, whatever else its constructor may do.

    Args:
        factory: Builds it.

    Raises:
        UserError: It ends the program, takes too long, or builds something else.
    """
    try:
        with watchdog():
            policy: object = _built(factory)
    except StuckError as stuck:
        raise UserError(f"no policy can be built: {stuck}; it must come to an end") from None
    if not isinstance(policy, DynamicSchedulePolicyBase):
        raise UserError(
            f"the factory must return a DynamicSchedulePolicyBase; got {policy!r}; pass a policy's"
            " class, or a lambda that builds one"
        )
    return policy


def _built(factory: Callable[[], DynamicSchedulePolicyBase]) -> DynamicSchedulePolicyBase:
    try:
        return within_limit("the constructor", factory)
    except SystemExit as error:
        raise UserError(
            f"no policy can be built: the constructor raised SystemExit: {error}; it must not end"
            " the program"
        ) from error


def _breach(law: Law, subject: Subject, max_examples: int, seed: int) -> Breach | None:
    """Return the breach of a law with the smallest run that Hypothesis finds, if there is one."""
    seen: list[Breach] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=max_examples,
        database=None,
        deadline=None,
        derandomize=False,
        phases=(Phase.generate, Phase.shrink),
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        try:
            law.judge(subject, data.draw)
        except Breach as breach:
            seen.append(breach)
            raise

    try:
        holds()
    except Breach as breach:
        return breach
    except Flaky:
        last = seen[-1]
        return Breach(f"{last.message} (not every time)", last.example)
    except StuckError as stuck:
        return Breach(f"{stuck}; its run is shown as drawn", stuck.run)
    return None


def _result(law: Law, breach: Breach | None, excuses: Mapping[str, str]) -> CheckResult:
    found = None if breach is None else (breach.message, breach.example)
    return CheckResult.of(law.name, law.promise, found, excuses.get(law.name, ""))


@contextmanager
def _no_files_left() -> Iterator[None]:
    """Keep what Hypothesis caches out of the working directory."""
    with tempfile.TemporaryDirectory(prefix="swingshift-") as scratch:
        configuration.set_hypothesis_home_dir(scratch)
        try:
            yield
        finally:
            configuration.set_hypothesis_home_dir(None)
