"""A policy that does not come back: ended, and reported with the run it was in."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import NoReturn

import pytest
from tests.sdk.policy_doubles import NeverComesBack, SpecificationExample

from swingshift.sdk.errors import UserError
from swingshift.sdk.testing import LAW_NAMES, check_policy, watchdog
from swingshift.sdk.testing.watchdog import StuckError, within_limit

SHORT_S = 0.05

pytestmark = pytest.mark.skipif(
    not hasattr(signal, "setitimer"), reason="no timer of processor time to end a call with"
)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LIMIT_S", SHORT_S)


def loop() -> NoReturn:
    """Stay here."""
    while True:
        pass


def loop_in_spite() -> NoReturn:
    """Stay here, and take the first alarm for something else."""
    try:
        loop()
    except KeyboardInterrupt:
        loop()


@pytest.mark.parametrize("law", LAW_NAMES)
def test_a_policy_that_never_comes_back_breaks_each_law_that_finds_out(law: str) -> None:
    """With the question, the line it was ended at, and the run; nothing is judged beyond it."""
    (result,) = check_policy(NeverComesBack, laws=[law]).results

    assert result.is_violation
    assert result.message.startswith(
        "deactivate_wait_samples took more than 0.05 s of computing and was ended at line "
    )
    assert result.message.endswith(" of policy_doubles.py; its run is shown as drawn")
    assert "collections per cycle" in result.example or "DynamicSchedule" in result.example


def test_a_saved_state_must_come_back_too() -> None:
    """Not only the questions are limited."""

    class LoopsInItsState(SpecificationExample):
        def state_dict(self) -> dict[str, object]:
            loop()

    report = check_policy(LoopsInItsState, laws=["pure_questions", "state_round_trip"])

    for result in report.violations:
        assert result.message.startswith("state_dict took more than")
    assert len(report.violations) == 2


def test_a_constructor_that_never_comes_back_is_refused() -> None:
    """There is no policy to judge."""
    with pytest.raises(UserError, match="no policy can be built: the constructor took more than"):
        check_policy(loop)


@pytest.mark.parametrize("call", [loop, loop_in_spite])
def test_a_call_is_ended_where_it_is(call: Callable[[], NoReturn]) -> None:
    """Also one that goes on after the first alarm; the handler is put back."""
    before = signal.getsignal(signal.SIGVTALRM)

    with watchdog.watchdog(), pytest.raises(StuckError, match="it took more than 0"):
        within_limit("it", call)

    assert signal.getsignal(signal.SIGVTALRM) is before
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)


def test_each_call_has_a_limit_of_its_own() -> None:
    """Many short ones may take as long together as they need; and a call's result is handed on."""
    with watchdog.watchdog():
        assert [within_limit("it", lambda: sum(range(10_000))) for _ in range(500)][
            -1
        ] == 49_995_000


def test_nothing_is_limited_outside_the_main_thread() -> None:
    """A timer would interrupt the wrong thread."""
    found: list[bool] = []

    def ask() -> None:
        with watchdog.watchdog():
            found.append(watchdog.restart(SHORT_S))
            found.append(within_limit("it", lambda: True))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()

    assert found == [False, True]
    assert not watchdog.restart(SHORT_S)
