"""Model specifications: parameter split, KV cache and weights touched per step."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B, ModelSpec
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError

DENSE_8B = ModelSpec(
    name="dense-8b",
    total_params=8e9,
    active_params=8e9,
    layers=36,
    attention_layers=36,
    query_heads=32,
    kv_heads=8,
    head_dim=128,
)


def test_published_model_by_hand() -> None:
    """The published model keeps 20 kB of KV cache per token and 70 GB of weights."""
    spec = ModelSpec.presets["Qwen3.5-35B-A3B"]
    assert spec.kv_bytes_per_token == 2 * 10 * 2 * 256 * 2 == 20_480
    assert spec.weight_bytes == 70e9
    assert spec.attention_flops_per_pair == 4 * 10 * 16 * 256
    # 31/32 of the experts are idle for one token: 35 - 3 = 31/32 x experts.
    assert spec.expert_params == pytest.approx(32e9 * 32 / 31)
    assert spec.dense_params == pytest.approx(35e9 - 32e9 * 32 / 31)


def test_expert_split_agrees_with_the_published_expert_width() -> None:
    """40 layers of 256 experts with three 2048 x 512 matrices are within 5 % of the split."""
    assert QWEN3_5_35B_A3B.expert_params == pytest.approx(40 * 256 * 3 * 2048 * 512, rel=0.05)


def test_dense_model_touches_all_weights_at_any_batch() -> None:
    """Without experts every step reads everything."""
    assert DENSE_8B.expert_params == 0.0
    assert DENSE_8B.active_weight_bytes(1) == DENSE_8B.active_weight_bytes(100) == 16e9


def test_one_token_touches_the_active_parameters() -> None:
    """With one token the weights read are exactly the active parameters."""
    assert QWEN3_5_35B_A3B.active_weight_bytes(1) == pytest.approx(3e9 * 2)


def test_two_tokens_by_hand() -> None:
    """With two tokens the share of idle experts is (31/32)^2."""
    spec = QWEN3_5_35B_A3B
    expected = 2 * (spec.dense_params + spec.expert_params * (1 - (31 / 32) ** 2))
    assert spec.active_weight_bytes(2) == pytest.approx(expected)


@given(st.integers(0, 5000))
def test_touched_weights_grow_with_the_batch_up_to_all(batch: int) -> None:
    """More tokens never touch fewer weights, nor more than there are."""
    now, later = (QWEN3_5_35B_A3B.active_weight_bytes(size) for size in (batch, batch + 1))
    assert now <= later <= QWEN3_5_35B_A3B.weight_bytes * (1 + 1e-12)


def test_kv_heads_are_copied_beyond_one_per_gpu() -> None:
    """Two KV heads halve the cache of a GPU once; eight GPUs hold no less each than two."""
    per_gpu = QWEN3_5_35B_A3B.kv_bytes_per_token_and_gpu
    assert (per_gpu(1), per_gpu(2), per_gpu(8)) == (20_480, 10_240, 10_240)
    assert DENSE_8B.kv_bytes_per_token_and_gpu(8) == DENSE_8B.kv_bytes_per_token / 8


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"active_params": 36e9}, r"active_params=3.6e\+10 must be from"),
        ({"active_params": 1e9}, r"active_params=1e\+09 must be from"),
        ({"attention_layers": 41}, "attention_layers=41 must be at most layers=40"),
        ({"experts_per_token": 257}, "experts_per_token=257 must be at most experts=256"),
        ({"kv_heads": 0}, "kv_heads must be an integer >= 1; got 0"),
        ({"experts": True}, "experts must be an integer >= 1; got True"),
    ],
)
def test_impossible_models_are_refused(changes: dict[str, float], message: str) -> None:
    """A model that cannot be names the field, what was given and what is allowed."""
    with pytest.raises((ConfigError, InvalidValueError), match=message):
        ModelSpec(**(attrs.asdict(QWEN3_5_35B_A3B) | changes))
