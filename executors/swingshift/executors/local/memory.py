"""Measured memory: of processes, of devices, and how to give it back to the system."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from collections.abc import Iterable
from pathlib import Path

from swingshift.sdk.executor import ExecutorError

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MEBIBYTE = 2**20


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process that is not shared with others; 0 if it is gone.

    Source: Linux, proc_pid_statm(5): resident less shared pages.
    """
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES


def cpu_free_bytes(budget_bytes: int, pids: Iterable[int]) -> int:
    """Return what a CPU device has left of its share of the machine's memory.

    Args:
        budget_bytes: The share.
        pids: The processes that run on the device.
    """
    return max(0, budget_bytes - sum(resident_bytes(pid) for pid in pids))


async def cuda_free_bytes(index: int) -> int:
    """Return the free memory of a CUDA device, as the driver reports it for all processes.

    Raises:
        ExecutorError: The driver's tool is missing or says nothing.
    """
    command = ["nvidia-smi", "-i", str(index), "--query-gpu=memory.free"]
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            "--format=csv,noheader,nounits",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except FileNotFoundError as error:
        raise ExecutorError("nvidia-smi is needed to measure the memory of a GPU") from error
    output, errors = await process.communicate()
    try:
        return int(output.split()[0]) * _MEBIBYTE
    except (IndexError, ValueError) as error:
        said = (output + errors).decode(errors="replace").strip()
        raise ExecutorError(
            f"nvidia-smi does not say what is free on GPU {index}: {said}"
        ) from error


def total_bytes() -> int:
    """Return the physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES


def give_back() -> None:
    """Return memory that Python and the C library hold for later to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
