"""The devices of this machine: CPU cores or CUDA GPUs, and which processes run where."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from swingshift.executors.local.memory import cpu_free_bytes, cuda_free_bytes, total_bytes
from swingshift.executors.local.options import LocalOptions
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError

_GIBIBYTE = 2**30
_DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")


@attrs.frozen(kw_only=True)
class Device:
    """One CPU core, or one CUDA device.

    Attributes:
        id: Its name in the inventory.
        index: Which core or GPU.
        is_cuda: Whether it is a GPU.
        budget_bytes: A CPU device's share of the machine's memory.
    """

    id: str
    index: int
    is_cuda: bool
    budget_bytes: int

    @property
    def cores(self) -> tuple[int, ...]:
        """Cores that its processes are pinned to; none for a GPU."""
        return () if self.is_cuda else (self.index,)

    @property
    def torch_name(self) -> str:
        """What its processes call it."""
        return "cuda:0" if self.is_cuda else "cpu"

    @property
    def environment(self) -> Mapping[str, str]:
        """What its processes find in their environment."""
        if self.is_cuda:
            # in the order of nvidia-smi, which measures their memory
            return {
                "CUDA_VISIBLE_DEVICES": str(self.index),
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            }
        return {"CUDA_VISIBLE_DEVICES": ""}

    async def free_bytes(self, pids: list[int]) -> int:
        """Return its free memory, measured over all that runs on it.

        Args:
            pids: Its processes.

        Raises:
            ExecutorError: It cannot be measured.
        """
        if self.is_cuda:
            return await cuda_free_bytes(self.index)
        return cpu_free_bytes(self.budget_bytes, pids)


def find_devices(
    config: RunConfig, options: LocalOptions
) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """Return the trainer's devices and the rollout devices.

    Raises:
        ConfigError: There are not as many, or one replica or trainer rank is to have several.
    """
    rollout = config.actor_rollout_ref.rollout
    megatron = config.actor_rollout_ref.actor.megatron
    for key, size in (
        ("rollout.tensor_model_parallel_size", rollout.tensor_model_parallel_size),
        ("actor.megatron.tensor_model_parallel_size", megatron.tensor_model_parallel_size),
        ("actor.megatron.pipeline_model_parallel_size", megatron.pipeline_model_parallel_size),
        ("actor.megatron.expert_model_parallel_size", megatron.expert_model_parallel_size),
    ):
        if size != 1:
            raise ConfigError(
                f"actor_rollout_ref.{key}: {size} is not allowed; the local executor holds a whole "
                "model on each device: set 1"
            )
    indices = _cuda_indices() if options.device == "cuda" else _cores()
    trainers, rollouts = config.hybrid_gpus, config.standalone_gpus
    wanted = trainers + rollouts
    what = "CUDA devices" if options.device == "cuda" else "cores"
    if not indices or (wanted > len(indices) and not options.share_devices):
        raise ConfigError(
            f"executor.device: {options.device!r} has {len(indices)} {what} here, and trainer and "
            f"rollout ask for {trainers} + {rollouts}; expected at most {len(indices)}: lower "
            "trainer.n_gpus_per_node or rollout.n_gpus_per_node, or set executor.share_devices=true"
        )
    gib = options.device_memory_gib
    budget = int(gib * _GIBIBYTE) if gib is not None else total_bytes() // wanted

    def device(name: str, number: int) -> Device:
        return Device(
            id=name,
            index=indices[number % len(indices)],
            is_cuda=options.device == "cuda",
            budget_bytes=budget,
        )

    return (
        tuple(device(f"trainer-{i}", i) for i in range(trainers)),
        tuple(device(f"rollout-{i}", trainers + i) for i in range(rollouts)),
    )


def _cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def _cuda_indices() -> tuple[int, ...]:
    """Return the GPUs, found without making a context on one of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(int(name) for name in visible.split(",") if name.strip().isdigit())
    return tuple(range(len(list(_DRIVER_GPUS.glob("*")))))
