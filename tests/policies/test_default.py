"""``default``: the reference's decisions, with a floor under its ratio."""

from __future__ import annotations

import json
import math

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.policies.histories import (
    CYCLE,
    EASY,
    HARD,
    Cycle,
    cycles,
    histories,
    snapshot,
    snapshots,
)

from swingshift.policies.default import DefaultDynamicSchedulePolicy
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.policy import Rebalance, RebalanceScope
from swingshift.sdk.validators import InvalidValueError

RATIOS = st.floats(0, 1)


class Reference:
    """The specification's section 3.1 word for word; a question moves one of its estimates."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio
        self.overheads: list[float] = []
        self.seconds_per_sample = 1000.0

    def wait(self, ctx: DynamicScheduleContext) -> int:
        return int(ctx.required_samples * ctx.trigger_parameter_sync_step * self.ratio)

    def activates(self, ctx: DynamicScheduleContext) -> bool:
        ahead = ctx.total_generated_samples - ctx.expected_samples
        missing = self.ratio * ctx.step_required_samples - ahead
        if missing <= 0:
            return False
        if sum(ctx.step_wait_times) > 0 and sum(ctx.step_wait_samples) > 0:
            self.seconds_per_sample = sum(ctx.step_wait_times) / sum(ctx.step_wait_samples)
        last = self.overheads[-3:]
        cost = sum(last) / len(last) if last else 10.0
        return missing * self.seconds_per_sample > cost

    def learn(self, ctx: DynamicScheduleContext) -> None:
        overhead = ctx.last_activate_duration_s + ctx.last_deactivate_duration_s
        if overhead > 0:
            self.overheads.append(overhead)
        waited = sum(ctx.step_wait_samples)
        if waited > 0:
            step = waited / ctx.step_required_samples
            if step < 0.02:
                step = 0.02
            if step > 0.1:
                step = 0.1
            self.ratio = min(1.0, self.ratio + step)
        else:
            self.ratio -= 0.02


def wait(policy: DefaultDynamicSchedulePolicy) -> int:
    return policy.deactivate_wait_samples(snapshot(1, Cycle()))


def live(policy: DefaultDynamicSchedulePolicy, cycle: Cycle, times: int) -> list[int]:
    """Let the policy learn from one kind of cycle and return the wait after each."""
    waits = []
    for version, ctx in snapshots([cycle] * times, first=1):
        policy.update_after_step(version, ctx)
        waits.append(wait(policy))
    return waits


@given(RATIOS, histories())
@example(0.3, [Cycle(), *[HARD] * 8, *[EASY] * 60, *[HARD] * 8])
@example(0.5, [Cycle(), Cycle(waited_samples=1, waited_s=0.001, left_over=64), Cycle(left_over=30)])
def test_it_decides_as_the_reference_does(ratio: float, history: list[Cycle]) -> None:
    """For as long as the reference's ratio stays in its range the two cannot be told apart."""
    policy, reference = DefaultDynamicSchedulePolicy(ratio), Reference(ratio)

    for version, ctx in snapshots(history):
        assert policy.deactivate_wait_samples(ctx) == reference.wait(ctx)
        assert policy.should_activate_after_step(version, False, ctx) is reference.activates(ctx)
        policy.update_after_step(version, ctx)
        if version > 0:
            reference.learn(ctx)
        if not 0 <= reference.ratio <= 1:
            break


@pytest.mark.parametrize(
    ("waited", "ratio"),
    [(0, 0.28), (1, 0.32), (2, 0.33125), (5, 0.378125), (7, 0.4), (CYCLE, 0.4)],
)
def test_the_ratio_moves_by_the_share_waited_for(waited: int, ratio: float) -> None:
    """By hand, from 0.3 with 64 samples: 1/64 is below the least step, 7/64 above the largest."""
    policy = DefaultDynamicSchedulePolicy(0.3)

    policy.update_after_step(1, snapshot(1, Cycle(waited_samples=waited, waited_s=1.0)))

    assert policy.deactivate_ratio == pytest.approx(ratio)


def test_the_gate_compares_time_saved_with_time_spent() -> None:
    """By hand: ratio 0.5 of 64 and 12 left over leave 20 missing, at 3 s each 60 s."""
    policy = DefaultDynamicSchedulePolicy(0.5)
    cycle = Cycle(waited_samples=10, waited_s=30.0, left_over=12)

    for cost_s, lends in ((59.0, True), (60.0, False), (61.0, False)):
        policy.switch_overheads_s = (cost_s,)
        assert policy.should_activate_after_step(1, False, snapshot(1, cycle)) is lends


def test_before_any_measurement_lending_is_assumed_to_pay() -> None:
    """By hand: any gap above 10 s / 1000 s of a sample."""
    policy = DefaultDynamicSchedulePolicy(0.5)

    assert policy.should_activate_after_step(0, False, snapshot(0, Cycle()))
    assert policy.should_activate_after_step(1, False, snapshot(1, Cycle(left_over=31)))
    assert not policy.should_activate_after_step(1, False, snapshot(1, Cycle(left_over=32)))


def test_the_switch_cost_is_the_mean_of_the_last_three_cycles_that_switched() -> None:
    """By hand: 100 is forgotten, 0 does not count, (10 + 20 + 30) / 3 = 20."""
    policy = DefaultDynamicSchedulePolicy(1.0)
    spent = [(60.0, 40.0), (10.0, 0.0), (0.0, 0.0), (5.0, 15.0), (0.0, 30.0)]
    for version, (activate_s, deactivate_s) in enumerate(spent, start=1):
        cycle = Cycle(activate_s=activate_s, deactivate_s=deactivate_s)
        policy.update_after_step(version, snapshot(version, cycle))
    policy.deactivate_ratio = 0.5

    # One second per sample: the gap in samples is the benefit in seconds.
    worth = {
        gap: policy.should_activate_after_step(
            6, False, snapshot(6, Cycle(waited_samples=1, waited_s=1.0, left_over=32 - gap))
        )
        for gap in (20, 21)
    }
    assert worth == {20: False, 21: True}


def test_a_rate_is_committed_only_while_samples_are_short() -> None:
    """A cycle that ends with more left over than the threshold says nothing lasting."""
    policy = DefaultDynamicSchedulePolicy(0.5)
    waiting = Cycle(waited_samples=4, waited_s=8.0)

    policy.update_after_step(1, snapshot(1, attrs.evolve(waiting, left_over=32)))
    assert policy.per_sample_s == 1000.0
    policy.update_after_step(2, snapshot(2, waiting))
    assert policy.per_sample_s == 2.0
    policy.update_after_step(3, snapshot(3, Cycle()))
    assert policy.per_sample_s == 2.0


def test_the_gap_that_commits_is_that_of_the_ratio_before_the_update() -> None:
    """By hand: 32 left over, ratio 0.5 gives no gap, the next ratio 0.6 would."""
    policy = DefaultDynamicSchedulePolicy(0.5)

    policy.update_after_step(1, snapshot(1, attrs.evolve(HARD, left_over=32)))

    assert policy.deactivate_ratio == pytest.approx(0.6)
    assert policy.per_sample_s == 1000.0


def test_nothing_is_learned_at_version_0() -> None:
    """No cycle has run, so there is nothing to learn from."""
    policy = DefaultDynamicSchedulePolicy(0.3)
    before = policy.state_dict()

    policy.update_after_step(0, snapshot(0, Cycle(activate_s=6.0)))

    assert policy.state_dict() == before


@pytest.mark.parametrize("declared", [True, False])
def test_without_standalone_replicas_it_lends_always_and_for_all(declared: bool) -> None:
    """Whether the run was declared so or has lost its standalone replicas."""
    policy = DefaultDynamicSchedulePolicy(0.3, only_hybrid=declared)
    before = policy.state_dict()
    ctx = snapshot(5, attrs.evolve(EASY, left_over=3 * CYCLE, only_hybrid=not declared))

    assert policy.should_activate_after_step(5, False, ctx)
    assert policy.deactivate_wait_samples(ctx) == CYCLE
    policy.update_after_step(5, ctx)
    assert policy.state_dict() == before


def test_it_takes_back_what_is_lent_and_nothing_else() -> None:
    """And spreads all requests when it lends."""
    policy = DefaultDynamicSchedulePolicy()
    ctx = snapshot(1, HARD)

    assert policy.should_deactivate(1, True, ctx) is True
    assert policy.should_deactivate(1, False, ctx) is False
    assert policy.request_rebalance(1, ctx) == Rebalance(RebalanceScope.ALL)


@given(RATIOS, histories())
def test_the_wait_is_bounded(ratio: float, history: list[Cycle]) -> None:
    """From nothing to a full cycle, after whatever history."""
    policy = DefaultDynamicSchedulePolicy(ratio)

    for version, ctx in snapshots(history):
        policy.update_after_step(version, ctx)
        assert 0 <= policy.deactivate_wait_samples(ctx) <= CYCLE
        assert 0 <= policy.deactivate_ratio <= 1


@given(
    start=RATIOS,
    calm=st.integers(1, 200),
    waited=st.integers(1, CYCLE),
    left_over=st.integers(-CYCLE, CYCLE),
)
@example(start=1.0, calm=200, waited=1, left_over=0)
@example(start=1.0, calm=200, waited=CYCLE, left_over=0)
def test_a_long_calm_does_not_wind_it_up(
    start: float, calm: int, waited: int, left_over: int
) -> None:
    """The wait is back within 51 hard cycles, within 11 when every sample was waited for."""
    policy = DefaultDynamicSchedulePolicy(start)
    before = wait(policy)
    live(policy, EASY, calm)

    hard = Cycle(waited_samples=waited, waited_s=5.0, left_over=left_over)
    waits = live(policy, hard, 11 if waited == CYCLE else 51)

    assert max(waits) >= before


@given(RATIOS, histories(), cycles(), histories())
def test_a_restored_policy_answers_as_the_original(
    ratio: float, past: list[Cycle], now: Cycle, future: list[Cycle]
) -> None:
    """State goes through JSON into a policy that was configured differently."""
    original, restored = DefaultDynamicSchedulePolicy(ratio), DefaultDynamicSchedulePolicy(0.9)
    for version, ctx in snapshots(past):
        original.update_after_step(version, ctx)

    restored.load_state_dict(json.loads(json.dumps(original.state_dict(), allow_nan=False)))

    for version, ctx in snapshots([now, *future], first=len(past)):
        for policy in (original, restored):
            policy.update_after_step(version, ctx)
        assert restored.state_dict() == original.state_dict()
        assert restored.deactivate_wait_samples(ctx) == original.deactivate_wait_samples(ctx)
        assert restored.should_activate_after_step(
            version, True, ctx
        ) is original.should_activate_after_step(version, True, ctx)


@given(RATIOS, histories())
def test_questions_do_not_change_it(ratio: float, history: list[Cycle]) -> None:
    """Asked twice it answers alike, and the asked policy stays equal to one never asked."""
    asked, unasked = DefaultDynamicSchedulePolicy(ratio), DefaultDynamicSchedulePolicy(ratio)

    for version, ctx in snapshots(history):
        first = asked.should_activate_after_step(version, False, ctx)
        assert asked.should_activate_after_step(version, False, ctx) is first
        asked.deactivate_wait_samples(ctx)
        asked.request_rebalance(version, ctx)
        for policy in (asked, unasked):
            policy.update_after_step(version, ctx)
        assert asked.state_dict() == unasked.state_dict()


@pytest.mark.parametrize("ratio", [-0.1, 1.7, math.nan, math.inf, True, "0.3", None])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    """The error says what is allowed."""
    with pytest.raises(InvalidValueError, match=r"deactivate_ratio must be .* >= 0 and <= 1"):
        DefaultDynamicSchedulePolicy(ratio)


def test_a_flag_that_is_none_is_refused() -> None:
    """Only booleans say yes or no."""
    with pytest.raises(InvalidValueError, match="only_hybrid must be true or false"):
        DefaultDynamicSchedulePolicy(0.3, only_hybrid=1)  # type: ignore[arg-type]
