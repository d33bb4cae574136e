"""Which devices a run has, and what is measured of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.executors.local_runs import local_config

from swingshift.executors.app.structuring import structure_section
from swingshift.executors.local import devices as devices_module
from swingshift.executors.local.devices import Device, find_devices
from swingshift.executors.local.memory import (
    cpu_free_bytes,
    cuda_free_bytes,
    resident_bytes,
    total_bytes,
)
from swingshift.executors.local.options import LocalOptions
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import ExecutorError


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int]], None]:
    """Return what gives this process the use of some cores."""

    def use(cores: set[int]) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: cores)

    return use


def find(*overrides: str) -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    config = local_config(*overrides)
    return find_devices(
        config, structure_section(LocalOptions, config.executor.options, "executor")
    )


def test_each_device_is_a_core_of_its_own(cores: Callable[[set[int]], None]) -> None:
    """Trainer devices come first; only cores that this process may use are taken."""
    cores({3, 5, 6, 9})
    trainers, rollouts = find("trainer.n_gpus_per_node=2", "executor.share_devices=false")
    assert [(it.id, it.cores) for it in trainers] == [("trainer-0", (3,)), ("trainer-1", (5,))]
    assert [(it.id, it.cores) for it in rollouts] == [("rollout-0", (6,))]
    assert {it.torch_name for it in (*trainers, *rollouts)} == {"cpu"}
    assert trainers[0].environment == {"CUDA_VISIBLE_DEVICES": ""}


def test_too_few_cores_are_an_error(cores: Callable[[set[int]], None]) -> None:
    """It says how many there are, how many are asked for, and what to do."""
    cores({0})
    with pytest.raises(ConfigError) as raised:
        find("executor.share_devices=false")
    assert str(raised.value) == (
        "executor.device: 'cpu' has 1 cores here, and trainer and rollout ask for 1 + 1; expected "
        "at most 1: lower trainer.n_gpus_per_node or rollout.n_gpus_per_node, or set "
        "executor.share_devices=true"
    )


def test_shared_cores_take_turns(cores: Callable[[set[int]], None]) -> None:
    """More devices than cores share them evenly."""
    cores({0, 1})
    trainers, rollouts = find("trainer.n_gpus_per_node=2", "rollout.n_gpus_per_node=2")
    assert [it.index for it in (*trainers, *rollouts)] == [0, 1, 0, 1]


def test_memory_is_divided_or_given() -> None:
    """Each device has its share of the machine, or what the option says."""
    trainers, rollouts = find()
    assert {it.budget_bytes for it in (*trainers, *rollouts)} == {total_bytes() // 2}
    trainers, _ = find("executor.device_memory_gib=1.5")
    assert trainers[0].budget_bytes == 3 * 2**29


@pytest.mark.parametrize(
    ("visible", "expected"), [("4,6", [4, 6]), (" 0 , 1", [0, 1]), ("0,1,2", [0, 1])]
)
def test_gpus_are_those_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, visible: str, expected: list[int]
) -> None:
    """Each process sees its own alone, in the order in which its memory is measured."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    trainers, rollouts = find("executor.device=cuda")
    found = [*trainers, *rollouts]
    assert [it.index for it in found] == expected
    assert [it.environment["CUDA_VISIBLE_DEVICES"] for it in found] == list(map(str, expected))
    assert {it.environment["CUDA_DEVICE_ORDER"] for it in found} == {"PCI_BUS_ID"}
    assert {(it.torch_name, it.cores) for it in found} == {("cuda:0", ())}


@pytest.mark.parametrize("visible", ["", "-1"])
def test_without_a_gpu_cuda_is_an_error(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    """Also where devices may be shared: there is none to share."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ConfigError, match="'cuda' has 0 CUDA devices here"):
        find("executor.device=cuda")


def test_gpus_are_counted_by_the_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nothing is said about which are visible, none is touched to find them."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(devices_module, "_DRIVER_GPUS", tmp_path)
    trainers, rollouts = find("executor.device=cuda")
    assert [it.index for it in (*trainers, *rollouts)] == [0, 1]


def test_a_model_is_held_whole_by_each_device() -> None:
    """A replica of several devices is refused, and the error names the key."""
    overrides = (
        "trainer.n_gpus_per_node=2",
        "rollout.n_gpus_per_node=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    )
    with pytest.raises(
        ConfigError, match=r"rollout\.tensor_model_parallel_size: 2 is not allowed.*set 1"
    ):
        find(*overrides)


def test_free_memory_is_what_processes_leave() -> None:
    """Measured over those that live; never below nothing."""
    own = resident_bytes(os.getpid())
    assert own > 2**20
    free = cpu_free_bytes(2**40, [os.getpid()])
    assert abs(2**40 - own - free) < 2**24
    assert cpu_free_bytes(2**10, [os.getpid()]) == 0
    # no process has this id: it is above the highest that Linux gives
    assert cpu_free_bytes(2**10, [2**22 + 1]) == 2**10


def test_free_memory_of_a_gpu_is_what_the_driver_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The tool is asked for one GPU; it answers in MiB."""
    _tool(tmp_path, 'test "$2" = 3 && echo 1024')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert asyncio.run(cuda_free_bytes(3)) == 2**30


@pytest.mark.parametrize("script", ["echo No devices were found; exit 6", "exit 9"])
def test_a_gpu_that_cannot_be_measured_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str
) -> None:
    """What the tool says is part of it."""
    _tool(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ExecutorError, match="does not say what is free on GPU 3"):
        asyncio.run(cuda_free_bytes(3))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ExecutorError, match="nvidia-smi is needed"):
        asyncio.run(cuda_free_bytes(3))


def _tool(directory: Path, script: str) -> None:
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
