"""A scenario small enough to run in a test: four GPUs, a dense model, some 50 ms for a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from swingshift.benchmarks.result import BenchmarkResult, summarise
from swingshift.benchmarks.scenario import Scenario, load_scenario
from swingshift.executors.runtime.run import RunOutcome, RunReport

WORLD = """
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 4}
  rollout: {n: 2, max_num_seqs: 16}
trainer: {nnodes: 1, n_gpus_per_node: 2}
rollout: {nnodes: 1, n_gpus_per_node: 2, total_rollout_steps: 44}
async_training:
  use_dynamic_resource_scheduling: true
  staleness_threshold: 0.5
  trigger_parameter_sync_step: 2
  concurrent_samples_per_replica: 4
executor:
  model: {name: small, total_params: 1.0e9, active_params: 1.0e9, layers: 16,
          attention_layers: 16, query_heads: 16, kv_heads: 8, head_dim: 64}
  gpu: {name: H20, memory_bytes: 96.0e9, memory_bandwidth_bytes_per_s: 4.0e12,
        bf16_flops_per_s: 148.0e12}
  lengths: {mean_tokens: 4000.0, max_tokens: 8000}
  training: {mfu: 0.3}
  transfer: {network_efficiency: 0.9}
"""

BENCHMARK = """
benchmark:
  description: A small world.
  seeds: 2
  quick: {rollout.total_rollout_steps: 20, benchmark.seeds: 1}
  runs:
    fixed:
      label: Fixed
      overrides: {async_training.use_dynamic_resource_scheduling: false}
    lending: {label: Lending}
  comparisons:
    - {run: lending, versus: fixed, published: 0.2, tolerance: 0.9}
  expectations:
    - result: Queue
      run: fixed
      metric: dynamic_resource/mq_size
      statistic: median
      published: any
      at_least: {value: 0.0}
    - result: Train utilization
      run: lending
      metric: dynamic_resource/train_resource_utilization
      at_least: {run: fixed, value: -1.0}
  fitted: [executor.training.mfu]
  sources: {executor.gpu: datasheet}
  sensitivity:
    prompts: 20
    keys: [executor.training.mfu, executor.transfer.network_efficiency,
           executor.variation.noise_sigma]
"""

POLICY = """
from swingshift.sdk import DynamicSchedulePolicyBase


class NeverLend(DynamicSchedulePolicyBase):
    def should_deactivate(self, global_steps, is_hybrid_active, ctx):
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx):
        return 0

    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        return False


class Broken(NeverLend):
    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        return 1 / 0
"""


def write_scenario(folder: Path, text: str = WORLD + BENCHMARK) -> str:
    """Write a scenario file and return its path."""
    path = folder / "small.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def write_policies(folder: Path) -> str:
    """Write a file with two policies, ``NeverLend`` and ``Broken``, and return its path."""
    path = folder / "policies_of_mine.py"
    path.write_text(POLICY, encoding="utf-8")
    return str(path)


def report(
    wall_clock_s: float = 100.0,
    cycles: Sequence[Mapping[str, float]] = (),
    *,
    trained: int = 40,
    unused: int = 4,
) -> RunReport:
    """Return the report of a run that ended well."""
    return RunReport(
        outcome=RunOutcome.EXHAUSTED,
        reason="",
        wall_clock_s=wall_clock_s,
        trained_samples=trained,
        unused_samples=unused,
        given_up_samples=0,
        cycles=tuple(cycles),
        gpu_seconds={},
    )


def small_scenario(folder: Path, *overrides: str) -> Scenario:
    """Return the loaded scenario."""
    return load_scenario(write_scenario(folder), overrides)


def small_result(folder: Path, *overrides: str) -> BenchmarkResult:
    """Return a result of the scenario, from reports that nothing ran for.

    For both seeds, the fixed run takes 100 s and the lending one 80 s; the queue holds 1 and 3
    samples, and the train utilization is 0.5, in the two cycles of every run.
    """
    scenario = small_scenario(folder, *overrides)
    cycles = [
        {
            "dynamic_resource/mq_size": queued,
            "dynamic_resource/train_resource_utilization": 0.5,
            "timing_s/step": 40.0,
        }
        for queued in (1.0, 3.0)
    ]
    reports = [report(wall_clock_s, cycles) for wall_clock_s in (100.0, 80.0)]
    return summarise(scenario, reports * scenario.seeds)
