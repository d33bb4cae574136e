"""Decode and prefill times: the roofline, its line over steps and the inverse."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.decode import (
    DecodeModel,
    DecodeParameters,
    StepCost,
    seconds_for,
    steps_in,
)
from swingshift.executors.simulated.costs.hardware import H20, GpuSpec
from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B, ModelSpec
from swingshift.sdk.validators import InvalidValueError

# 100 parameters of 1 byte, 8 bytes of KV per token and 16 attention FLOPs per pair of tokens.
TINY = ModelSpec(
    name="tiny",
    total_params=100.0,
    active_params=100.0,
    layers=1,
    attention_layers=1,
    query_heads=2,
    kv_heads=2,
    head_dim=2,
    bytes_per_param=1.0,
    kv_bytes_per_element=1.0,
)
SLOW = GpuSpec(
    name="slow", memory_bytes=1e3, memory_bandwidth_bytes_per_s=10.0, bf16_flops_per_s=1000.0
)
PARAMETERS = DecodeParameters(
    bandwidth_efficiency=0.5,
    flops_efficiency=0.5,
    prefill_efficiency=0.25,
    step_overhead_s=1.0,
    overhead_per_sequence_s=0.1,
)
DECODE = DecodeModel(model=TINY, gpu=SLOW, tensor_parallel=2, parameters=PARAMETERS)
PUBLISHED = DecodeModel(model=QWEN3_5_35B_A3B, gpu=H20, tensor_parallel=8)

lines = st.builds(
    StepCost, base_s=st.floats(1e-4, 10.0), slope_s_per_token=st.just(0.0) | st.floats(1e-12, 0.1)
)


def test_memory_bound_step_by_hand() -> None:
    """Each of 2 GPUs reads 50 + 5 x 4 bytes at 5 B/s; 2 requests cost 1.2 s on top."""
    cost = DECODE.step(2, 5.0)
    # Compute: (2 x 100 x 2 + 16 x 5) / (2 x 500) = 0.48 s, hidden behind 14 s of reading.
    assert cost.base_s == pytest.approx(14.0 + 1.0 + 0.2)
    assert cost.slope_s_per_token == pytest.approx(2 * 4 / 5)


def test_compute_bound_step_by_hand() -> None:
    """With 100 requests the FLOPs take (200 x 100 + 16 x 5) / 1000 s, longer than reading."""
    cost = DECODE.step(100, 5.0)
    assert cost.base_s == pytest.approx(20.08 + 1.0 + 10.0)
    assert cost.slope_s_per_token == pytest.approx(100 * 16 / 1000)


def test_prefill_by_hand() -> None:
    """10 tokens after 20 compute 2 x 100 x 10 + 16 x (10 x 20 + 50) FLOPs at 500 per second."""
    assert DECODE.prefill_s(10, 20) == pytest.approx((2000 + 16 * 250) / 500)
    assert DECODE.prefill_s(0, 20) == 0.0


@given(st.integers(1, 300), st.integers(0, 300), st.floats(0, 1e7), st.floats(0, 1e6))
def test_step_grows_with_batch_and_context(
    batch: int, more: int, context: float, added: float
) -> None:
    """Neither more requests nor more context ever make a step faster."""
    cost = PUBLISHED.step(batch, context)
    assert PUBLISHED.step(batch + more, context).base_s >= cost.base_s
    assert PUBLISHED.step(batch, context + added).base_s >= cost.base_s


@given(st.integers(1, 128), st.floats(0, 2e6), st.integers(0, 10_000))
def test_line_is_the_step_time_later(batch: int, context: float, steps: int) -> None:
    """While memory-bound, the line after x steps is the step time at the context then."""
    cost = PUBLISHED.step(batch, context)
    later = PUBLISHED.step(batch, context + batch * steps)
    assert cost.base_s + cost.slope_s_per_token * steps == pytest.approx(later.base_s)


def test_order_of_batches_does_not_matter() -> None:
    """What is remembered per batch size is the same however it was asked for."""
    fresh = attrs.evolve(PUBLISHED)
    assert fresh.step(200, 1e6) == PUBLISHED.step(200, 1e6)
    assert fresh.step(3, 1e3) == attrs.evolve(PUBLISHED).step(3, 1e3)


@given(lines, st.floats(0, 1e5))
def test_steps_in_inverts_seconds_for(cost: StepCost, steps: float) -> None:
    """Decoding for as long as some steps take gives those steps, whatever the slope."""
    assert steps_in(cost, seconds_for(cost, steps)) == pytest.approx(steps, rel=1e-9, abs=1e-12)


@given(lines, st.floats(0, 1e4), st.floats(0, 1e4))
def test_splitting_a_run_of_steps_adds_up(cost: StepCost, first: float, second: float) -> None:
    """The time of all steps is that of the first ones and, from there, that of the rest."""
    base_s, slope = cost
    rest = StepCost(base_s + slope * first, slope)
    whole = seconds_for(cost, first + second)
    assert seconds_for(cost, first) + seconds_for(rest, second) == pytest.approx(whole)


def test_quadratic_by_hand() -> None:
    """1 s growing by 2 s a step: 3 steps take 3 + 9 = 12 s."""
    assert seconds_for(StepCost(1.0, 2.0), 3.0) == 12.0
    assert steps_in(StepCost(1.0, 2.0), 12.0) == pytest.approx(3.0)
    assert steps_in(StepCost(0.5, 0.0), 12.0) == 24.0


def test_published_replica_decodes_in_tens_of_milliseconds() -> None:
    """128 requests at 7k tokens: weights 8.6 GB and KV 9.2 GB per GPU at 2.8 TB/s, and 7.6 ms."""
    base_s = PUBLISHED.step(128, 128 * 7000.0).base_s
    assert base_s == pytest.approx(0.014, rel=0.05)


@pytest.mark.parametrize("batch", [0, -1])
def test_an_empty_batch_has_no_step(batch: int) -> None:
    """A step over no request is refused, before and after others were asked for."""
    PUBLISHED.step(4, 0.0)
    with pytest.raises(ValueError, match="batch must be an integer >= 1"):
        PUBLISHED.step(batch, 0.0)


def test_impossible_replicas_are_refused() -> None:
    """A replica has GPUs, and no engine is faster than its hardware."""
    with pytest.raises(InvalidValueError, match="tensor_parallel must be an integer"):
        attrs.evolve(PUBLISHED, tensor_parallel=0)
    with pytest.raises(InvalidValueError, match=r"bandwidth_efficiency must be .* > 0 and <= 1"):
        DecodeParameters(bandwidth_efficiency=1.2)
