"""The policy half of the contract kit: what it finds, what it excuses and how it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.sdk.policy_doubles import (
    BROKEN,
    AnswersOne,
    CountsHalfMinutes,
    DeactivatesAlways,
    EndsTheProgram,
    LearnsForItsWholeClass,
    SaysFalseForEver,
    SpecificationExample,
    UnboundedRatio,
    UnboundedWait,
    WaitsForHalfACycle,
    WaitsForTheQueue,
    WaitsForWhatComes,
    WaitsTooLong,
)

from swingshift.policies import (
    DefaultDynamicSchedulePolicy,
    FixedRatioDynamicSchedulePolicy,
    StaticFullyAsyncPolicy,
)
from swingshift.sdk.errors import UnknownNameError, UserError
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.testing import (
    LAW_NAMES,
    CheckReport,
    ContractViolation,
    Verdict,
    check_policy,
)
from swingshift.sdk.validators import InvalidValueError

pytestmark = pytest.mark.slow


def broken(report: CheckReport) -> set[str]:
    return {result.check for result in report.violations}


@pytest.mark.parametrize("policy", BROKEN)
def test_a_double_breaks_its_own_law_and_no_other(policy: type[DynamicSchedulePolicyBase]) -> None:
    """With few runs for the laws that must hold, and enough to find what is broken."""
    laws = BROKEN[policy]

    assert broken(check_policy(policy, max_examples=50, laws=laws)) == laws
    assert broken(check_policy(policy, max_examples=6, laws=set(LAW_NAMES) - laws)) == set()


def test_every_law_has_a_double() -> None:
    """A check that nothing fails would prove nothing."""
    assert set().union(*(laws for laws in BROKEN.values() if len(laws) == 1)) == set(LAW_NAMES)


@pytest.mark.parametrize(
    "policy",
    [
        DefaultDynamicSchedulePolicy,
        FixedRatioDynamicSchedulePolicy,
        StaticFullyAsyncPolicy,
        SpecificationExample,
        WaitsForWhatComes,
    ],
)
def test_sound_policies_pass(policy: type[DynamicSchedulePolicyBase]) -> None:
    """Ours by the same kit as a stranger's, and the specification's example as it stands."""
    report = check_policy(policy, max_examples=12)

    assert report.violations == ()
    assert [result.check for result in report.results] == list(LAW_NAMES)
    assert report.subject == policy.__name__
    report.assert_sound()


@pytest.mark.parametrize("ratio", [0.0, 0.77, 1.0])
def test_default_recovers_from_any_ratio(ratio: float) -> None:
    """The law that its unbounded ancestor breaks."""
    check_policy(
        lambda: DefaultDynamicSchedulePolicy(ratio), laws=["no_wind_up"], max_examples=20
    ).assert_sound()


@pytest.mark.parametrize(
    ("policy", "law", "message"),
    [
        (UnboundedWait, "bounded_wait", "after 16 cycles without waits the wait is -1 "),
        (UnboundedRatio, "no_wind_up", "at start-up the wait is 32 (allowed 0..64); 55 cycles"),
        (WaitsTooLong, "bounded_wait", "at start-up the wait is 65 (allowed 0..64)"),
        (
            AnswersOne,
            "total",
            "at start-up should_activate_after_step answered 1 (int); allowed: True or False",
        ),
        (
            EndsTheProgram,
            "total",
            "at start-up should_activate_after_step raised SystemExit: 0",
        ),
        (
            LearnsForItsWholeClass,
            "deterministic_replay",
            "after 2 cycles without waits should_activate_after_step gave False in one replay",
        ),
        (SaysFalseForEver, "liveness", "before fit step 1 should_deactivate answers False until"),
        (WaitsForHalfACycle, "liveness", "1 samples are queued and the data has ended"),
    ],
)
def test_a_breach_is_told_by_its_smallest_run(
    policy: type[DynamicSchedulePolicyBase], law: str, message: str
) -> None:
    """In cycles and samples that a reader can count."""
    (result,) = check_policy(policy, laws=[law]).results

    assert message in result.message
    assert "per cycle" in result.example


def test_a_breach_on_a_lone_snapshot_says_so() -> None:
    """No history leads there, but a resumed run may begin there."""
    (result,) = check_policy(WaitsForTheQueue, laws=["bounded_wait"]).results

    assert result.message == "asked first at version 0 the wait is 65 (allowed 0..64)"
    assert result.example.startswith("DynamicScheduleContext(required_samples=16, ")


def test_a_fault_that_only_a_run_shows_is_told_by_its_workload() -> None:
    """The guard asks on snapshots that follow each other as samples come."""
    (result,) = check_policy(CountsHalfMinutes, laws=["total"]).results

    assert "before fit step 2 should_deactivate raised ZeroDivisionError" in result.message
    assert "collections per cycle, data of " in result.example


def test_all_breaches_are_raised_at_once() -> None:
    """And each with the run that shows it."""
    report = check_policy(
        UnboundedWait, laws=["liveness", "bounded_wait", "no_wind_up"], max_examples=50
    )

    with pytest.raises(ContractViolation) as caught:
        report.assert_sound()

    words = str(caught.value)
    assert words.startswith("UnboundedWait breaks its contract in 2 places:")
    assert "the wait is -1 (allowed 0..64)" in words
    assert "56 cycles without waits take it to -52" in words
    assert "liveness" not in words
    assert [finding.check for finding in caught.value.violations] == ["bounded_wait", "no_wind_up"]


def test_the_report_shows_every_law() -> None:
    """What ``print`` gives an author."""
    report = check_policy(
        DeactivatesAlways,
        laws=["bounded_wait", "deactivates_only_active"],
        max_examples=5,
    )

    assert str(report).splitlines() == [
        "DeactivatesAlways: 1 of 2 promises broken",
        "  holds      bounded_wait: the wait is from 0 to the samples of a full cycle",
        "  VIOLATED   deactivates_only_active: does not take GPUs back that are not lent",
        "             at start-up should_deactivate while no hybrid replica is active"
        " answered True",
        "             smallest run: 16 samples x 4 collections per cycle: start-up",
    ]


def test_an_expected_failure_is_no_violation() -> None:
    """Its reason and what was found stay in the report."""
    reason = {"bounded_wait": "waits for one more"}
    report = check_policy(WaitsTooLong, expected_failures=reason, max_examples=5)

    report.assert_sound()
    assert "keeps the contract, 8 promises judged" in str(report)
    assert "excuse: waits for one more" in str(report)
    (excused,) = (result for result in report.results if result.verdict is Verdict.EXCUSED)
    assert excused.message == "at start-up the wait is 65 (allowed 0..64)"


def test_an_excuse_no_longer_needed_is_a_violation() -> None:
    """It would hide the next breach."""
    report = check_policy(
        SpecificationExample,
        expected_failures={"liveness": "hangs at the end"},
        laws=["total", "liveness"],
        max_examples=5,
    )

    (violation,) = report.violations
    assert violation.check == "liveness"
    assert violation.verdict is Verdict.UNEXCUSED
    assert "remove it from expected_failures" in str(violation)


def test_an_excuse_for_a_law_not_judged_is_not_considered() -> None:
    """So that one law can be judged at a time."""
    report = check_policy(
        SpecificationExample, expected_failures={"liveness": "x"}, laws=["total"], max_examples=2
    )

    assert report.is_sound


def test_a_law_that_is_none_is_refused() -> None:
    """Among those to judge and among those to excuse, with a suggestion."""
    with pytest.raises(UnknownNameError, match="did you mean 'no_wind_up'"):
        check_policy(SpecificationExample, laws=["no_windup"])
    with pytest.raises(UnknownNameError, match="unknown law 'speed'; known: bounded_wait, "):
        check_policy(SpecificationExample, expected_failures={"speed": "slow"})


def test_an_excuse_needs_a_reason() -> None:
    """And a count of runs must be one."""
    with pytest.raises(InvalidValueError, match=r"expected_failures\['total'\] must be a string"):
        check_policy(SpecificationExample, expected_failures={"total": " "})
    with pytest.raises(InvalidValueError, match="max_examples must be an integer >= 1"):
        check_policy(SpecificationExample, max_examples=0)


def test_a_factory_builds_a_new_policy_each_time() -> None:
    """Otherwise one run would learn from another."""
    policy = SpecificationExample()

    with pytest.raises(UserError, match="the same policy twice"):
        check_policy(lambda: policy)
    with pytest.raises(UserError, match="must return a DynamicSchedulePolicyBase; got <class"):
        check_policy(lambda: SpecificationExample)  # type: ignore[arg-type,return-value]
    with pytest.raises(UserError, match="the constructor raised SystemExit: 7; it must not end"):
        check_policy(lambda: sys.exit(7))


def test_the_same_call_gives_the_same_report() -> None:
    """Also where the runs are drawn from another seed."""
    for seed in (0, 7):
        first, second = (
            check_policy(WaitsForHalfACycle, laws=["liveness"], max_examples=20, seed=seed)
            for _ in range(2)
        )
        assert first == second
        assert not first.is_sound


def test_a_breach_that_comes_and_goes_is_reported_as_such() -> None:
    """A policy that draws from the operating system fails differently each time."""

    class OnceInAWhile(SpecificationExample):
        built = 0

        def __init__(self) -> None:
            super().__init__()
            OnceInAWhile.built += 1
            self.first = OnceInAWhile.built == 3

        def should_deactivate(self, *_: object) -> bool:
            return self.first

    report = check_policy(OnceInAWhile, laws=["deactivates_only_active"], max_examples=5)

    assert "answered True (not every time)" in report.violations[0].message


def test_nothing_is_left_in_the_working_directory(tmp_path: Path) -> None:
    """An author's repository stays as it was."""
    program = (
        "from swingshift.sdk.testing import check_policy\n"
        "from swingshift.policies import DefaultDynamicSchedulePolicy\n"
        "check_policy(DefaultDynamicSchedulePolicy, max_examples=10).assert_sound()\n"
    )

    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)

    assert list(tmp_path.iterdir()) == []
