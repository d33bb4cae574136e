"""The contract kit: checks that a policy, an executor or a run of one's own keeps its promises.

What needs Hypothesis is imported when it is first used: an event log can be checked without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from swingshift.sdk.testing.event_log import CHECKS, EventLogChecker, check_event_log
from swingshift.sdk.testing.executor_check import check_executor
from swingshift.sdk.testing.executor_checks.catalogue import PROMISE_NAMES
from swingshift.sdk.testing.executor_subject import BackDoor, ExecutorUnderTest, NotObservedError
from swingshift.sdk.testing.history import Cycle, History, Moment, Regime
from swingshift.sdk.testing.pytest_plugin import (
    ExecutorPromise,
    PolicyLaw,
    executor_contract,
    policy_contract,
)
from swingshift.sdk.testing.report import CheckReport, CheckResult, Verdict
from swingshift.sdk.testing.violation import ContractViolation, Violation

if TYPE_CHECKING:
    from swingshift.sdk.testing.laws import LAW_NAMES
    from swingshift.sdk.testing.policy_check import check_policy
    from swingshift.sdk.testing.strategies import (
        contexts,
        cycles,
        histories,
        regimes,
        telemetries,
    )

__all__ = [
    "CHECKS",
    "LAW_NAMES",
    "PROMISE_NAMES",
    "BackDoor",
    "CheckReport",
    "CheckResult",
    "ContractViolation",
    "Cycle",
    "EventLogChecker",
    "ExecutorPromise",
    "ExecutorUnderTest",
    "History",
    "Moment",
    "NotObservedError",
    "PolicyLaw",
    "Regime",
    "Verdict",
    "Violation",
    "check_event_log",
    "check_executor",
    "check_policy",
    "contexts",
    "cycles",
    "executor_contract",
    "histories",
    "policy_contract",
    "regimes",
    "telemetries",
]

_NEED_HYPOTHESIS = {
    "LAW_NAMES": "laws",
    "check_policy": "policy_check",
    "contexts": "strategies",
    "cycles": "strategies",
    "histories": "strategies",
    "regimes": "strategies",
    "telemetries": "strategies",
}


def __getattr__(name: str) -> object:
    module = _NEED_HYPOTHESIS.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
