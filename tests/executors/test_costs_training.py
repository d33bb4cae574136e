"""Fit-step times by timing key."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.hardware import H20, GpuSpec
from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B, ModelSpec
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.executors.simulated.costs.training import (
    FitWork,
    TrainingModel,
    TrainingParameters,
)

# 100 parameters, 16 attention FLOPs per pair.
TINY = ModelSpec(
    name="tiny",
    total_params=100.0,
    active_params=100.0,
    layers=1,
    attention_layers=1,
    query_heads=2,
    kv_heads=2,
    head_dim=2,
)
SLOW = GpuSpec(
    name="slow",
    memory_bytes=1e3,
    memory_bandwidth_bytes_per_s=10.0,
    bf16_flops_per_s=1000.0,
    network_bytes_per_s=100.0,
)
PARAMETERS = TrainingParameters(
    mfu=0.5,
    loss_per_doubling=0.1,
    microbatch_tokens=10.0,
    optimizer_step_s=3.0,
    network_efficiency=0.5,
    advantage_s=0.25,
)
TRAINING = TrainingModel(
    model=TINY,
    gpu=SLOW,
    topology=TrainerTopology(gpus=8, tensor_parallel=2, pipeline_parallel=2),
    parameters=PARAMETERS,
)
PUBLISHED = TrainingModel(
    model=QWEN3_5_35B_A3B,
    gpu=H20,
    topology=TrainerTopology(gpus=16, tensor_parallel=4, pipeline_parallel=2, expert_parallel=8),
)
WORK = FitWork.of([30, 50])


def test_work_is_the_first_two_moments() -> None:
    """Lengths 30 and 50 are 80 tokens and 900 + 2500 squared ones, in two sequences."""
    assert FitWork(tokens=80, squared_tokens=3400, sequences=2) == WORK


def test_forward_by_hand() -> None:
    """8 GPUs at 1000 x 0.5 x 0.9 FLOP/s; 4 micro-batches per copy in 2 stages take 5/4."""
    flops = 2 * 100 * 80 + 16 * 3400 / 2
    assert TRAINING.flops_per_s == pytest.approx(3600)
    assert TRAINING.forward_s(WORK) == pytest.approx(flops / 3600 * 5 / 4)


def test_fit_step_by_hand() -> None:
    """An update is three forward passes, the optimizer step and reducing 25 x 6 / 2 bytes."""
    forward_s = TRAINING.forward_s(WORK)
    assert TRAINING.gradient_reduction_s == pytest.approx(25 * 6 / 2 / 50)
    assert TRAINING.fit_seconds(WORK) == {
        "reward": 0.0,
        "old_log_prob": forward_s,
        "adv": 0.25,
        "update_actor": pytest.approx(3 * forward_s + 3.0 + 1.5),
    }


def test_reference_and_critic_add_their_keys() -> None:
    """A reference adds a forward pass; a critic adds one and an update, in the order they run."""
    seconds = TRAINING.fit_seconds(WORK, reference=True, critic=True)
    assert list(seconds) == [
        "reward",
        "old_log_prob",
        "ref",
        "values",
        "adv",
        "update_critic",
        "update_actor",
    ]
    assert seconds["ref"] == seconds["values"] == seconds["old_log_prob"]
    assert seconds["update_critic"] == seconds["update_actor"]


def test_every_optimizer_step_costs_its_overhead_and_its_bubble() -> None:
    """Two optimizer steps halve the micro-batches of each and pay the fixed costs twice."""
    twice = attrs.evolve(WORK, optimizer_steps=2)
    flops = 2 * 100 * 80 + 16 * 3400 / 2
    assert TRAINING.forward_s(twice) == pytest.approx(flops / 3600 * 3 / 2)
    update_s = TRAINING.fit_seconds(twice)["update_actor"]
    assert update_s == pytest.approx(3 * TRAINING.forward_s(twice) + 2 * 4.5)


@given(st.lists(st.integers(1, 64_000), min_size=1, max_size=50), st.integers(1, 64_000))
def test_more_work_takes_longer(lengths: list[int], extra: int) -> None:
    """Adding a sequence never makes a fit step shorter."""
    before, after = (PUBLISHED.fit_seconds(FitWork.of(s)) for s in (lengths, [*lengths, extra]))
    assert all(after[key] >= before[key] for key in before)


@given(st.floats(1e6, 1e8), st.integers(2, 10))
def test_forward_is_linear_without_a_pipeline(tokens: float, times: int) -> None:
    """Without stages there is no bubble, and the time is proportional to the work."""
    flat = attrs.evolve(PUBLISHED, topology=TrainerTopology(gpus=16, tensor_parallel=4))
    once = FitWork(tokens=tokens, squared_tokens=tokens * 13_000, sequences=8)
    many = FitWork(
        tokens=tokens * times, squared_tokens=tokens * 13_000 * times, sequences=8 * times
    )
    assert flat.forward_s(many) == pytest.approx(times * flat.forward_s(once))


@given(st.integers(0, 6))
def test_doubling_the_gpus_helps_but_does_not_double_the_speed(doublings: int) -> None:
    """Each doubling of the copies keeps 1 - loss of the speed per GPU."""
    speeds = [
        attrs.evolve(
            TRAINING,
            topology=TrainerTopology(gpus=gpus, tensor_parallel=2, pipeline_parallel=2),
        ).flops_per_s
        for gpus in (4 * 2**doublings, 8 * 2**doublings)
    ]
    assert speeds[1] == pytest.approx(2 * 0.9 * speeds[0])


def test_published_fit_step_takes_about_a_minute() -> None:
    """128 sequences of 13k tokens are some 5e16 FLOPs, at 16 x 148 TFLOP/s x 0.3 a minute."""
    seconds = PUBLISHED.fit_seconds(FitWork.of([13_000] * 128))
    assert 40 < sum(seconds.values()) < 120
    assert PUBLISHED.gradient_reduction_s < 0.1
