"""``static_fully_async``: the baseline that never lends."""

from __future__ import annotations

from hypothesis import given
from tests.policies.histories import CYCLE, Cycle, histories, snapshot, snapshots

from swingshift.policies.static_fully_async import StaticFullyAsyncPolicy
from swingshift.sdk.guard import GuardedPolicy


@given(histories())
def test_it_never_lends_and_never_waits(history: list[Cycle]) -> None:
    """Whatever happens, trainer GPUs train."""
    policy = StaticFullyAsyncPolicy()

    for version, ctx in snapshots(history):
        assert policy.should_activate_after_step(version, False, ctx) is False
        assert policy.should_deactivate(version, True, ctx) is True
        assert policy.should_deactivate(version, False, ctx) is False
        assert policy.deactivate_wait_samples(ctx) == 0
        assert policy.request_rebalance(version, ctx) is None
        policy.update_after_step(version, ctx)
    assert policy.state_dict() == {}


def test_without_standalone_replicas_it_generates_all_the_same() -> None:
    """The guard turns it into colocated training: lend at every sync, wait for the full cycle."""
    guard = GuardedPolicy(StaticFullyAsyncPolicy(), strict=True)
    ctx = snapshot(0, Cycle(only_hybrid=True))

    assert guard.should_activate_after_step(0, False, ctx) is True
    assert guard.request_rebalance(0, ctx) is None
    guard.update_after_step(0, ctx)
    assert guard.before_fit_step(0, True).evaluate(ctx) == CYCLE
