"""Language models as the cost models see them: what a token touches and what it leaves behind."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import attrs

from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import finite, integer


@attrs.frozen(kw_only=True)
class ModelSpec:
    """A dense or mixture-of-experts transformer.

    How the parameters split into those every token touches and those of routed experts follows from
    the two published totals (`dense_params`), so the two views cannot disagree. The state of
    linear-attention layers does not grow with context and is not counted.

    A configuration may name one of the `presets` in place of the section.

    Args:
        name: How messages and reports call it.
        total_params: All parameters.
        active_params: Parameters one token touches; equal to ``total_params`` for a dense model.
        layers: Transformer layers of any kind.
        attention_layers: Layers that keep a KV cache; the others keep a state of fixed size.
        query_heads: Query heads of one attention layer.
        kv_heads: Key-value heads of one attention layer.
        head_dim: Width of one head.
        experts: Routed experts per layer, 1 for a dense model.
        experts_per_token: Routed experts that one token visits, 1 for a dense model.
        bytes_per_param: Stored size of a weight.
        kv_bytes_per_element: Stored size of one cached key or value element.
    """

    presets: ClassVar[Mapping[str, ModelSpec]]

    name: str
    total_params: float = attrs.field(validator=finite(gt=0))
    active_params: float = attrs.field(validator=finite(gt=0))
    layers: int = attrs.field(validator=integer(ge=1))
    attention_layers: int = attrs.field(validator=integer(ge=1))
    query_heads: int = attrs.field(validator=integer(ge=1))
    kv_heads: int = attrs.field(validator=integer(ge=1))
    head_dim: int = attrs.field(validator=integer(ge=1))
    experts: int = attrs.field(default=1, validator=integer(ge=1))
    experts_per_token: int = attrs.field(default=1, validator=integer(ge=1))
    bytes_per_param: float = attrs.field(default=2.0, validator=finite(gt=0))
    kv_bytes_per_element: float = attrs.field(default=2.0, validator=finite(gt=0))

    def __attrs_post_init__(self) -> None:
        if self.attention_layers > self.layers:
            raise ConfigError(
                f"{self.name}: attention_layers={self.attention_layers} must be at most "
                f"layers={self.layers}"
            )
        if self.experts_per_token > self.experts:
            raise ConfigError(
                f"{self.name}: experts_per_token={self.experts_per_token} must be at most "
                f"experts={self.experts}"
            )
        lowest = self.total_params * self.experts_per_token / self.experts
        if not lowest <= self.active_params <= self.total_params:
            raise ConfigError(
                f"{self.name}: active_params={self.active_params:g} must be from {lowest:g} "
                f"(routed experts only) to total_params={self.total_params:g} (a dense model)"
            )

    @property
    def dense_params(self) -> float:
        """Parameters that every token touches: the solution of dense + routed x k / E = active."""
        share = self.experts_per_token / self.experts
        if share == 1.0:
            return self.total_params
        return (self.active_params - share * self.total_params) / (1.0 - share)

    @property
    def expert_params(self) -> float:
        """Parameters of all routed experts together; 0 for a dense model."""
        return self.total_params - self.dense_params

    @property
    def weight_bytes(self) -> float:
        """Bytes of one whole copy of the weights."""
        return self.total_params * self.bytes_per_param

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes of one token in one whole KV cache: a key and a value per head and layer."""
        return (
            2.0 * self.attention_layers * self.kv_heads * self.head_dim * self.kv_bytes_per_element
        )

    @property
    def attention_flops_per_pair(self) -> float:
        """FLOPs for one token to attend to one other: per element 2 to score and 2 to sum."""
        return 4.0 * self.attention_layers * self.query_heads * self.head_dim

    def kv_bytes_per_token_and_gpu(self, tensor_parallel: int) -> float:
        """Bytes that one token adds to the KV cache of each GPU of a replica.

        Tensor parallelism splits the cache by KV heads; beyond one head per GPU the heads are
        copied, so more GPUs no longer make the part of each smaller.
        """
        return self.kv_bytes_per_token / min(tensor_parallel, self.kv_heads)

    def active_weight_bytes(self, batch: int) -> float:
        """Return the bytes of weights that one step over ``batch`` tokens reads, on average.

        Routing is taken as uniform and independent, so an expert is idle with
        probability (1 - k/E)^batch. From a few hundred tokens on nearly every expert is read.

        Args:
            batch: Tokens in the step, at least 0.
        """
        idle = (1.0 - self.experts_per_token / self.experts) ** batch
        return (self.dense_params + self.expert_params * (1.0 - idle)) * self.bytes_per_param


QWEN3_5_35B_A3B = ModelSpec(
    name="Qwen3.5-35B-A3B",
    total_params=35e9,
    active_params=3e9,
    layers=40,
    attention_layers=10,
    query_heads=16,
    kv_heads=2,
    head_dim=256,
    experts=256,
    experts_per_token=8,
)
"""Source: the model card of Qwen3.5-35B-A3B.

40 layers, every fourth with gated attention and a KV cache (16 query and 2 KV heads of 256), 256
routed experts of which a token visits 8, and a shared one that counts as dense. The card rounds
its totals (35 B, 3 B), and so do we.
"""

ModelSpec.presets = MappingProxyType({QWEN3_5_35B_A3B.name: QWEN3_5_35B_A3B})
