"""``fixed_ratio``: the threshold of ``default`` without its adaptation and its gate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policies.histories import CYCLE, HARD, Cycle, histories, snapshot, snapshots

from swingshift.policies.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.sdk.policy import Rebalance, RebalanceScope


@pytest.mark.parametrize(
    ("left_over", "lends"), [(-5, True), (0, True), (18, True), (19, True), (20, False)]
)
def test_it_lends_while_the_stock_is_below_the_threshold(left_over: int, lends: bool) -> None:
    """By hand: 0.3 of 64 is 19.2, whatever switching costs."""
    policy = FixedRatioDynamicSchedulePolicy(0.3)
    ctx = snapshot(3, Cycle(left_over=left_over, activate_s=1e6))

    assert policy.should_activate_after_step(3, False, ctx) is lends


def test_the_wait_is_the_threshold_rounded_down() -> None:
    """By hand: 0.3 of 64 is 19.2."""
    assert FixedRatioDynamicSchedulePolicy(0.3).deactivate_wait_samples(snapshot(1, Cycle())) == 19
    assert FixedRatioDynamicSchedulePolicy(1).deactivate_wait_samples(snapshot(1, Cycle())) == 64
    assert FixedRatioDynamicSchedulePolicy(0).deactivate_wait_samples(snapshot(1, Cycle())) == 0


@given(st.floats(0, 1), histories())
def test_it_never_adapts(ratio: float, history: list[Cycle]) -> None:
    """No history moves the threshold, and there is no state to save."""
    policy = FixedRatioDynamicSchedulePolicy(ratio)

    for version, ctx in snapshots(history):
        policy.update_after_step(version, ctx)

    assert policy.deactivate_ratio == ratio
    assert policy.state_dict() == {}
    assert policy.deactivate_wait_samples(snapshot(1, HARD)) == int(ratio * CYCLE)


def test_a_resumed_run_takes_the_ratio_from_its_configuration() -> None:
    """The saved state does not bring back the ratio it was saved under."""
    resumed = FixedRatioDynamicSchedulePolicy(0.8)

    resumed.load_state_dict(FixedRatioDynamicSchedulePolicy(0.3).state_dict())

    assert resumed.deactivate_ratio == 0.8


def test_it_takes_back_what_is_lent_and_spreads_requests() -> None:
    """As ``default`` does."""
    policy = FixedRatioDynamicSchedulePolicy()
    ctx = snapshot(1, HARD)

    assert policy.should_deactivate(1, True, ctx) is True
    assert policy.should_deactivate(1, False, ctx) is False
    assert policy.request_rebalance(1, ctx) == Rebalance(RebalanceScope.ALL)


def test_without_standalone_replicas_it_waits_for_the_full_cycle() -> None:
    """Its ratio counts as 1."""
    policy = FixedRatioDynamicSchedulePolicy(0.3)

    assert policy.deactivate_wait_samples(snapshot(1, Cycle(only_hybrid=True))) == CYCLE
