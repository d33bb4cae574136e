"""The pytest plugin: each law a test, an excuse an expected failure."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
from swingshift.sdk.testing import policy_contract
from tests.sdk.policy_doubles import SpecificationExample, WaitsTooLong
"""


def run(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    """Run a test file in a pytest of its own; the plugin counts whether installed or not."""
    pytester.makepyfile(HEAD + test)
    plugin = ["-p", "no:swingshift", "-p", "swingshift.sdk.testing.pytest_plugin"]
    return pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", "-ra", *arguments)


def test_each_law_is_a_test(pytester: pytest.Pytester) -> None:
    """Named after the law."""
    result = run(
        pytester,
        """
@policy_contract(SpecificationExample, max_examples=2)
def test_mine(policy_law):
    policy_law.check()

def test_something_else(): pass
""",
        "-v",
    )

    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines(["*::test_mine[[]no_wind_up[]] PASSED*"])


def test_a_broken_law_fails_its_test_alone(pytester: pytest.Pytester) -> None:
    """With the smallest run in its message."""
    result = run(
        pytester,
        """
@policy_contract(WaitsTooLong)
def test_mine(policy_law):
    policy_law.check()
""",
        "--contract-examples",
        "2",
    )

    result.assert_outcomes(passed=7, failed=1)
    result.stdout.fnmatch_lines(
        ["*at start-up the wait is 65 (allowed 0..64)", "FAILED *test_mine[[]bounded_wait[]]*"]
    )


def test_an_excuse_is_an_expected_failure_as_long_as_it_is_needed(
    pytester: pytest.Pytester,
) -> None:
    """With its reason in the summary."""
    result = run(
        pytester,
        """
@policy_contract(
    WaitsTooLong, expected_failures={"bounded_wait": "one more", "total": "x"}, max_examples=2
)
def test_mine(policy_law):
    policy_law.check()
""",
    )

    result.assert_outcomes(passed=6, xfailed=1, failed=1)
    result.stdout.fnmatch_lines(["*remove it from expected_failures*", "XFAIL *one more*"])


@pytest.mark.parametrize(
    "test",
    [
        "@policy_contract(WaitsTooLong)\ndef test_mine(): pass",
        "def test_mine(policy_law): pass",
    ],
)
def test_half_a_contract_test_is_refused(pytester: pytest.Pytester, test: str) -> None:
    """It would check nothing, or not know what."""
    result = run(pytester, test)

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_mine lacks one of the two*"])
