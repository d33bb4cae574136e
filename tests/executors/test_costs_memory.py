"""KV capacity of a replica and training state of a trainer."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.memory import (
    MemoryParameters,
    kv_capacity_tokens,
    training_state,
)
from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.sdk.validators import InvalidValueError

PUBLISHED = TrainerTopology(gpus=16, tensor_parallel=4, pipeline_parallel=2, expert_parallel=8)


def capacity(memory_share: float, tensor_parallel: int = 8) -> int:
    """Return the capacity of a replica of the published model."""
    return kv_capacity_tokens(
        QWEN3_5_35B_A3B, H20, tensor_parallel=tensor_parallel, memory_share=memory_share
    )


def test_published_replica_by_hand() -> None:
    """A share of 0.45 leaves 43.2 - 8.75 - 2 GB per GPU for one KV head of 10,240 bytes a token."""
    assert capacity(0.45) == 32.45e9 // 10_240
    assert capacity(0.45) == pytest.approx(3.2e6, rel=0.02)


def test_capacity_grows_with_the_share_only() -> None:
    """A share of 0.7 adds a quarter of the memory of a GPU."""
    assert capacity(0.7) - capacity(0.45) == pytest.approx(0.25 * 96e9 / 10_240, abs=1)


@given(st.floats(0.01, 1.0), st.sampled_from([1, 2, 4, 8]))
def test_capacity_or_the_least_share_that_would_do(share: float, tensor_parallel: int) -> None:
    """A share is either enough, or refused with one that is, or refused for good."""
    try:
        assert capacity(share, tensor_parallel) >= 1
    except InvalidValueError as error:
        least = float(error.allowed.removeprefix("at least ").partition(":")[0])
        assert share < least
        assert capacity(least, tensor_parallel) >= 1


def test_weights_that_never_fit_ask_for_more_gpus() -> None:
    """Where no share is enough the message says what is, and how much is needed."""
    small = attrs.evolve(H20, memory_bytes=60e9)
    allowed = "a replica of more GPUs: Qwen3.5-35B-A3B and a KV cache need 72.0 GB on each of 1 x"
    with pytest.raises(InvalidValueError, match=f"memory_share must be {allowed}"):
        kv_capacity_tokens(QWEN3_5_35B_A3B, small, tensor_parallel=1, memory_share=0.9)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_shares_out_of_range_are_refused(share: float) -> None:
    """A share is above 0 and at most 1."""
    with pytest.raises(InvalidValueError, match="memory_share must be a finite number > 0 and <="):
        capacity(share)


def test_training_state_by_hand() -> None:
    """Dense parameters are split over 8 GPUs, experts and optimizer over all 16."""
    state = training_state(QWEN3_5_35B_A3B, PUBLISHED)
    params = QWEN3_5_35B_A3B.dense_params / 8 + QWEN3_5_35B_A3B.expert_params / 16
    assert state.weight_bytes == pytest.approx(2 * params)
    assert state.gradient_bytes == pytest.approx(4 * params)
    assert state.optimizer_bytes == 12 * 35e9 / 16
    assert state.optimizer_and_gradient_bytes == state.gradient_bytes + state.optimizer_bytes
    assert state.total_bytes == pytest.approx(6 * params + 12 * 35e9 / 16)


def test_bytes_per_parameter_are_parameters() -> None:
    """Gradients in bf16 take half of what they take in fp32."""
    half = training_state(QWEN3_5_35B_A3B, PUBLISHED, MemoryParameters(gradient_bytes_per_param=2))
    assert half.gradient_bytes == half.weight_bytes


def test_topology_by_hand() -> None:
    """16 GPUs with TP4 PP2 EP8 hold two copies of the dense parameters and one of the experts."""
    assert (PUBLISHED.dense_shards, PUBLISHED.expert_shards) == (8, 16)
    assert (PUBLISHED.data_parallel, PUBLISHED.expert_data_parallel) == (2, 1)
    assert TrainerTopology(gpus=8, tensor_parallel=4).expert_shards == 4


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        (8, "expert_parallel must be a divisor of the 4 GPUs of a pipeline stage .* example 4"),
        (9, "pipeline_parallel must be a divisor of the 9 trainer GPUs, for example 1"),
        (12, "tensor_parallel must be a divisor of the 6 GPUs .* 2 stages.*, for example 2"),
    ],
)
def test_topologies_that_do_not_divide_are_refused(gpus: int, message: str) -> None:
    """A size that does not divide the GPUs is named with one that does."""
    with pytest.raises(InvalidValueError, match=message):
        attrs.evolve(PUBLISHED, gpus=gpus)
