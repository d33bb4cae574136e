"""What a run's own configuration says about the modelled cluster, refused by its own keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from swingshift.executors.simulated.costs.memory import kv_capacity_tokens
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import ReplicaKind
from swingshift.sdk.validators import InvalidValueError

_MEGATRON = "actor_rollout_ref.actor.megatron"
_ENGINE = "actor_rollout_ref.rollout"


def trainer_topology(config: RunConfig) -> TrainerTopology:
    """Return how the trainer spreads the model over its GPUs.

    Raises:
        ConfigError: A parallel size does not divide the GPUs; names its key.
    """
    megatron = config.actor_rollout_ref.actor.megatron
    keys = {
        f"{way}_parallel": f"{_MEGATRON}.{way}_model_parallel_size"
        for way in ("tensor", "pipeline", "expert")
    }
    with _naming(keys):
        return TrainerTopology(
            gpus=config.hybrid_gpus,
            tensor_parallel=megatron.tensor_model_parallel_size,
            pipeline_parallel=megatron.pipeline_model_parallel_size,
            expert_parallel=megatron.expert_model_parallel_size,
        )


def replica_count(config: RunConfig, kind: ReplicaKind) -> int:
    """Return how many replicas of a kind a run has."""
    if kind is ReplicaKind.STANDALONE:
        return config.standalone_gpus // config.replica_gpus
    is_dynamic = config.async_training.use_dynamic_resource_scheduling
    return config.hybrid_gpus // config.replica_gpus if is_dynamic else 0


def replica_kv_capacity(config: RunConfig, options: SimulatedOptions, kind: ReplicaKind) -> int:
    """Return how many tokens the KV cache of a modelled replica holds.

    Raises:
        ConfigError: Its share of the memory leaves no room for one; names the key.
    """
    rollout = config.actor_rollout_ref.rollout
    share, key = rollout.gpu_memory_utilization, "gpu_memory_utilization"
    if kind is ReplicaKind.STANDALONE and rollout.standalone_gpu_memory_utilization is not None:
        share, key = rollout.standalone_memory_share, "standalone_gpu_memory_utilization"
    model, gpu = options.model_and_gpu()
    with _naming({"memory_share": f"{_ENGINE}.{key}"}):
        return kv_capacity_tokens(
            model,
            gpu,
            tensor_parallel=config.replica_gpus,
            memory_share=share,
            parameters=options.memory,
        )


def check_prompt_lengths(config: RunConfig, options: SimulatedOptions) -> None:
    """Refuse modelled or observed prompts that are longer than the run takes.

    Raises:
        ConfigError: They are; names both keys.
    """
    lengths = options.lengths
    longest, limit = lengths.longest_prompt_tokens, config.data.max_prompt_length
    if longest > limit:
        key = "observed: a prompt_tokens of" if lengths.observed else "prompt.max_tokens:"
        raise ConfigError(
            f"executor.lengths.{key} {longest} is not allowed; expected at most "
            f"data.max_prompt_length={limit}"
        )


@contextmanager
def _naming(keys: Mapping[str, str]) -> Iterator[None]:
    """Turn the refusal of a value into one that begins with the key the value came from."""
    try:
        yield
    except InvalidValueError as error:
        raise ConfigError(
            f"{keys[error.name]}: {error.given!r} is not allowed; expected {error.allowed}"
        ) from error
