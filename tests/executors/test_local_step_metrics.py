"""Metrics of optimizer steps: means per token, over ranks, without what was skipped."""

from __future__ import annotations

from math import nan

import pytest
import torch
from tests.executors.local_training import CPU
from torch import Tensor

from swingshift.executors.local.step_metrics import StepMetrics, summed_over_ranks


def test_sums_become_means_per_token_and_norms_means_per_step() -> None:
    """By hand: losses 3 and 1 over 4 and 4 tokens, norms 1 and 2."""
    metrics = StepMetrics("actor", ["loss", "entropy"])
    metrics.add({"loss": 3.0, "entropy": 4.0}, 4, 1.0)
    metrics.add({"loss": 1.0}, 4, 2.0)

    assert metrics.means(1, CPU) == {
        "actor/loss": 0.5,
        "actor/entropy": 0.5,
        "actor/grad_norm": 1.5,
        "actor/skipped_steps": 0.0,
    }


def test_nothing_of_a_skipped_step_counts() -> None:
    """So that all metrics are finite."""
    metrics = StepMetrics("critic", ["loss"])
    metrics.add({"loss": nan}, 100, None)
    metrics.add({"loss": 3.0}, 6, 0.25)

    assert metrics.means(1, CPU) == {
        "critic/loss": 0.5,
        "critic/grad_norm": 0.25,
        "critic/skipped_steps": 1.0,
    }


def test_without_a_step_there_are_the_same_names() -> None:
    """A column of a table does not come and go."""
    metrics = StepMetrics("critic", ["loss"])
    metrics.add({"loss": nan}, 100, None)

    assert metrics.means(1, CPU) == {
        "critic/loss": 0.0,
        "critic/grad_norm": 0.0,
        "critic/skipped_steps": 1.0,
    }


def test_sums_are_taken_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and norms are those of all ranks already."""

    def all_reduce(tensor: Tensor) -> None:
        tensor += torch.tensor([3.0], dtype=tensor.dtype)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    metrics = StepMetrics("actor", ["loss"])
    metrics.add({"loss": 1.0}, 8, 2.0)

    assert metrics.means(2, CPU)["actor/loss"] == 0.5
    assert metrics.means(2, CPU)["actor/grad_norm"] == 2.0
    assert summed_over_ranks([0.5], 2, CPU) == (3.5,)
