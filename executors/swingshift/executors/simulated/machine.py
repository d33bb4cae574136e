"""What an executor asks about the machine it stands for, be that modelled or measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial

import attrs

from swingshift.executors.simulated.costs.decode import DecodeModel, EngineCosts
from swingshift.executors.simulated.costs.measured import MeasuredCosts, MeasuredEngine
from swingshift.executors.simulated.costs.memory import training_state
from swingshift.executors.simulated.costs.training import FitWork, TrainingModel
from swingshift.executors.simulated.costs.transfer import TransferModel
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.sizes import (
    replica_count,
    replica_kv_capacity,
    trainer_topology,
)
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import MemoryPart, ReplicaKind, TrainingPart

_UNLIMITED = sys.maxsize


@attrs.frozen(kw_only=True)
class Machine:
    """Seconds and bytes of everything an executor does, noise and faults apart.

    Attributes:
        engines: What the engine of a replica costs, for each kind of replica that there is.
        kv_capacity_tokens: Context that fits into a replica, for the same kinds.
        fit_seconds: Returns the seconds of a fit step by timing key.
        sync_s: Seconds of a weight sync to all replicas of a kind.
        sleep_s: Seconds until a replica sleeps.
        wake_s: Seconds to wake a part of a replica's memory.
        offload_s: Seconds to move a part of the training state to host memory.
        reload_s: Seconds to bring it back.
        state_bytes: What a part of the training state takes of each trainer GPU.
        train_required_bytes: What all of it takes.
        gpu_bytes: Memory of a GPU.
    """

    engines: Mapping[ReplicaKind, EngineCosts]
    kv_capacity_tokens: Mapping[ReplicaKind, int]
    fit_seconds: Callable[[FitWork], Mapping[str, float]]
    sync_s: Mapping[ReplicaKind, float]
    sleep_s: float
    wake_s: Mapping[MemoryPart, float]
    offload_s: Mapping[TrainingPart, float]
    reload_s: Mapping[TrainingPart, float]
    state_bytes: Mapping[TrainingPart, float]
    train_required_bytes: int
    gpu_bytes: float


def build_machine(config: RunConfig, options: SimulatedOptions) -> Machine:
    """Return the machine that the options describe.

    Args:
        config: Topology, parallel sizes, memory shares.
        options: A modelled machine or a measured one.

    Raises:
        ConfigError: The model does not fit the GPUs or the parallel sizes.
    """
    if options.measured is not None:
        return _measured(options.measured)
    return _modelled(config, options)


def _modelled(config: RunConfig, options: SimulatedOptions) -> Machine:
    model, gpu = options.model_and_gpu()
    gpus = config.replica_gpus
    kinds = [kind for kind in ReplicaKind if replica_count(config, kind)]
    topology = trainer_topology(config)
    decode = DecodeModel(model=model, gpu=gpu, tensor_parallel=gpus, parameters=options.decode)
    training = TrainingModel(
        model=model,
        gpu=gpu,
        topology=topology,
        parameters=options.training,
        memory=options.memory,
    )
    transfer = TransferModel(model=model, gpu=gpu, parameters=options.transfer)
    state = training_state(model, topology, options.memory)
    state_bytes = {
        TrainingPart.PARAMETERS: state.weight_bytes,
        TrainingPart.OPTIMIZER_AND_GRADIENTS: state.optimizer_and_gradient_bytes,
    }
    move_s = {part: transfer.offload_s(moved) for part, moved in state_bytes.items()}
    return Machine(
        engines=dict.fromkeys(kinds, decode),
        kv_capacity_tokens={kind: replica_kv_capacity(config, options, kind) for kind in kinds},
        fit_seconds=partial(
            training.fit_seconds, reference=options.reference_model, critic=options.critic
        ),
        sync_s={
            ReplicaKind.STANDALONE: transfer.sync_standalone_s(),
            ReplicaKind.HYBRID: transfer.sync_hybrid_s(gpus),
        },
        sleep_s=transfer.sleep_s(),
        wake_s={
            MemoryPart.WEIGHTS: transfer.wake_weights_s(),
            MemoryPart.KV_CACHE: transfer.wake_kv_cache_s(),
        },
        offload_s=move_s,
        reload_s=move_s,
        state_bytes=state_bytes,
        train_required_bytes=int(state.total_bytes),
        gpu_bytes=gpu.memory_bytes,
    )


def _measured(costs: MeasuredCosts) -> Machine:
    engines = {
        ReplicaKind.STANDALONE: costs.engine,
        ReplicaKind.HYBRID: costs.hybrid_engine or costs.engine,
    }
    switch, memory = costs.switch, costs.memory
    return Machine(
        engines=engines,
        kv_capacity_tokens={kind: _kv_capacity(engine) for kind, engine in engines.items()},
        fit_seconds=costs.fit_seconds,
        sync_s={
            ReplicaKind.STANDALONE: costs.sync.standalone_s,
            ReplicaKind.HYBRID: costs.sync.hybrid_s,
        },
        sleep_s=switch.sleep_s,
        wake_s={
            MemoryPart.WEIGHTS: switch.wake_weights_s,
            MemoryPart.KV_CACHE: switch.wake_kv_cache_s,
        },
        offload_s={
            TrainingPart.PARAMETERS: switch.offload_parameters_s,
            TrainingPart.OPTIMIZER_AND_GRADIENTS: switch.offload_optimizer_and_gradients_s,
        },
        reload_s={
            TrainingPart.PARAMETERS: switch.reload_parameters_s,
            TrainingPart.OPTIMIZER_AND_GRADIENTS: switch.reload_optimizer_and_gradients_s,
        },
        state_bytes={
            TrainingPart.PARAMETERS: memory.parameters_bytes,
            TrainingPart.OPTIMIZER_AND_GRADIENTS: memory.optimizer_and_gradients_bytes,
        },
        train_required_bytes=int(memory.state_bytes),
        gpu_bytes=memory.device_bytes,
    )


def _kv_capacity(engine: MeasuredEngine) -> int:
    return _UNLIMITED if engine.kv_capacity_tokens is None else engine.kv_capacity_tokens
