"""The simulated executor by the kit that a stranger's goes through, and doubles that fail it."""

from __future__ import annotations

import pytest
from tests.executors import doubles_of_replicas, doubles_of_requests, doubles_of_switches
from tests.executors.executor_doubles import Modest, ObservedExecutor, under_test
from tests.executors.support import small_config

from swingshift.sdk.testing import (
    PROMISE_NAMES,
    BackDoor,
    CheckReport,
    ExecutorPromise,
    check_executor,
    executor_contract,
)

pytestmark = pytest.mark.slow

BROKEN = {
    **doubles_of_requests.BROKEN,
    **doubles_of_switches.BROKEN,
    **doubles_of_replicas.BROKEN,
}
"""Each double with the one promise it breaks."""

OBSERVED = {
    "generate.cancelled_in_engine": "in_flight",
    "continued.keeps_payload": "payload_tokens",
    "abort.acknowledged": "in_flight",
    "pause.empties_engine": "in_flight",
    "pause.stops_engine": "token_count",
    "memory.sleep_measures": "free_bytes",
    "training.offload_frees": "free_bytes",
    "weights.held": "weight_version",
    "kill.measures": "free_bytes",
    "fit.trains_once": "times_trained",
    "discard.frees": "payload_tokens",
}
"""What needs which method of the back door."""


def reasons(report: CheckReport) -> dict[str, str]:
    """Return why promises were not judged."""
    return {result.check: result.message for result in report.not_judged}


@executor_contract(under_test())
def test_simulated_executor(executor_promise: ExecutorPromise) -> None:
    """With a back door to everything, each promise is judged and kept."""
    executor_promise.check()


@pytest.mark.parametrize("double", BROKEN)
def test_a_double_breaks_its_own_promise_and_no_other(
    double: type[ObservedExecutor],
) -> None:
    """Whoever reads the report knows where to look."""
    report = check_executor(under_test(double))

    assert [result.check for result in report.violations] == [BROKEN[double]]


def test_every_promise_has_a_double() -> None:
    """A check that nothing fails would prove nothing."""
    assert set(BROKEN.values()) == set(PROMISE_NAMES)


def test_without_standalone_replicas_hybrid_ones_are_put_to_the_proof() -> None:
    """All but what is about standalone ones."""
    config = small_config(rollout_nodes=0)
    report = check_executor(under_test(lambda: ObservedExecutor(config)))

    report.assert_sound()
    assert reasons(report).keys() == {"start.needs_sync"}


def test_what_is_not_offered_is_not_judged() -> None:
    """An executor that can do the minimum keeps the rest of the contract."""
    report = check_executor(under_test(Modest))

    report.assert_sound()
    assert {words.partition(":")[0] for words in reasons(report).values()} == {"not offered"}
    lending = {name for name in PROMISE_NAMES if name.startswith(("memory.", "training."))}
    keeping = {"keep_holds", "abort_after_keep", "stops_engine"}
    assert reasons(report).keys() == {
        *lending,
        *(f"pause.{name}" for name in keeping),
        "weights.split_spans",
        "kill.leaves_room",
        "cancelled.recovers_switch",
    }


def test_what_the_back_door_does_not_show_is_not_passed() -> None:
    """It is reported with the method that is missing."""
    report = check_executor(under_test(observe=lambda _: BackDoor()))

    report.assert_sound()
    assert reasons(report) == {
        name: f"not observed: override BackDoor.{method}" for name, method in OBSERVED.items()
    }
    judged = len(PROMISE_NAMES) - len(OBSERVED)
    assert f"{judged} promises judged, {len(OBSERVED)} not judged" in str(report)
