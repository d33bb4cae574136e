"""Every metric of a run, computed from its events and nothing else.

The run itself and whoever reads a run log later feed the same class, so what is reported and what
is recomputed cannot differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    CapacityChanged,
    DataExhausted,
    Event,
    FitStepEnded,
    GpuStateChanged,
    RunEnded,
    RunStarted,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
    ValidationEnded,
    ValidationStarted,
)
from swingshift.sdk.metrics import (
    TRAIN_COMPUTE_KEYS,
    GpuSecondLedger,
    GpuState,
    MicroStep,
    Ratio,
    RolloutWindow,
    aggregate,
    cluster_utilization,
    hybrid_rollout_fraction,
    idle_ratio,
    percentile,
    train_compute_s,
    train_utilization,
)

_PROCESSING = "fully_async/processing_time"


class Measurement:
    """An event sink that holds one sync cycle's observations and the run's running counts.

    Attributes:
        ledger: GPU-seconds by state; None before the run started.
    """

    def __init__(self) -> None:
        """Start without observations."""
        self.ledger: GpuSecondLedger | None = None
        self._hybrid_gpus = 0
        self._standalone_gpus = 0
        self._total_samples = 1
        self._started_s = 0.0
        self._now_s = 0.0
        self._active = 0
        self._capacity = 0
        self._free_since_s: float | None = None
        self._staleness_samples = 0
        self._max_required_samples = 0
        self._is_exhausted = False
        self._rollout_window = RolloutWindow(0.0)
        self._version = 0
        self._version_began_s = 0.0
        self._free_s = 0.0
        self._generated = 0
        self._generated_in_version = 0
        self._trained = 0
        self._rollout = Ratio(numerator=0.0, denominator=0.0)
        self._rollout_so_far = Ratio(numerator=0.0, denominator=0.0)
        self._validation_began_s = 0.0
        self._free_before_validation_s = 0.0
        self._window: dict[str, float] = {}
        self._counts: dict[str, float] = defaultdict(float)
        self._global_step = 0
        self._values: dict[str, list[float]] = defaultdict(list)
        self._processing_s: list[float] = []
        self._micro_steps: list[MicroStep] = []
        self._compute_s = 0.0
        self._trajectories = 0
        self._handlers: Mapping[type[Event], Callable[[float, Any], None]] = {
            RunStarted: self._run_started,
            GpuStateChanged: self._gpu_state_changed,
            SampleSubmitted: self._sample_submitted,
            SampleQueued: self._sample_queued,
            SampleGivenUp: self._sample_given_up,
            DataExhausted: self._data_exhausted,
            CapacityChanged: self._capacity_changed,
            StalenessReset: self._staleness_reset,
            ValidationStarted: self._validation_started,
            ValidationEnded: self._validation_ended,
            BatchCollected: self._batch_collected,
            BatchTrained: self._batch_trained,
            FitStepEnded: self._fit_step_ended,
        }

    @property
    def wants(self) -> tuple[type[Event], ...]:
        """The events it needs; the last of a run among them, whose time ends the ledger."""
        return (*self._handlers, RunEnded)

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        self._now_s = t_s
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(t_s, event)

    @property
    def elapsed_s(self) -> float:
        """Seconds from the first event to the latest."""
        return self._now_s - self._started_s

    def gpu_seconds(self) -> dict[GpuState, float]:
        """Return GPU-seconds by state up to the latest event, checked against the wall clock.

        Raises:
            LedgerError: They do not sum to wall clock x GPUs.
        """
        if self.ledger is None:
            return {}
        self.ledger.check(self._now_s)
        return self.ledger.totals(self._now_s)

    def cycle_metrics(self) -> dict[str, float]:
        """Return the metrics of the cycle that ended, by public name, and begin the next cycle.

        Called once per cycle, after its last `FitStepEnded`.
        """
        values = self._values
        metrics = {name: aggregate(name, observed) for name, observed in values.items()}
        train = train_utilization(self._micro_steps)
        step_s = metrics["timing_s/step"]
        metrics["dynamic_resource/train_resource_utilization"] = train.value
        metrics["dynamic_resource/train_compute_time_s"] = train.numerator
        metrics["dynamic_resource/train_allocated_time_s"] = train.denominator
        metrics["dynamic_resource/rollout_resource_utilization"] = self._rollout.value
        metrics["dynamic_resource/resource_utilization"] = cluster_utilization(
            hybrid_gpus=self._hybrid_gpus,
            standalone_gpus=self._standalone_gpus,
            train=train.value,
            rollout=self._rollout.value,
            hybrid_fraction=hybrid_rollout_fraction(
                metrics["timing_s/wait_for_enough_samples"], step_s
            ),
        )
        gen = Ratio(numerator=metrics["timing_s/gen"], denominator=step_s)
        metrics["fully_async/trainer/idle_ratio"] = gen.value
        partial = metrics["fully_async/partial/total_partial_num"]
        metrics["fully_async/partial/partial_ratio"] = Ratio(
            numerator=partial, denominator=self._trajectories
        ).value
        gpu_s = step_s * (self._hybrid_gpus + self._standalone_gpus)
        tokens = metrics["perf/total_num_tokens"]
        metrics["perf/throughput"] = Ratio(numerator=tokens, denominator=gpu_s).value
        metrics["perf/time_per_step"] = step_s
        metrics["training/global_step"] = self._global_step
        metrics["training/epoch"] = self._trained // self._total_samples
        metrics["fully_async/count/current_param_version"] = self._version
        metrics["fully_async/count/total_generated_samples"] = self._generated
        metrics["fully_async/count/staleness_samples"] = self._staleness_samples
        metrics.update(self._counts)
        metrics.update(self._window)
        metrics.update(self._processing_times())
        self._begin_cycle()
        return dict(sorted(metrics.items()))

    def _processing_times(self) -> dict[str, float]:
        seen = self._processing_s
        if not seen:
            return {}
        return {
            f"{_PROCESSING}/avg": sum(seen) / len(seen),
            f"{_PROCESSING}/max": max(seen),
            f"{_PROCESSING}/min": min(seen),
            **{f"{_PROCESSING}/tp{q}": percentile(seen, q) for q in (50, 95, 99)},
        }

    def _begin_cycle(self) -> None:
        self._values.clear()
        self._processing_s.clear()
        self._micro_steps.clear()
        self._trajectories = 0

    def _run_started(self, t_s: float, event: RunStarted) -> None:
        self._hybrid_gpus = len(event.hybrid_gpus)
        self._standalone_gpus = len(event.standalone_gpus)
        self._total_samples = max(1, event.total_samples)
        self._max_required_samples = event.max_required_samples
        self.ledger = GpuSecondLedger((*event.hybrid_gpus, *event.standalone_gpus), t_s)
        self._rollout_window = RolloutWindow(t_s)
        self._started_s = self._version_began_s = t_s
        self._counts["fully_async/count/dropped_stale_samples"] = 0.0

    def _gpu_state_changed(self, t_s: float, event: GpuStateChanged) -> None:
        if self.ledger is not None:
            self.ledger.set_state(event.gpus, GpuState(event.state), t_s)

    def _sample_submitted(self, t_s: float, event: SampleSubmitted) -> None:
        self._set_staleness(t_s, event.staleness_samples)
        self._set_active(t_s, event.active)

    def _sample_queued(self, t_s: float, event: SampleQueued) -> None:
        self._generated += 1
        self._generated_in_version += 1
        self._processing_s.append(event.processing_s)
        self._set_active(t_s, event.active)

    def _sample_given_up(self, t_s: float, event: SampleGivenUp) -> None:
        self._set_staleness(t_s, self._staleness_samples - 1)
        self._set_active(t_s, event.active)

    def _data_exhausted(self, t_s: float, _event: DataExhausted) -> None:
        self._is_exhausted = True
        self._set_staleness(t_s, self._staleness_samples)

    def _set_staleness(self, t_s: float, samples: int) -> None:
        """Note how much of the staleness budget is used; what is left is time free to submit."""
        self._book_free(t_s)
        self._staleness_samples = samples
        is_free = samples < self._max_required_samples and not self._is_exhausted
        self._free_since_s = t_s if is_free else None

    def _capacity_changed(self, t_s: float, event: CapacityChanged) -> None:
        self._capacity = event.capacity
        self._rollout_window.record(t_s, self._active, event.capacity)

    def _set_active(self, t_s: float, active: int) -> None:
        self._active = active
        self._rollout_window.record(t_s, active, self._capacity)

    def _staleness_reset(self, t_s: float, event: StalenessReset) -> None:
        self._rollout = self._rollout_so_far + self._rollout_window.close(t_s)
        self._rollout_so_far = Ratio(numerator=0.0, denominator=0.0)
        self._book_free(t_s)
        version_s = t_s - self._version_began_s
        self._window = {
            "fully_async/rollouter/active_time": self._free_s,
            "fully_async/rollouter/version_time": version_s,
            "fully_async/rollouter/idle_ratio": idle_ratio(self._free_s, version_s),
            "fully_async/rollouter/step_generated_samples": self._generated_in_version,
        }
        self._set_staleness(t_s, event.staleness_samples)
        self._version = event.version
        self._version_began_s = t_s
        self._free_s = 0.0
        self._generated_in_version = 0

    def _validation_started(self, t_s: float, _event: ValidationStarted) -> None:
        """Put the window so far aside; what happens until the end belongs to none."""
        self._book_free(t_s)
        self._rollout_so_far += self._rollout_window.close(t_s)
        self._free_before_validation_s = self._free_s
        self._validation_began_s = t_s

    def _validation_ended(self, t_s: float, _event: ValidationEnded) -> None:
        self._book_free(t_s)
        self._rollout_window.close(t_s)
        self._free_s = self._free_before_validation_s
        self._version_began_s += t_s - self._validation_began_s

    def _book_free(self, t_s: float) -> None:
        if self._free_since_s is not None:
            self._free_s += t_s - self._free_since_s
            self._free_since_s = t_s

    def _batch_collected(self, _t_s: float, event: BatchCollected) -> None:
        self._trained += len(event.samples)
        self._values["fully_async/total_wait_time"].append(event.wait_s)

    def _batch_trained(self, _t_s: float, event: BatchTrained) -> None:
        self._compute_s = train_compute_s(event.timing_s)
        self._trajectories += event.trajectories
        counts, values = self._counts, self._values
        counts["fully_async/count/stale_samples_processed"] += event.stale_samples
        counts["fully_async/count/stale_trajectory_processed"] += event.stale_trajectories
        values["fully_async/partial/total_partial_num"].append(event.partial_trajectories)
        values["fully_async/partial/max_partial_span"].append(event.max_partial_span)
        values["perf/total_num_tokens"].append(event.total_tokens)

    def _fit_step_ended(self, _t_s: float, event: FitStepEnded) -> None:
        values = self._values
        self._global_step = event.global_step
        step = MicroStep(compute_s=self._compute_s, allocated_s=event.allocated_s)
        self._micro_steps.append(step)
        for key in ("step", "gen", "wait_for_enough_samples", "param_sync", *TRAIN_COMPUTE_KEYS):
            values[f"timing_s/{key}"].append(event.timing_s.get(key, 0.0))
        values["dynamic_resource/mq_size"].append(event.mq_size)
