"""Pairs of real runs: their order, their ratio, the bound beside them, and what is learned."""

from __future__ import annotations

import math

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.benchmarks.measured import pairs as module
from swingshift.benchmarks.measured.bound import CycleBound
from swingshift.benchmarks.measured.learning import pairs_needed, two_one_sided_tests
from swingshift.benchmarks.measured.pairs import Pair, half_width, ratio_of, run_pairs
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError


def report(wall_clock_s: float, outcome: RunOutcome = RunOutcome.EXHAUSTED) -> RunReport:
    return RunReport(
        outcome=outcome,
        reason="no memory" if outcome is RunOutcome.FAILED else "",
        wall_clock_s=wall_clock_s,
        trained_samples=100,
        unused_samples=0,
        given_up_samples=0,
        cycles=({}, {}),
        gpu_seconds={},
    )


def test_order_alternates_and_seeds_rise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever drifts on the machine meets both policies alike."""
    seen: list[tuple[str, int]] = []

    def execute(config: RunConfig, *, policy: str, name: str) -> RunReport:
        seen.append((policy, config.seed))
        return report(2.0 if policy == "default" else 4.0)

    monkeypatch.setattr(module, "execute", execute)
    made = run_pairs(RunConfig(seed=5), "default", 3, lambda done, total: None)
    never = module.NEVER_LENDS
    assert seen == [
        (never, 5), ("default", 5), ("default", 6), (never, 6), (never, 7), ("default", 7),
    ]  # fmt: skip
    assert [pair.ratio for pair in made] == [0.5, 0.5, 0.5]


def test_a_failed_run_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no figure."""
    monkeypatch.setattr(module, "execute", lambda *_, **__: report(1.0, RunOutcome.FAILED))
    with pytest.raises(UserError, match="static_fully_async with seed 0 failed: no memory"):
        run_pairs(RunConfig(), "default", 2, lambda done, total: None)


def test_ratio_and_its_interval_by_hand() -> None:
    """Ratios 0.5 and 0.8: logs -0.693147 and -0.223144, mean -0.458145, t(0.975, 1) = 12.7062."""
    made = [Pair(seed=n, static=report(10.0), dynamic=report(s)) for n, s in enumerate((5.0, 8.0))]
    found = ratio_of(made)
    half = 12.706205 * 0.332342 / math.sqrt(2)
    assert found.value == pytest.approx(math.sqrt(0.4))
    assert found.low == pytest.approx(math.exp(-0.458145 - half), rel=1e-4)
    assert found.high == pytest.approx(math.exp(-0.458145 + half), rel=1e-4)


def test_half_width_by_hand() -> None:
    """1, 2, 3: standard deviation 1, t(0.975, 2) = 4.302653."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / math.sqrt(3))


BOUND = CycleBound(
    rollout_s=10.0,
    training_s=2.0,
    hybrid_speed=0.5,
    switch_s=1.0,
    trainer_devices=2,
    rollout_devices=2,
)


def test_bound_by_hand() -> None:
    """Two and two devices: (10 + 0.5 x 2 x 2) / (2 + 0.5 x 2) = 4, static 5."""
    assert BOUND.static_s == pytest.approx(5.0)
    assert BOUND.lending_s == pytest.approx(4.0)
    assert BOUND.ratio == pytest.approx(0.8)


def test_where_training_is_the_bottleneck_nothing_is_to_be_won() -> None:
    """Every second of the trainer's devices is needed."""
    assert attrs.evolve(BOUND, training_s=6.0).ratio == 1.0


@given(
    rollout_s=st.floats(0.01, 1e3),
    training_s=st.floats(0.01, 1e3),
    speed=st.floats(0.05, 2.0),
    switch_s=st.floats(0.0, 1e3),
    trainers=st.integers(1, 16),
    rollouts=st.integers(1, 16),
)
def test_lending_never_costs_in_the_bound(
    rollout_s: float,
    training_s: float,
    speed: float,
    switch_s: float,
    trainers: int,
    rollouts: int,
) -> None:
    """The best schedule may always lend nothing."""
    bound = CycleBound(
        rollout_s=rollout_s,
        training_s=training_s,
        hybrid_speed=speed,
        switch_s=switch_s,
        trainer_devices=trainers,
        rollout_devices=rollouts,
    )
    assert 0.0 < bound.lending_s <= bound.static_s


def test_equivalence_by_hand() -> None:
    """0.01, 0.02, 0.03: mean 0.02, error 0.0057735, t(0.95, 2) = 2.919986.

    The test against 0.05 has t = (0.02 - 0.05) / 0.0057735 = -5.19615, whose lower tail with 2
    degrees of freedom is 0.017549.
    """
    found = two_one_sided_tests([0.01, 0.02, 0.03], margin=0.05)
    assert found.mean == pytest.approx(0.02)
    assert found.high == pytest.approx(0.02 + 2.919986 * 0.0057735, rel=1e-4)
    assert found.p_value == pytest.approx(0.017549, rel=1e-3)
    assert found.holds


@pytest.mark.parametrize("differences", [[0.06, 0.06], [0.2, 0.3, 0.25], [-0.4, 0.4]])
def test_what_differs_or_is_not_known_is_not_equivalent(differences: list[float]) -> None:
    """A difference beyond the margin, and one that could be anything."""
    assert not two_one_sided_tests(differences, margin=0.05).holds


def test_equal_runs_are_equivalent() -> None:
    """Without any spread there is nothing to test."""
    assert two_one_sided_tests([0.0, 0.0], margin=0.05).holds


def test_the_pilot_decides_with_its_own_spread() -> None:
    """0.01, 0.02, 0.03 and a fourth: mean 0.02, error 0.01 / 2, t(0.95, 2) = 2.919986."""
    found = two_one_sided_tests([0.01, 0.02, 0.03, 0.02], pilot=3, margin=0.05)
    assert found.high == pytest.approx(0.02 + 2.919986 * 0.005, rel=1e-4)


def test_more_spread_needs_more_pairs() -> None:
    """Both quantiles are t(0.95, 2) = 2.919986: (2 x 2.919986 x 0.1 / 0.05)^2 = 136.4."""
    assert pairs_needed([0.0, 0.0, 0.0], margin=0.05) == 3
    assert pairs_needed([-0.1, 0.0, 0.1], margin=0.05) == 137
