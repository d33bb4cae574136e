"""pytest plugin of the contract kit: each promise a test of its own.

It is active wherever swingshift is installed. A policy's author writes::

    from swingshift.sdk.testing import PolicyLaw, policy_contract

    @policy_contract(MyPolicy)
    def test_my_policy(policy_law: PolicyLaw) -> None:
        policy_law.check()

and gets one test per law, ``test_my_policy[no_wind_up]`` among them. An executor's author writes
the same with ``executor_contract(ExecutorUnderTest(...))`` and ``executor_promise``. A promise that
is broken as expected is reported as an expected failure, with its reason; one that could not be
judged is skipped, with what it lacks. ``pytest --contract-examples 2000`` draws that many runs for
each law of a policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

# Every module of this package must be importable where pytest and Hypothesis are not needed,
# and every pytest run loads this one: both are imported where they are used.
if TYPE_CHECKING:
    import pytest

    from swingshift.sdk.executor import Executor
    from swingshift.sdk.policy import DynamicSchedulePolicyBase
    from swingshift.sdk.testing.executor_subject import ExecutorUnderTest
    from swingshift.sdk.testing.report import CheckReport

_OPTION = "--contract-examples"
_POLICY, _LAW = "policy_contract", "policy_law"
_EXECUTOR, _PROMISE = "executor_contract", "executor_promise"
_ExecutorT = TypeVar("_ExecutorT", bound="Executor")


@attrs.frozen(kw_only=True)
class PolicyLaw:
    """One law for one policy; a test gets it as its argument ``policy_law``.

    Attributes:
        name: The law's name.
        factory: Returns a new policy at each call.
        expected_failures: Laws the policy is known to break, with the reason.
        max_examples: Runs to draw, ``None`` for the kit's default.
    """

    name: str
    factory: Callable[[], DynamicSchedulePolicyBase]
    expected_failures: Mapping[str, str] = attrs.field(factory=dict)
    max_examples: int | None = None

    def check(self) -> None:
        """Judge the policy by this law.

        Raises:
            ContractViolation: The law is broken, or an excuse for it is no longer needed.
        """
        __tracebackhide__ = True
        from swingshift.sdk.testing.policy_check import MAX_EXAMPLES, check_policy  # noqa: PLC0415

        report = check_policy(
            self.factory,
            expected_failures=self.expected_failures,
            max_examples=MAX_EXAMPLES if self.max_examples is None else self.max_examples,
            laws=[self.name],
        )
        _conclude(report)


@attrs.frozen(kw_only=True)
class ExecutorPromise:
    """One promise of one executor; a test gets it as its argument ``executor_promise``.

    Attributes:
        name: The promise's name.
        subject: The executor, and the author's back door to it.
        expected_failures: Promises the executor is known to break, with the reason.
    """

    name: str
    subject: ExecutorUnderTest[Executor]
    expected_failures: Mapping[str, str] = attrs.field(factory=dict)

    def check(self) -> None:
        """Judge the executor by this promise.

        Raises:
            ContractViolation: It is broken, or an excuse for it is no longer needed.
        """
        __tracebackhide__ = True
        from swingshift.sdk.testing.executor_check import check_executor  # noqa: PLC0415

        _conclude(
            check_executor(
                self.subject, expected_failures=self.expected_failures, checks=[self.name]
            )
        )


def policy_contract(
    factory: Callable[[], DynamicSchedulePolicyBase],
    *,
    expected_failures: Mapping[str, str] | None = None,
    max_examples: int | None = None,
) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each law of the policy contract.

    Args:
        factory: Returns a new policy at each call, always built alike: a class will do.
        expected_failures: Laws the policy is known to break, with the reason. One that holds
            fails its test.
        max_examples: Runs to draw for each law; ``--contract-examples`` overrides it.
    """
    import pytest  # noqa: PLC0415

    # By keyword: pytest would take a lone positional class for what is to be decorated.
    return pytest.mark.policy_contract(
        factory=factory, expected_failures=expected_failures or {}, max_examples=max_examples
    )


def executor_contract(
    subject: ExecutorUnderTest[_ExecutorT], *, expected_failures: Mapping[str, str] | None = None
) -> pytest.MarkDecorator:
    """Return a decorator that runs a test once for each promise of the executor contract.

    Args:
        subject: The executor, and the author's back door to it.
        expected_failures: Promises the executor is known to break, with the reason. One that
            holds fails its test.
    """
    import pytest  # noqa: PLC0415

    return pytest.mark.executor_contract(subject=subject, expected_failures=expected_failures or {})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that sets how many runs are drawn."""
    parser.getgroup("swingshift").addoption(
        _OPTION,
        type=int,
        default=None,
        metavar="N",
        help="runs that contract tests draw for each law (default: as each test says, else 100)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marks known."""
    config.addinivalue_line(
        "markers", f"{_POLICY}(factory=...): run the test once for each law of the policy contract"
    )
    config.addinivalue_line(
        "markers",
        f"{_EXECUTOR}(subject=...): run the test once for each promise of the executor contract",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each law or promise."""
    contract = _contract(metafunc, _POLICY, _LAW)
    if contract is not None:
        from swingshift.sdk.testing.laws import LAW_NAMES  # noqa: PLC0415

        examples = metafunc.config.getoption(_OPTION)
        if examples is not None:
            contract = {**contract, "max_examples": examples}
        metafunc.parametrize(
            _LAW, [PolicyLaw(name=name, **contract) for name in LAW_NAMES], ids=LAW_NAMES
        )
    contract = _contract(metafunc, _EXECUTOR, _PROMISE)
    if contract is not None:
        from swingshift.sdk.testing.executor_checks.catalogue import (  # noqa: PLC0415
            PROMISE_NAMES,
        )

        promises = [ExecutorPromise(name=name, **contract) for name in PROMISE_NAMES]
        metafunc.parametrize(_PROMISE, promises, ids=PROMISE_NAMES)


def _contract(metafunc: pytest.Metafunc, mark_name: str, fixture: str) -> Mapping[str, Any] | None:
    """Return what the decorator of a test was given; None for a test of something else."""
    mark = metafunc.definition.get_closest_marker(mark_name)
    wanted = fixture in metafunc.fixturenames
    if mark is not None and wanted:
        return mark.kwargs
    if mark is not None or wanted:
        import pytest  # noqa: PLC0415

        pytest.fail(
            f"a contract test is decorated with @{mark_name}(...) and takes the argument"
            f" {fixture}; {metafunc.function.__name__} lacks one of the two",
            pytrace=False,
        )
    return None


def _conclude(report: CheckReport) -> None:
    """End a test as a report of one promise says."""
    __tracebackhide__ = True
    import pytest  # noqa: PLC0415

    from swingshift.sdk.testing.report import Verdict  # noqa: PLC0415

    report.assert_sound()
    (result,) = report.results
    if result.verdict is Verdict.EXCUSED:
        pytest.xfail(result.excuse)
    if result.verdict is Verdict.NOT_JUDGED:
        pytest.skip(result.message)
