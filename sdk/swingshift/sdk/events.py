"""What a run says about itself: one typed value per thing that happened.

The control plane stamps each event with a sequence number (per run, from 0) and the loop's time in
seconds and hands it to `EventSink`s. The run log writes them as JSON lines; every metric, the
GPU-second ledger and the decision log can be recomputed from them alone. Field names are the JSON
keys; `EVENT_TYPES` maps the ``event`` key to the class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import attrs

Scalar = str | int | float | bool | None


@attrs.frozen
class RunStarted:
    """First event: what there is to run on, and the sizes every metric needs."""

    kind: ClassVar[str] = "run_started"
    run: str
    policy: str
    hybrid_gpus: tuple[str, ...]
    standalone_gpus: tuple[str, ...]
    replicas: Mapping[str, tuple[str, ...]]
    replica_kinds: Mapping[str, str]
    train_required_bytes: Mapping[str, int]
    required_samples: int
    trigger_parameter_sync_step: int
    max_required_samples: int
    concurrent_samples_per_replica: int
    responses_per_prompt: int
    total_samples: int


@attrs.frozen
class RunEnded:
    """Last event: how the run ended and where every sample went."""

    kind: ClassVar[str] = "run_ended"
    outcome: str
    reason: str
    trained_samples: int
    unused_samples: int
    given_up_samples: int


@attrs.frozen
class ControllerMoved:
    """The controller's state machine took a step."""

    kind: ClassVar[str] = "controller_moved"
    before: str
    after: str


@attrs.frozen
class ReplicaMoved:
    """A replica's state machine took a step; ``version`` is that of its weights, None when
    unknown.
    """

    kind: ClassVar[str] = "replica_moved"
    replica: str
    before: str
    after: str
    version: int | None


@attrs.frozen
class RoutingChanged:
    """A replica entered (``routed``) or left the balancer; every entry has a new epoch."""

    kind: ClassVar[str] = "routing_changed"
    replica: str
    routed: bool
    epoch: int


@attrs.frozen
class SwitchStep:
    """One step of an activation or deactivation ended; ``outcome`` is ``done`` or what went
    wrong.
    """

    kind: ClassVar[str] = "switch_step"
    switch: str
    step: str
    replicas: tuple[str, ...]
    duration_s: float
    outcome: str


@attrs.frozen
class MemoryMeasured:
    """Free memory per GPU before training takes it over, beside what training needs."""

    kind: ClassVar[str] = "memory_measured"
    free_bytes: Mapping[str, int]
    required_bytes: Mapping[str, int]


@attrs.frozen
class WeightsSynced:
    """A weight sync call ended; ``outcomes`` names what it did to each replica."""

    kind: ClassVar[str] = "weights_synced"
    version: int
    group: str
    outcomes: Mapping[str, str]
    duration_s: float


@attrs.frozen
class Rebalanced:
    """Requests in flight were sent to be routed again."""

    kind: ClassVar[str] = "rebalanced"
    scope: str
    moved: Mapping[str, int]


@attrs.frozen
class RequestRouted:
    """The balancer gave a request to a replica."""

    kind: ClassVar[str] = "request_routed"
    request: str
    replica: str
    epoch: int
    attempt: int
    resumed_tokens: int


@attrs.frozen
class RequestReturned:
    """An attempt ended: ``stop``, ``length``, ``abort``, ``lost``, ``failed``, ``deadline`` or
    ``cancelled``.
    """

    kind: ClassVar[str] = "request_returned"
    request: str
    replica: str
    epoch: int
    reason: str
    new_tokens: int


@attrs.frozen
class SampleSubmitted:
    """The rollouter began a sample; it is active until queued or given up."""

    kind: ClassVar[str] = "sample_submitted"
    sample: int
    version: int
    active: int
    staleness_samples: int


@attrs.frozen
class SampleQueued:
    """A finished sample entered the message queue."""

    kind: ClassVar[str] = "sample_queued"
    sample: int
    active: int
    queue_size: int
    processing_s: float
    prompt_tokens: int
    generated_tokens: int
    longest_response_tokens: int
    first_version: int
    last_version: int
    resumed_responses: int


@attrs.frozen
class SampleGivenUp:
    """A sample failed for good after its retries; its place in the staleness budget is free
    again.
    """

    kind: ClassVar[str] = "sample_given_up"
    sample: int
    active: int
    reason: str


@attrs.frozen
class DataExhausted:
    """The last prompt was submitted."""

    kind: ClassVar[str] = "data_exhausted"
    samples: int


@attrs.frozen
class CapacityChanged:
    """The rollouter's concurrency cap changed."""

    kind: ClassVar[str] = "capacity_changed"
    servers: int
    capacity: int


@attrs.frozen
class StalenessReset:
    """A weight sync was done: the next version's rollout window begins."""

    kind: ClassVar[str] = "staleness_reset"
    version: int
    staleness_samples: int
    active: int
    queued: int


@attrs.frozen
class LentWaitEnded:
    """The trainer's wait for its lent GPUs' harvest ended."""

    kind: ClassVar[str] = "lent_wait_ended"
    outcome: str
    wait_s: float
    target_samples: int
    queue_size: int


@attrs.frozen
class BatchCollected:
    """A collection ended with a batch; ``waited_samples`` were not in the queue when it began."""

    kind: ClassVar[str] = "batch_collected"
    batch: int
    samples: tuple[int, ...]
    wait_s: float
    waited_samples: int


@attrs.frozen
class BatchTrained:
    """A fit step's compute ended: seconds by timing key, and how stale what it trained on was."""

    kind: ClassVar[str] = "batch_trained"
    batch: int
    version: int
    timing_s: Mapping[str, float]
    metrics: Mapping[str, float]
    stale_samples: int
    stale_trajectories: int
    partial_trajectories: int
    max_partial_span: int
    trajectories: int
    total_tokens: int


@attrs.frozen
class FitStepEnded:
    """One whole micro fit step ended, weight sync included where it had one."""

    kind: ClassVar[str] = "fit_step_ended"
    global_step: int
    timing_s: Mapping[str, float]
    allocated_s: float
    mq_size: int


@attrs.frozen
class CycleEnded:
    """A sync cycle's metrics, by their public names."""

    kind: ClassVar[str] = "cycle_ended"
    version: int
    metrics: Mapping[str, float]


@attrs.frozen
class PolicyDecided:
    """A question to the policy: what it saw, what it answered, what the guard made of it and
    why.
    """

    kind: ClassVar[str] = "policy_decided"
    question: str
    global_steps: int
    answer: Scalar
    effective: Scalar
    forced: bool
    reason: str
    context: Mapping[str, Scalar | tuple[float, ...] | Mapping[str, Scalar | tuple[float, ...]]]


@attrs.frozen
class GpuStateChanged:
    """GPUs moved to another state of the GPU-second ledger."""

    kind: ClassVar[str] = "gpu_state_changed"
    gpus: tuple[str, ...]
    state: str


@attrs.frozen
class Advisory:
    """Something a person should know, in plain words."""

    kind: ClassVar[str] = "advisory"
    text: str


Event = (
    RunStarted
    | RunEnded
    | ControllerMoved
    | ReplicaMoved
    | RoutingChanged
    | SwitchStep
    | MemoryMeasured
    | WeightsSynced
    | Rebalanced
    | RequestRouted
    | RequestReturned
    | SampleSubmitted
    | SampleQueued
    | SampleGivenUp
    | DataExhausted
    | CapacityChanged
    | StalenessReset
    | LentWaitEnded
    | BatchCollected
    | BatchTrained
    | FitStepEnded
    | CycleEnded
    | PolicyDecided
    | GpuStateChanged
    | Advisory
)

EVENT_TYPES: Mapping[str, type[Event]] = {
    event.kind: event
    for event in (
        RunStarted,
        RunEnded,
        ControllerMoved,
        ReplicaMoved,
        RoutingChanged,
        SwitchStep,
        MemoryMeasured,
        WeightsSynced,
        Rebalanced,
        RequestRouted,
        RequestReturned,
        SampleSubmitted,
        SampleQueued,
        SampleGivenUp,
        DataExhausted,
        CapacityChanged,
        StalenessReset,
        LentWaitEnded,
        BatchCollected,
        BatchTrained,
        FitStepEnded,
        CycleEnded,
        PolicyDecided,
        GpuStateChanged,
        Advisory,
    )
}


class EventSink(Protocol):
    """Where events go. Called synchronously in order; it must not block the loop or raise."""

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event.

        Args:
            sequence: Number of the event in its run, from 0, without gaps.
            t_s: Loop time in seconds.
            event: What happened.
        """
        ...


class MetricSink(Protocol):
    """Where metrics go: once per sync cycle, by their public names."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the metrics of one cycle; ``step`` is the parameter version that ended it."""
        ...
