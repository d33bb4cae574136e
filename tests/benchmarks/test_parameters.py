"""The numbers of a modelled world: which there are, where they come from, how far they move."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.benchmarks.small_world import small_scenario

from swingshift.benchmarks.parameters import (
    executor_parameters,
    move_parameter,
    source_of,
    with_parameter,
)
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError


@pytest.fixture
def configs(tmp_path: Path) -> tuple[RunConfig, ...]:
    """Return the configurations of the small scenario's runs."""
    return tuple(run.config for run in small_scenario(tmp_path).runs)


def test_parameters_are_written_ones_and_defaults(configs: tuple[RunConfig, ...]) -> None:
    """Every number has a full key; names and switches are none."""
    found = executor_parameters(configs[0])
    assert found["executor.training.mfu"] == 0.3
    assert found["executor.training.loss_per_doubling"] == 0.05
    assert found["executor.lengths.prompt.max_tokens"] == 1024
    assert type(found["executor.model.layers"]) is int
    assert not {"executor.gpu.name", "executor.critic"} & found.keys()


def test_the_nearest_source_counts() -> None:
    """A key's own source goes before that of its section, and a like beginning is no section."""
    sources = {"executor": "all", "executor.gpu": "section", "executor.gpu.memory_bytes": "own"}
    assert source_of("executor.gpu.memory_bytes", sources) == "own"
    assert source_of("executor.gpu.bf16_flops_per_s", sources) == "section"
    assert source_of("executor.gpus.x", sources) == "all"
    assert source_of("executor.gpu", {"executor.g": "no"}) is None


def test_a_parameter_can_be_replaced(configs: tuple[RunConfig, ...]) -> None:
    """Written or not, and to the last digit."""
    changed = with_parameter(configs[0], "executor.decode.step_overhead_s", 0.1 + 0.2)
    assert executor_parameters(changed)["executor.decode.step_overhead_s"] == 0.1 + 0.2
    with pytest.raises(ConfigError, match=r"total_rollout_steps: 0 is not allowed"):
        with_parameter(configs[0], "rollout.total_rollout_steps", 0)


def test_a_parameter_of_a_preset_can_be_replaced(tmp_path: Path) -> None:
    """A section that is the name of a preset is written out, and nothing else changes."""
    config = small_scenario(tmp_path, "executor.gpu=H200").runs[0].config
    before = executor_parameters(config)
    after = executor_parameters(with_parameter(config, "executor.gpu.memory_bytes", 1e11))
    assert before["executor.gpu.memory_bytes"] == 141e9
    assert after == {**before, "executor.gpu.memory_bytes": 1e11}


@pytest.mark.parametrize(
    ("key", "factor", "value"),
    [
        ("executor.training.mfu", 0.8, 0.3 * 0.8),
        ("executor.training.mfu", 1.2, 0.3 * 1.2),
        ("executor.transfer.network_efficiency", 1.2, 1.0),
        ("executor.lengths.mean_tokens", 4.0, 8000.0),
    ],
)
def test_parameters_move_as_far_as_their_limits(
    configs: tuple[RunConfig, ...], key: str, factor: float, value: float
) -> None:
    """An efficiency of 0.9 moves to 1, and a mean no further than the longest response."""
    assert move_parameter(configs, key, factor) == pytest.approx(value, rel=1e-6)
    with_parameter(configs[0], key, move_parameter(configs, key, factor))
