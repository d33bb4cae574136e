"""Whatever the policy says and wherever the data ends: the run ends, and no sample is lost.

Every run here is watched by the shared checker of event logs.
"""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.support import run_training, small_config, small_options

from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance, RebalanceScope

REBALANCES = st.sampled_from([None, Rebalance(), Rebalance(RebalanceScope.EXCESS)])


@attrs.define(kw_only=True)
class WilfulPolicy(DynamicSchedulePolicyBase):
    """A policy that says whatever was drawn for it, sense or not.

    Attributes:
        lends: Its answers to `should_activate_after_step` by version, again and again.
        refusals: How often it refuses to deactivate in each fit step; None for always.
        wait: The samples it asks for.
        rebalance: Its answer to `request_rebalance`.
    """

    lends: list[bool]
    refusals: int | None
    wait: int
    rebalance: Rebalance | None
    asked: int = 0

    def should_deactivate(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        self.asked += 1
        is_willing = self.refusals is not None and self.asked % (self.refusals + 1) == 0
        return is_hybrid_active and is_willing

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        return self.wait

    def should_activate_after_step(
        self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
    ) -> bool:
        return self.lends[global_steps % len(self.lends)]

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        return self.rebalance


POLICIES = st.builds(
    WilfulPolicy,
    lends=st.lists(st.booleans(), min_size=1, max_size=3),
    refusals=st.none() | st.integers(0, 5),
    wait=st.integers(-3, 40) | st.just(10**9),
    rebalance=REBALANCES,
)


@given(
    policy=POLICIES,
    prompts=st.integers(1, 24),
    batch=st.integers(1, 4),
    steps=st.integers(1, 3),
    responses=st.integers(1, 2),
    rollout_nodes=st.integers(0, 1),
    staleness=st.sampled_from([0.0, 0.5, 2.0]),
    partial_rollout=st.booleans(),
    require_batches=st.integers(1, 2),
    seed=st.integers(0, 3),
)
def test_every_run_ends_with_every_sample_accounted_for(
    policy: WilfulPolicy,
    prompts: int,
    batch: int,
    steps: int,
    responses: int,
    rollout_nodes: int,
    staleness: float,
    partial_rollout: bool,
    require_batches: int,
    seed: int,
) -> None:
    """Trained is every full collection; what is left is less than one, and reported as unused."""
    config = small_config(
        prompts=prompts,
        batch=batch,
        steps=steps,
        responses=responses,
        rollout_nodes=rollout_nodes,
        seed=seed,
        training={
            "staleness_threshold": staleness,
            "partial_rollout": partial_rollout,
            "require_batches": require_batches,
        },
    )

    report = run_training(config, policy, options=small_options(mean_tokens=2_000.0)).report

    assert report.outcome is RunOutcome.EXHAUSTED
    assert report.trained_samples + report.unused_samples == prompts
    assert report.trained_samples == prompts - prompts % config.required_samples
    assert report.given_up_samples == 0


@pytest.mark.parametrize("prompts", range(1, 18))
def test_static_run_ends_wherever_the_data_does(prompts: int) -> None:
    """Without lending too, at every sample index of two cycles."""
    config = small_config(dynamic=False, prompts=prompts)

    report = run_training(config, options=small_options(mean_tokens=2_000.0)).report

    assert report.outcome is RunOutcome.EXHAUSTED
    assert report.trained_samples == prompts // 4 * 4
    assert report.unused_samples == prompts % 4
