"""What a person asks of a run while it goes on and when it ended, kept from its events."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    CycleEnded,
    Event,
    FitStepEnded,
    GpuStateChanged,
    RunEnded,
    RunStarted,
    SampleQueued,
    ValidationEnded,
)
from swingshift.sdk.metrics import GpuSecondLedger, GpuState

REWARD = "reward/mean"
"""The metric of a fit step that says how good the samples of its batch were."""

# Time in which a GPU does what it is there for.
_USEFUL = (GpuState.TRAIN, GpuState.ROLLOUT, GpuState.VALIDATION)


@attrs.frozen(kw_only=True)
class MetricRow:
    """What became known at one moment, for files and plots.

    Attributes:
        version: Parameter version it belongs to.
        t_s: Seconds since the run's first event, on the executor's clock.
        metrics: By public name.
    """

    version: int
    t_s: float
    metrics: Mapping[str, float]


@attrs.frozen
class GpuNow:
    """What a GPU does.

    Attributes:
        is_trainer: Whether it is one of the trainer's, which can be lent.
        state: What it does.
        for_s: Seconds since it began to.
        useful: Share of the run in which it trained or generated.
    """

    is_trainer: bool
    state: GpuState
    for_s: float
    useful: float


@attrs.frozen
class _Spell:
    """A GPU in one state: since when, and how long it was useful before."""

    state: GpuState
    since_s: float
    useful_s: float

    def useful_until(self, t_s: float) -> float:
        return self.useful_s + (t_s - self.since_s if self.state in _USEFUL else 0.0)


class RunTally:
    """An event sink; what it holds may be read from another thread at any time.

    Attributes:
        on_row: Gets the metrics of each cycle and of each validation; None for nobody.
        phase: What goes on, in a word or two.
        is_simulated: Whether the executor's time is virtual.
        started: The run's first event; None before it.
        ended: The run's last event; None before it.
        version: Newest parameter version.
        global_step: Fit steps done.
        queue_size: Samples in the queue.
        trained: Samples trained.
        trajectories: Responses trained.
        stale_samples: Trained samples with tokens of an older version.
        stale_trajectories: Trained responses with tokens of an older version.
        partial_trajectories: Trained responses with tokens of several versions.
        max_partial_span: Most versions between the first and the last token of one of them.
        rewards: Mean reward of each cycle in which one was reported.
        cycles: Cycles that ended.
        latest: Metrics of the latest of them, those of its fit steps averaged.
        validation_reward: Mean reward of the latest validation.
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        """Start empty.

        Args:
            now_s: The wall clock; any origin.
        """
        self.on_row: Callable[[MetricRow], None] | None = None
        self._wall_s = now_s
        self._wall_began_s = self._wall_seen_s = now_s()
        self._began_s = self._seen_s = 0.0
        self._ledger = GpuSecondLedger((), 0.0)
        self._spells: dict[str, _Spell] = {}
        self._fitted: dict[str, list[float]] = defaultdict(list)
        self._collected = 0
        self._start_up_s = 0.0
        self.phase = "starting"
        self.is_simulated = False
        self.started: RunStarted | None = None
        self.ended: RunEnded | None = None
        self.version = self.global_step = self.queue_size = self.trained = self.cycles = 0
        self.trajectories = self.stale_samples = self.stale_trajectories = 0
        self.partial_trajectories = self.max_partial_span = 0
        self.rewards: list[float] = []
        self.latest: Mapping[str, float] = {}
        self.validation_reward: float | None = None
        self._handlers: Mapping[type[Event], Callable[[float, Any], None]] = {
            RunStarted: self._run_started,
            RunEnded: self._run_ended,
            GpuStateChanged: self._gpu_state_changed,
            SampleQueued: self._sample_queued,
            BatchCollected: self._batch_collected,
            BatchTrained: self._batch_trained,
            FitStepEnded: self._fit_step_ended,
            CycleEnded: self._cycle_ended,
            ValidationEnded: self._validation_ended,
        }

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            self._seen_s, self._wall_seen_s = t_s, self._wall_s()
            handler(t_s, event)

    @property
    def total(self) -> int:
        """Samples of the whole run; 0 before it is known."""
        return 0 if self.started is None else self.started.total_samples

    @property
    def run_s(self) -> float:
        """Seconds from the run's first event to its latest that counts here."""
        return self._seen_s - self._began_s

    @property
    def elapsed_s(self) -> float:
        """Seconds of wall clock since this began to listen."""
        return self._wall_s() - self._wall_began_s

    @property
    def remaining_s(self) -> float | None:
        """Seconds of wall clock that the rest takes at the pace so far; None without one."""
        if self.started is None or not self.trained:
            return None
        running_s = self.elapsed_s - self._start_up_s
        return running_s * max(0, self.total - self.trained) / self.trained

    @property
    def tokens_per_s(self) -> float:
        """Tokens trained per second of the latest cycle; 0 without one."""
        step_s = self.latest.get("perf/time_per_step", 0.0)
        return self.latest["perf/total_num_tokens"] / step_s if step_s else 0.0

    def gpus(self) -> dict[str, GpuNow]:
        """Return what every GPU does now, the trainer's first."""
        if self.started is None:
            return {}
        trainer = frozenset(self.started.hybrid_gpus)
        now_s = self._now_s()
        run_s = max(now_s - self._began_s, 1e-9)
        return {
            name: GpuNow(
                name in trainer,
                spell.state,
                max(0.0, now_s - spell.since_s),
                spell.useful_until(now_s) / run_s,
            )
            for name, spell in self._spells.items()
        }

    def gpu_seconds(self) -> dict[GpuState, float]:
        """Return the GPU-seconds of the run by state."""
        return self._ledger.totals(self._seen_s)

    def _now_s(self) -> float:
        """Return the time on the executor's clock, which runs between events if it is real."""
        is_still = self.is_simulated or self.ended is not None
        return self._seen_s + (0.0 if is_still else self._wall_s() - self._wall_seen_s)

    def _run_started(self, t_s: float, event: RunStarted) -> None:
        self._began_s = t_s
        self._start_up_s = self.elapsed_s
        gpus = (*event.hybrid_gpus, *event.standalone_gpus)
        self._ledger = GpuSecondLedger(gpus, t_s)
        self._spells = dict.fromkeys(gpus, _Spell(GpuState.IDLE, t_s, 0.0))
        self.phase, self.started = "running", event

    def _run_ended(self, _t_s: float, event: RunEnded) -> None:
        self.phase, self.ended = "ending", event

    def _gpu_state_changed(self, t_s: float, event: GpuStateChanged) -> None:
        state = GpuState(event.state)
        self._ledger.set_state(event.gpus, state, t_s)
        for gpu in event.gpus:
            useful_s = self._spells[gpu].useful_until(t_s)
            self._spells[gpu] = _Spell(state, t_s, useful_s)

    def _sample_queued(self, _t_s: float, event: SampleQueued) -> None:
        self.queue_size = event.queue_size

    def _batch_collected(self, _t_s: float, event: BatchCollected) -> None:
        self._collected = len(event.samples)
        self.queue_size = max(0, self.queue_size - self._collected)

    def _batch_trained(self, _t_s: float, event: BatchTrained) -> None:
        for name, value in event.metrics.items():
            self._fitted[name].append(value)
        self.trajectories += event.trajectories
        self.stale_samples += event.stale_samples
        self.stale_trajectories += event.stale_trajectories
        self.partial_trajectories += event.partial_trajectories
        self.max_partial_span = max(self.max_partial_span, event.max_partial_span)
        self.trained += self._collected

    def _fit_step_ended(self, _t_s: float, event: FitStepEnded) -> None:
        self.global_step, self.queue_size = event.global_step, event.mq_size

    def _cycle_ended(self, t_s: float, event: CycleEnded) -> None:
        fitted = {name: sum(seen) / len(seen) for name, seen in self._fitted.items()}
        self._fitted.clear()
        self.latest = dict(sorted({**fitted, **event.metrics}.items()))
        self.version = event.version
        self.cycles += 1
        if REWARD in fitted:
            self.rewards.append(fitted[REWARD])
        self._tell(t_s, event.version, self.latest)

    def _validation_ended(self, t_s: float, event: ValidationEnded) -> None:
        metrics: dict[str, float] = {
            "validation/answered": event.answered,
            "validation/prompts": event.prompts,
            "validation/duration_s": event.duration_s,
        }
        if event.mean_reward is not None:
            metrics["validation/mean_reward"] = self.validation_reward = event.mean_reward
        self._tell(t_s, event.version, metrics)

    def _tell(self, t_s: float, version: int, metrics: Mapping[str, float]) -> None:
        if self.on_row is not None:
            self.on_row(MetricRow(version=version, t_s=t_s - self._began_s, metrics=metrics))
