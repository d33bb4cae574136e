"""Weight sync, sleep, wake and offload times."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.memory import training_state
from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B, ModelSpec
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.executors.simulated.costs.transfer import TransferModel, TransferParameters

TRANSFER = TransferModel(model=QWEN3_5_35B_A3B, gpu=H20)
TOPOLOGY = TrainerTopology(gpus=16, tensor_parallel=4, pipeline_parallel=2, expert_parallel=8)
QWEN3_30B_A3B = ModelSpec(
    name="Qwen3-30B-A3B",
    total_params=30.5e9,
    active_params=3.3e9,
    layers=48,
    attention_layers=48,
    query_heads=32,
    kv_heads=4,
    head_dim=128,
    experts=128,
    experts_per_token=8,
)
QWEN3_8B = ModelSpec(
    name="Qwen3-8B",
    total_params=8.2e9,
    active_params=8.2e9,
    layers=36,
    attention_layers=36,
    query_heads=32,
    kv_heads=8,
    head_dim=128,
)


def activate_s(spec: ModelSpec) -> float:
    """Return the seconds of lending: offload, wake weights, sync, offload, wake KV cache."""
    transfer, state = TransferModel(model=spec, gpu=H20), training_state(spec, TOPOLOGY)
    return (
        transfer.offload_s(state.optimizer_and_gradient_bytes)
        + transfer.wake_weights_s()
        + transfer.sync_hybrid_s(8)
        + transfer.offload_s(state.weight_bytes)
        + transfer.wake_kv_cache_s()
    )


def deactivate_s(spec: ModelSpec) -> float:
    """Return the seconds of taking back: sleep, then reload both parts."""
    transfer, state = TransferModel(model=spec, gpu=H20), training_state(spec, TOPOLOGY)
    return (
        transfer.sleep_s()
        + transfer.offload_s(state.optimizer_and_gradient_bytes)
        + transfer.offload_s(state.weight_bytes)
    )


def test_sync_by_hand() -> None:
    """70 GB are gathered at 45 GB/s, then broadcast at 22.5 GB/s or copied within the GPU."""
    gather_s = 70 / 45
    assert TRANSFER.gather_s == pytest.approx(gather_s)
    assert TRANSFER.sync_standalone_s() == pytest.approx(0.3 + gather_s + 70 / 22.5)
    assert TRANSFER.sync_hybrid_s(8) == pytest.approx(0.3 + gather_s + 2 * 70 / 8 / 4000)


def test_sleep_and_wake_by_hand() -> None:
    """What is dropped and mapped again costs latency alone: the next sync brings it."""
    assert TRANSFER.sleep_s() == 1.0
    assert TRANSFER.wake_weights_s() == 0.8
    assert TRANSFER.wake_kv_cache_s() == 0.8


@given(st.floats(0, 1e11), st.floats(0, 1e11))
def test_offload_is_linear_in_bytes(first: float, second: float) -> None:
    """Moving two parts one after the other costs one latency more than moving them at once."""
    apart = TRANSFER.offload_s(first) + TRANSFER.offload_s(second)
    assert apart == pytest.approx(TRANSFER.offload_s(first + second) + 0.4)


@given(st.floats(0.1, 1.0))
def test_a_faster_link_never_makes_a_sync_slower(efficiency: float) -> None:
    """Syncs get faster with the attained share of the network, down to the hybrid's."""
    faster = TransferModel(
        model=QWEN3_5_35B_A3B,
        gpu=H20,
        parameters=TransferParameters(network_efficiency=efficiency),
    )
    slower = attrs.evolve(
        faster, parameters=TransferParameters(network_efficiency=efficiency * 0.9)
    )
    assert slower.sync_standalone_s() > faster.sync_standalone_s() > faster.sync_hybrid_s(8)


def test_sync_lands_near_the_published_figures() -> None:
    """30B: published 4.4 s; 235B: published 23.7 s; both with a checkpoint engine."""
    sync_30b = TransferModel(model=QWEN3_30B_A3B, gpu=H20).sync_standalone_s()
    assert sync_30b == pytest.approx(4.4, rel=0.1)
    spec_235b = attrs.evolve(QWEN3_30B_A3B, total_params=235e9, active_params=22e9)
    sync_235b = TransferModel(model=spec_235b, gpu=H20).sync_standalone_s()
    assert sync_235b == pytest.approx(23.7, rel=0.4)


def test_switching_lands_near_the_published_figures() -> None:
    """8B to 30B: published 6.1 to 6.3 s to activate, 3.2 to 4.4 s to deactivate."""
    for spec in (QWEN3_8B, QWEN3_30B_A3B):
        assert 6.1 / 2 < activate_s(spec) < 2 * 6.3
        assert 3.2 / 2 < deactivate_s(spec) < 2 * 4.4
    assert activate_s(QWEN3_30B_A3B) == pytest.approx(5.5, abs=0.3)
    assert deactivate_s(QWEN3_30B_A3B) == pytest.approx(3.1, abs=0.3)


def test_waking_lands_within_the_published_range() -> None:
    """Published 0.8 to 2.6 s with the weights dropped."""
    assert 0.8 < TRANSFER.wake_weights_s() + TRANSFER.wake_kv_cache_s() < 2.6


def test_a_replica_without_gpus_is_refused() -> None:
    """Tensor parallelism is a positive integer."""
    with pytest.raises(ValueError, match="tensor_parallel must be an integer >= 1"):
        TRANSFER.sync_hybrid_s(0)
