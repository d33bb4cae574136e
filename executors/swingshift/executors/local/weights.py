"""Tensors by name: each piece of memory once, moved off the device and back, and fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from swingshift.executors.local.memory import give_back


def without_ties(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return tensors by name, leaving out those that share the memory of one before.

    Called while they have memory.
    """
    seen: set[int] = set()
    kept: dict[str, Tensor] = {}
    for name, tensor in named:
        if tensor.data_ptr() not in seen:
            seen.add(tensor.data_ptr())
            kept[name] = tensor
    return kept


def digest(weights: Mapping[str, Tensor]) -> str:
    """Return a fingerprint of weights: equal if and only if every byte is."""
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode())
        # of a copy: memory that numpy has seen can never be given back
        content = weights[name].detach().cpu().clone().flatten().view(torch.uint8)
        found.update(content.numpy().data)
    return found.hexdigest()


class Movable:
    """Tensors whose memory can be given back while their content waits on the host.

    On a CPU the host's side is a file in shared memory, so that the memory of the process really
    falls; on a GPU it is pinned memory.
    """

    def __init__(self, tensors: Mapping[str, Tensor], file: Path) -> None:
        """Take tensors that have memory, each its own.

        Args:
            tensors: By name.
            file: Where the content lies meanwhile, on a CPU.
        """
        self._tensors = dict(tensors)
        self._sizes = {name: t.untyped_storage().nbytes() for name, t in tensors.items()}
        self._file = file
        self._pinned: dict[str, Tensor] = {}
        self.is_away = False

    @property
    def bytes(self) -> int:
        """Memory of all tensors when they are on the device."""
        return sum(self._sizes.values())

    def away(self) -> None:
        """Move the content to the host and free the device's memory; idempotent."""
        if self.is_away or not self._tensors:
            return
        if self._is_on_gpu:
            self._pinned = {
                name: torch.empty_like(t, device="cpu", pin_memory=True).copy_(t)
                for name, t in self._tensors.items()
            }
        else:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            content = {name: t.detach().contiguous() for name, t in self._tensors.items()}
            save_file(content, self._file)
            del content
        for tensor in self._tensors.values():
            tensor.untyped_storage().resize_(0)
        self.is_away = True
        give_back()
        if self._is_on_gpu:
            torch.cuda.empty_cache()

    def back(self) -> None:
        """Take memory on the device and fill it as it was; idempotent."""
        if not self.is_away:
            return
        for name, tensor in self._tensors.items():
            tensor.untyped_storage().resize_(self._sizes[name])
        with torch.no_grad():
            if self._is_on_gpu:
                for name, tensor in self._tensors.items():
                    tensor.copy_(self._pinned[name])
                self._pinned = {}
            else:
                with safe_open(str(self._file), framework="pt") as kept:
                    for name, tensor in self._tensors.items():
                        tensor.copy_(kept.get_tensor(name))
                self._file.unlink()
        self.is_away = False

    @property
    def _is_on_gpu(self) -> bool:
        return any(tensor.is_cuda for tensor in self._tensors.values())
