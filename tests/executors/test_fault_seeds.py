"""Faults by seed: many in one run, at any call, in every mixture of kinds."""

from __future__ import annotations

import pytest
from tests.executors.faultworld import BEYOND, NIGHTLY, WITHIN, WORLDS, World, judge

from swingshift.executors.simulated.faults import FaultKind, FaultPlan, RandomFaults

SEEDS = range(1_000 if NIGHTLY else 12)
RARE, OFTEN, MOSTLY = 0.02, 0.1, 0.4


def at_random(seed: int) -> FaultPlan:
    """Return a plan of faults that a seed decides, with every kind of mixture among the seeds."""
    probability = (RARE, OFTEN, MOSTLY)[seed % 3]
    return FaultPlan(
        at_random=RandomFaults(
            probability=probability,
            generate_probability=(0.0, probability / 4)[seed % 2],
            kinds=tuple(FaultKind),
            seconds=(WITHIN, BEYOND)[seed // 3 % 2],
            seed=seed,
        )
    )


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_any_mixture_of_faults_is_survived_or_named(world: World) -> None:
    """From a rare one to a cluster in which two of five calls go wrong."""
    problems = {seed: judge(at_random(seed), world).problems for seed in SEEDS}
    assert {seed: found for seed, found in problems.items() if found} == {}


def test_a_seed_gives_the_same_faults_and_the_same_run() -> None:
    """What was found can be found again."""
    first, second = (judge(at_random(1)) for _ in range(2))
    assert first.struck == second.struck
    assert first.struck
    assert first.sink.events == second.sink.events
    assert first.sink.times_s == second.sink.times_s
