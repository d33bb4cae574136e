"""pytest plugin of the contract kit: each law a test of its own.

It is active wherever swingshift is installed. A policy's author writes::

    from swingshift.sdk.testing import PolicyLaw, policy_contract

    @policy_contract(MyPolicy)
    def test_my_policy(policy_law: PolicyLaw) -> None:
        policy_law.check()

and gets one test per law, ``test_my_policy[no_wind_up]`` among them. A law that is broken as
expected is reported as an expected failure, with its reason. ``pytest --contract-examples 2000``
draws that many runs for each law.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

# Every module of this package must be importable where pytest and Hypothesis are not needed,
# and every pytest run loads this one: both are imported where they are used.
if TYPE_CHECKING:
    import pytest

    from swingshift.sdk.policy import DynamicSchedulePolicyBase

_MARK = "policy_contract"
_FIXTURE = "policy_law"
_OPTION = "--contract-examples"


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
        import pytest  # noqa: PLC0415

        from swingshift.sdk.testing.policy_check import MAX_EXAMPLES, check_policy  # noqa: PLC0415
        from swingshift.sdk.testing.report import Verdict  # noqa: PLC0415

        report = check_policy(
            self.factory,
            expected_failures=self.expected_failures,
            max_examples=MAX_EXAMPLES if self.max_examples is None else self.max_examples,
            laws=[self.name],
        )
        report.assert_sound()
        if report.results[0].verdict is Verdict.EXCUSED:
            pytest.xfail(self.expected_failures[self.name])


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
    """Make the mark known."""
    config.addinivalue_line(
        "markers", f"{_MARK}(factory=...): run the test once for each law of the policy contract"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each law."""
    mark = metafunc.definition.get_closest_marker(_MARK)
    wanted = _FIXTURE in metafunc.fixturenames
    if mark is None and not wanted:
        return
    import pytest  # noqa: PLC0415

    from swingshift.sdk.testing.laws import LAW_NAMES  # noqa: PLC0415

    if mark is None or not wanted:
        pytest.fail(
            f"a test of a policy's contract is decorated with @{_MARK}(factory) and takes the"
            f" argument {_FIXTURE}; {metafunc.function.__name__} lacks one of the two",
            pytrace=False,
        )
    examples = metafunc.config.getoption(_OPTION)
    contract = mark.kwargs if examples is None else {**mark.kwargs, "max_examples": examples}
    metafunc.parametrize(
        _FIXTURE, [PolicyLaw(name=name, **contract) for name in LAW_NAMES], ids=LAW_NAMES
    )
