"""Tensors by name: ties, fingerprints, and memory that is given back for a while."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from swingshift.executors.local.weights import Movable, digest, without_ties

ROOT = Path(__file__).parents[2]


def test_tied_tensors_are_kept_once() -> None:
    """Under the first name."""
    first, second = torch.zeros(2), torch.ones(2)

    assert list(without_ties([("a", first), ("b", second), ("c", first)])) == ["a", "b"]


def test_a_fingerprint_tells_every_bit() -> None:
    """Equal content in any order, precision and layout has one; -0.0 has another than 0.0."""
    weights = {"a": torch.zeros(2, 3), "b": torch.tensor(1.0, dtype=torch.bfloat16)}
    turned = {"b": weights["b"].clone(), "a": torch.zeros(3, 2).T}

    assert digest(weights) == digest(turned)
    assert digest(weights) != digest({**weights, "a": -weights["a"]})
    assert digest(weights) != digest({"c": weights["a"], "b": weights["b"]})


def test_a_tensor_whose_fingerprint_was_taken_can_still_go_away(tmp_path: Path) -> None:
    """Looking at weights changes nothing about them."""
    weights = {"a": torch.arange(4.0)}
    before = digest(weights)
    movable = Movable(weights, tmp_path / "a.safetensors")
    movable.away()
    movable.back()

    assert digest(weights) == before


def test_tensors_go_away_and_come_back_bit_for_bit(tmp_path: Path) -> None:
    """As the same tensors; the file is there only meanwhile."""
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(4, 2).T, "c": torch.tensor([1])}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    file = tmp_path / "below" / "tensors.safetensors"
    movable = Movable(tensors, file)

    movable.away()
    assert movable.is_away
    assert file.is_file()
    assert {tensor.untyped_storage().nbytes() for tensor in tensors.values()} == {0}
    movable.back()

    assert not movable.is_away
    assert not file.exists()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name])


def test_a_move_that_was_made_is_not_made_again(tmp_path: Path) -> None:
    """Away twice and back twice, as a caller does that does not know whether the first came."""
    tensor = torch.arange(6.0)
    movable = Movable({"a": tensor}, tmp_path / "a.safetensors")

    movable.back()
    movable.away()
    movable.away()
    movable.back()
    movable.back()

    assert tensor.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_nothing_needs_no_file(tmp_path: Path) -> None:
    """A part without a tensor has no bytes and goes nowhere."""
    movable = Movable({}, tmp_path / "a.safetensors")
    movable.away()
    movable.back()

    assert movable.bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_the_size_is_known_while_it_is_away(tmp_path: Path) -> None:
    """A planner asks for what it will take to come back."""
    movable = Movable({"a": torch.zeros(10), "b": torch.zeros(3).half()}, tmp_path / "a")
    movable.away()

    assert movable.bytes == 46


def test_offloading_really_frees_the_memory_of_the_process(tmp_path: Path) -> None:
    """Of each part at least nine tenths; afterwards everything is as before, to the bit."""
    command = [sys.executable, "-m", "tests.executors.offloading_process", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=True
    )
    seen = json.loads(ended.stdout)

    assert min(seen["sizes"].values()) > 40_000_000
    for part, size in seen["sizes"].items():
        assert seen["freed"][part] >= 0.9 * size, part
    assert seen["files_while_away"] == ["optimizer.safetensors", "parameters.safetensors"]
    assert seen["files_afterwards"] == []
    assert seen["is_unchanged"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_of_a_gpu_wait_in_host_memory(tmp_path: Path) -> None:
    """They come back bit for bit, and no file is written."""
    tensor = torch.randn(1 << 20, device="cuda")
    expected = tensor.cpu()
    before = torch.cuda.memory_reserved()
    movable = Movable({"a": tensor}, tmp_path / "a.safetensors")

    movable.away()
    assert before - torch.cuda.memory_reserved() >= movable.bytes
    assert list(tmp_path.iterdir()) == []
    movable.back()

    assert torch.equal(tensor.cpu(), expected)
