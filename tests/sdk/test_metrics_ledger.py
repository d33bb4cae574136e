"""The GPU-second ledger: one state per GPU and second, and the books balance."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.sdk.metrics import (
    GpuId,
    GpuSecondLedger,
    GpuState,
    LedgerError,
    LedgerInterval,
    ledger_totals,
)
from swingshift.sdk.validators import InvalidValueError

Change = tuple[float, frozenset[int], GpuState]

GPUS = range(4)
SPANS = st.just(0.0) | st.floats(1e-3, 1e4)
STATES = st.sampled_from(GpuState)


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[Change], float]:
    """Draw state changes of sets of GPUs in time order, and the time of the reading."""
    spans_s = draw(st.lists(SPANS, min_size=1, max_size=30))
    times_s = list(accumulate(spans_s))
    history = [
        (t_s, draw(st.frozensets(st.sampled_from(GPUS))), draw(STATES)) for t_s in times_s[:-1]
    ]
    return history, times_s[-1]


def intervals_of(history: list[Change], end_s: float) -> list[LedgerInterval]:
    """Return the same history as one list of intervals per GPU: the ledger's model."""
    intervals = []
    for gpu in GPUS:
        own = [(0.0, GpuState.IDLE)]
        own += [(t_s, state) for t_s, gpus, state in history if gpu in gpus]
        ends_s = [t_s for t_s, _ in own[1:]] + [end_s]
        intervals += [
            LedgerInterval(gpu=gpu, state=state, start_s=start_s, end_s=until_s)
            for (start_s, state), until_s in zip(own, ends_s, strict=True)
        ]
    return intervals


def fed(history: list[Change]) -> GpuSecondLedger:
    """Return a ledger that has seen a history."""
    ledger = GpuSecondLedger(GPUS, 0.0)
    for t_s, gpus, state in history:
        ledger.set_state(gpus, state, t_s)
    return ledger


def test_ledger_golden() -> None:
    """Two GPUs over 100 s.

    train0: 10 idle, 50 train, 15 switch, 25 rollout. roll0: 10 idle, 90 rollout.
    Idle 10 + 10 = 20, train 50, switch 15, rollout 25 + 90 = 115: 200 = 2 x 100 in all.
    """
    ledger = GpuSecondLedger(["train0", "roll0"], 1000.0)
    ledger.set_state(["train0"], GpuState.TRAIN, 1010.0)
    ledger.set_state(["roll0"], GpuState.ROLLOUT, 1010.0)
    ledger.set_state(["train0"], GpuState.SWITCH, 1060.0)
    ledger.set_state(["train0"], GpuState.ROLLOUT, 1075.0)
    ledger.check(1100.0)
    totals = ledger.totals(1100.0)
    assert {state: seconds for state, seconds in totals.items() if seconds} == {
        GpuState.IDLE: 20.0,
        GpuState.TRAIN: 50.0,
        GpuState.SWITCH: 15.0,
        GpuState.ROLLOUT: 115.0,
    }
    assert ledger.gpu_totals(1100.0)["train0"][GpuState.ROLLOUT] == 25.0


def test_ledger_totals_golden() -> None:
    """3 s and 4 s of training on two GPUs and 1 s of sync: 7 and 1 GPU-seconds."""
    totals = ledger_totals(
        [
            LedgerInterval(gpu="a", state=GpuState.TRAIN, start_s=0, end_s=3),
            LedgerInterval(gpu="b", state=GpuState.TRAIN, start_s=0, end_s=4),
            LedgerInterval(gpu="a", state=GpuState.SYNC, start_s=3, end_s=4),
        ]
    )
    assert (totals[GpuState.TRAIN], totals[GpuState.SYNC]) == (7.0, 1.0)
    assert set(totals) == set(GpuState)


@given(changes())
def test_ledger_equals_its_model(drawn: tuple[list[Change], float]) -> None:
    """The running ledger gives what the full list of intervals gives."""
    history, end_s = drawn
    assert fed(history).totals(end_s) == pytest.approx(
        ledger_totals(intervals_of(history, end_s)), abs=1e-6
    )


@given(changes())
def test_states_sum_to_wall_times_gpus(drawn: tuple[list[Change], float]) -> None:
    """Whatever the history, every second of every GPU is booked once."""
    history, end_s = drawn
    ledger = fed(history)
    ledger.check(end_s)
    totals = ledger.totals(end_s)
    assert sum(totals.values()) == pytest.approx(end_s * len(GPUS), abs=1e-6)
    assert set(totals) == set(GpuState)
    assert min(totals.values()) >= 0.0


@given(changes(), st.integers(-10, 10).map(lambda exponent: 2.0**exponent))
def test_ledger_scales_with_time(drawn: tuple[list[Change], float], scale: float) -> None:
    """In another unit of time every total is the same number of the new units."""
    history, end_s = drawn
    scaled = fed([(t_s * scale, gpus, state) for t_s, gpus, state in history])
    expected = {state: total * scale for state, total in fed(history).totals(end_s).items()}
    assert scaled.totals(end_s * scale) == expected


@given(changes(), st.data())
def test_splitting_an_interval_changes_nothing(
    drawn: tuple[list[Change], float], data: st.DataObject
) -> None:
    """Naming the state a GPU is in already leaves the totals as they were."""
    history, end_s = drawn
    ledger = fed(history)
    before = ledger.totals(end_s)
    since_s, gpus, state = history[-1] if history else (0.0, frozenset(GPUS), GpuState.IDLE)
    ledger.set_state(gpus, state, data.draw(st.floats(since_s, end_s)))
    assert ledger.totals(end_s) == pytest.approx(before, abs=1e-6)


def test_reading_does_not_change_the_ledger() -> None:
    """Totals at a later time first and at an earlier one afterwards are both right."""
    ledger = GpuSecondLedger(["a"], 0.0)
    ledger.set_state(["a"], GpuState.TRAIN, 1.0)
    assert ledger.totals(5.0)[GpuState.TRAIN] == 4.0
    assert ledger.totals(2.0)[GpuState.TRAIN] == 1.0


def test_zero_span_books_nothing() -> None:
    """At its start the ledger balances at zero, and so does one without GPUs."""
    ledger = GpuSecondLedger(["a"], 7.0)
    ledger.check(7.0)
    assert set(ledger.totals(7.0).values()) == {0.0}
    empty = GpuSecondLedger([], 0.0)
    empty.check(9.0)
    assert set(empty.totals(9.0).values()) == {0.0}


def test_unknown_gpu_is_named() -> None:
    """An unknown GPU is an error with its name and the nearest known one; nobody has changed."""
    ledger = GpuSecondLedger(["node0/gpu0", "node0/gpu1"], 0.0)
    with pytest.raises(LedgerError, match=r"'node0/gpu7'; did you mean 'node0/gpu"):
        ledger.set_state(["node0/gpu0", "node0/gpu7"], GpuState.TRAIN, 1.0)
    assert ledger.totals(1.0)[GpuState.IDLE] == 2.0
    assert ledger.totals(2.0)[GpuState.TRAIN] == 0.0


@pytest.mark.parametrize("t_s", [4.0, float("nan"), float("inf")])
def test_time_running_backwards_names_the_gpu(t_s: float) -> None:
    """Time before a GPU's latest change, or no time at all, is an error; nobody has changed."""
    ledger = GpuSecondLedger([0, 1], 0.0)
    ledger.set_state([1], GpuState.TRAIN, 5.0)
    with pytest.raises(LedgerError, match="GPU 1: time must be finite and not run backwards"):
        ledger.set_state([1, 0], GpuState.ROLLOUT, t_s)
    assert ledger.totals(6.0)[GpuState.IDLE] == 6.0 + 5.0


@pytest.mark.parametrize("read", [GpuSecondLedger.totals, GpuSecondLedger.check])
def test_reading_before_a_change_is_refused(
    read: Callable[[GpuSecondLedger, float], object],
) -> None:
    """Totals of a time that the ledger has left behind are an error, not a negative number."""
    ledger = GpuSecondLedger(["a"], 0.0)
    ledger.set_state(["a"], GpuState.TRAIN, 5.0)
    with pytest.raises(LedgerError, match="GPU 'a'"):
        read(ledger, 4.0)


def test_inventory_names_each_gpu_once() -> None:
    """A GPU named twice would count twice in wall x GPUs, so it is refused."""
    with pytest.raises(LedgerError, match="GPU 3 is in the inventory twice"):
        GpuSecondLedger([1, 3, 3], 0.0)


def test_ledger_starts_at_a_time() -> None:
    """A start that is no time is refused."""
    with pytest.raises(InvalidValueError, match="start_s"):
        GpuSecondLedger([1], float("nan"))


class LeakyLedger(GpuSecondLedger):
    """A broken double that loses the weight sync."""

    def gpu_totals(self, t_s: float) -> dict[GpuId, dict[GpuState, float]]:
        """Return the totals without `GpuState.SYNC`."""
        return {
            gpu: {**seconds, GpuState.SYNC: 0.0} for gpu, seconds in super().gpu_totals(t_s).items()
        }


def test_check_finds_lost_seconds() -> None:
    """When a GPU's states do not sum to the wall clock, the check names it and both figures."""
    ledger = LeakyLedger(["a", "b"], 0.0)
    ledger.set_state(["b"], GpuState.SYNC, 8.0)
    with pytest.raises(LedgerError, match=r"GPU 'b': its states sum to 8\.0 s but 10\.0 s"):
        ledger.check(10.0)


def test_interval_refuses_to_end_before_it_starts() -> None:
    """An interval of negative length is an error that names the GPU and the bound."""
    with pytest.raises(InvalidValueError, match=r"GPU 'a' must be at least 2\.0 s"):
        LedgerInterval(gpu="a", state=GpuState.TRAIN, start_s=2.0, end_s=1.0)
