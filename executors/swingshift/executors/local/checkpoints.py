"""A directory with all of a trainer's state: safetensors and JSON, written whole, checked whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from swingshift.sdk.errors import UserError

Tensors: TypeAlias = Mapping[str, Tensor]

_FORMAT = 1
_STATE_FILE = "training_state.json"
_NAMED_TENSORS = 3


class CheckpointError(UserError):
    """A directory cannot be written, or does not have the state that a trainer needs."""


def write_state(directory: Path, groups: Mapping[str, Tensors], steps: Mapping[str, int]) -> None:
    """Write what lies beside the model in a checkpoint.

    Args:
        directory: Exists.
        groups: Tensors by name, by the name of their file without its suffix.
        steps: Optimizer steps taken, by optimizer.
    """
    for group, tensors in groups.items():
        _write(tensors, directory / f"{group}.safetensors")
    state = {"format": _FORMAT, "steps": dict(steps)}
    (directory / _STATE_FILE).write_text(json.dumps(state) + "\n")


def read_state(
    directory: Path, expected: Mapping[str, Tensors]
) -> tuple[dict[str, dict[str, Tensor]], dict[str, int]]:
    """Return what `write_state` wrote: the groups that are expected, and the steps.

    Args:
        directory: A checkpoint.
        expected: Names and shapes of the tensors of each group.

    Raises:
        CheckpointError: It is no checkpoint, one of another format, or of another model.
    """
    steps = _read_steps(directory / _STATE_FILE)
    groups: dict[str, dict[str, Tensor]] = {}
    for group, tensors in expected.items():
        path = directory / f"{group}.safetensors"
        if not path.is_file():
            raise CheckpointError(
                f"{path} is missing: the checkpoint has no {group}; load it with the options it "
                "was written with"
            )
        groups[group] = _read(path)
        expect_alike(groups[group], tensors, path)
    return groups, steps


def expect_alike(found: Tensors, expected: Tensors, where: Path) -> None:
    """Check that tensors have the names and shapes of others.

    Raises:
        CheckpointError: They do not; some that differ are named.
    """
    differing = sorted(
        name
        for name in found.keys() | expected.keys()
        if name not in found or name not in expected or found[name].shape != expected[name].shape
    )
    if differing:
        raise CheckpointError(
            f"{where} is of another model: {len(differing)} tensors differ in name or shape, "
            f"among them {', '.join(differing[:_NAMED_TENSORS])}"
        )


def _read_steps(path: Path) -> dict[str, int]:
    try:
        state = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path.parent} is no checkpoint: {path}: {error}") from error
    found = state.get("format") if isinstance(state, dict) else None
    if found != _FORMAT:
        raise CheckpointError(
            f"{path} has format {found!r}; this version of swingshift reads format {_FORMAT}"
        )
    steps: dict[str, int] = state["steps"]
    return steps


def _write(tensors: Tensors, path: Path) -> None:
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(str(path), framework="pt") as kept:
            return {name: kept.get_tensor(name) for name in kept.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
