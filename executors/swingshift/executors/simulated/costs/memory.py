"""What fits into GPU memory: KV capacity of a replica and the state of a trainer."""

from __future__ import annotations

import math

import attrs

from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.sdk.validators import InvalidValueError, finite, integer


@attrs.frozen(kw_only=True)
class MemoryParameters:
    """Sizes that follow from neither the model nor the GPU.

    Args:
        activation_reserve_bytes: Bytes per GPU that an engine keeps from the KV cache inside its
            memory share: activations, captured graphs, communication buffers. Assumed.
        gradient_bytes_per_param: Gradients accumulated in fp32.
        optimizer_bytes_per_param: An fp32 master weight and Adam's two fp32 moments.
    """

    activation_reserve_bytes: float = attrs.field(default=2e9, validator=finite(ge=0))
    gradient_bytes_per_param: float = attrs.field(default=4.0, validator=finite(ge=0))
    optimizer_bytes_per_param: float = attrs.field(default=12.0, validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class TrainingState:
    """Bytes of training state on each GPU of a trainer."""

    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float

    @property
    def optimizer_and_gradient_bytes(self) -> float:
        """What offloading optimizer and gradients moves off each GPU."""
        return self.gradient_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> float:
        """All training state on each GPU, without activations."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes


_DEFAULTS = MemoryParameters()


def kv_capacity_tokens(
    model: ModelSpec,
    gpu: GpuSpec,
    *,
    tensor_parallel: int,
    memory_share: float,
    parameters: MemoryParameters = _DEFAULTS,
) -> int:
    """Return how many tokens the KV cache of one replica holds.

    Every GPU of the replica keeps its slice of the weights, the reserve and its KV heads within the
    share; heads are copied where there are more GPUs than heads.

    Args:
        model: What the replica serves.
        gpu: What it runs on.
        tensor_parallel: GPUs of the replica.
        memory_share: Share of each GPU's memory that the engine may use, above 0 and at most 1.
        parameters: The activation reserve.

    Raises:
        InvalidValueError: The share is out of range, or leaves no room for the cache; names the
            least that does.
    """
    integer(ge=1).check("tensor_parallel", tensor_parallel)
    finite(gt=0, le=1).check("memory_share", memory_share)
    token_bytes = model.kv_bytes_per_token_and_gpu(tensor_parallel)
    needed = model.weight_bytes / tensor_parallel + parameters.activation_reserve_bytes
    tokens = (memory_share * gpu.memory_bytes - needed) / token_bytes
    if tokens < 1.0:
        allowed = _enough_room(model, gpu, tensor_parallel, needed + token_bytes)
        raise InvalidValueError("memory_share", memory_share, allowed)
    return math.floor(tokens)


def training_state(
    model: ModelSpec, topology: TrainerTopology, parameters: MemoryParameters = _DEFAULTS
) -> TrainingState:
    """Return the bytes of weights, gradients and optimizer state on each trainer GPU.

    Weights and gradients are split by model parallelism; the distributed optimizer splits its state
    over all GPUs.

    Source: S. Rajbhandari et al., "ZeRO", 2020, stage 1; the byte counts are those of mixed
    precision with Adam.
    """
    params = (
        model.dense_params / topology.dense_shards + model.expert_params / topology.expert_shards
    )
    return TrainingState(
        weight_bytes=params * model.bytes_per_param,
        gradient_bytes=params * parameters.gradient_bytes_per_param,
        optimizer_bytes=model.total_params * parameters.optimizer_bytes_per_param / topology.gpus,
    )


def _enough_room(model: ModelSpec, gpu: GpuSpec, tensor_parallel: int, needed_bytes: float) -> str:
    """Return what would leave room for a KV cache, in words."""
    least = math.ceil(1000 * needed_bytes / gpu.memory_bytes) / 1000
    enough = f"at least {least:g}" if least <= 1.0 else "a replica of more GPUs"
    return (
        f"{enough}: {model.name} and a KV cache need {needed_bytes / 1e9:.1f} GB on each of "
        f"{tensor_parallel} x {gpu.name}"
    )
