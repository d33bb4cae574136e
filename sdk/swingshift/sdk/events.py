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
    """Say what there is to run on, and the sizes every metric needs; the first event.

    Attributes:
        run: Name of the run.
        policy: Class of the policy, ``none`` where dynamic scheduling is off.
        hybrid_gpus: GPUs of the trainer.
        standalone_gpus: GPUs of dedicated rollout nodes.
        replicas: GPUs of each replica.
        replica_kinds: ``standalone`` or ``hybrid`` for each replica; hybrids begin asleep, the
            others stale.
        train_required_bytes: Free memory that training needs on each trainer GPU.
        required_samples: Samples of one collection.
        trigger_parameter_sync_step: Collections of one cycle.
        max_required_samples: Bound of queue, of samples in flight and of submissions between two
            syncs.
        concurrent_samples_per_replica: Samples in flight that each serving replica adds to the
            cap.
        responses_per_prompt: Responses, and so requests, of one sample.
        total_samples: Samples of the whole run.
    """

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
    """Say how the run ended and where every sample went; the last event.

    Attributes:
        outcome: ``exhausted``, the good end, or ``failed``.
        reason: What failed; empty otherwise.
        trained_samples: Samples trained.
        unused_samples: Samples never trained, given-up ones included.
        given_up_samples: Samples that failed for good.
    """

    kind: ClassVar[str] = "run_ended"
    outcome: str
    reason: str
    trained_samples: int
    unused_samples: int
    given_up_samples: int


@attrs.frozen
class ControllerMoved:
    """The controller's state machine took a step.

    Attributes:
        before: `ControllerState` left.
        after: `ControllerState` entered.
    """

    kind: ClassVar[str] = "controller_moved"
    before: str
    after: str


@attrs.frozen
class ReplicaMoved:
    """A replica's state machine took a step.

    Attributes:
        replica: Which one.
        before: `ReplicaState` left.
        after: `ReplicaState` entered; the same one after a weight sync.
        version: Version of its weights after the step; null while they are absent or of unknown
            age.
    """

    kind: ClassVar[str] = "replica_moved"
    replica: str
    before: str
    after: str
    version: int | None


@attrs.frozen
class RoutingChanged:
    """A replica entered or left the balancer.

    Attributes:
        replica: Which one.
        routed: True when it entered.
        epoch: Number of this stay in routing; every entry has a higher one than all before.
    """

    kind: ClassVar[str] = "routing_changed"
    replica: str
    routed: bool
    epoch: int


@attrs.frozen
class SwitchStep:
    """One step of a switch ended, for one replica or for the trainer.

    Attributes:
        switch: ``activate``, ``deactivate``, ``rebalance`` or ``sync``.
        step: Which step; the order of steps is part of the contract.
        replicas: The replica it concerned; empty for a step of the trainer.
        duration_s: Seconds it took.
        outcome: ``done``, ``cancelled``, or what went wrong.
    """

    kind: ClassVar[str] = "switch_step"
    switch: str
    step: str
    replicas: tuple[str, ...]
    duration_s: float
    outcome: str


@attrs.frozen
class MemoryMeasured:
    """Free memory was measured before training takes GPUs over.

    Attributes:
        free_bytes: Free bytes of each GPU measured, device-wide.
        required_bytes: Free bytes that training needs on each trainer GPU.
    """

    kind: ClassVar[str] = "memory_measured"
    free_bytes: Mapping[str, int]
    required_bytes: Mapping[str, int]


@attrs.frozen
class WeightsSynced:
    """A weight sync call ended.

    Attributes:
        version: Parameter version that was sent.
        group: Kind of the replicas of the call: ``standalone`` or ``hybrid``.
        outcomes: ``synced`` or ``failed`` for each replica.
        duration_s: Seconds it took.
    """

    kind: ClassVar[str] = "weights_synced"
    version: int
    group: str
    outcomes: Mapping[str, str]
    duration_s: float


@attrs.frozen
class Rebalanced:
    """Requests in flight were sent to be routed again.

    Attributes:
        scope: ``all`` of them, or the ``excess`` above the fair share.
        moved: Requests taken from each replica.
    """

    kind: ClassVar[str] = "rebalanced"
    scope: str
    moved: Mapping[str, int]


@attrs.frozen
class RequestRouted:
    """The balancer gave a request to a replica: an attempt at a turn of a response began.

    Attributes:
        request: Sample and response: ``17/3``; the same for every turn of its episode.
        replica: Where it went.
        epoch: Stay in routing under which it went there.
        attempt: Number of the attempt at this response, from 1, over all turns.
        resumed_tokens: Generated tokens the response already has from earlier attempts and turns.
    """

    kind: ClassVar[str] = "request_routed"
    request: str
    replica: str
    epoch: int
    attempt: int
    resumed_tokens: int


@attrs.frozen
class RequestReturned:
    """An attempt ended.

    Attributes:
        request: As routed.
        replica: As routed.
        epoch: As routed.
        reason: ``stop``, ``length``, ``abort``, ``lost``, ``failed``, ``deadline`` or
            ``cancelled``; after ``lost``, ``failed`` and ``deadline`` the response begins again at
            its prompt.
        new_tokens: Tokens this attempt added.
    """

    kind: ClassVar[str] = "request_returned"
    request: str
    replica: str
    epoch: int
    reason: str
    new_tokens: int


@attrs.frozen
class SampleSubmitted:
    """The rollouter began a sample; it is active until queued or given up.

    Attributes:
        sample: Its position in the data.
        version: Newest parameter version at that moment.
        active: Active samples, this one included.
        staleness_samples: Samples counted against the staleness budget, this one included.
    """

    kind: ClassVar[str] = "sample_submitted"
    sample: int
    version: int
    active: int
    staleness_samples: int


@attrs.frozen
class SampleQueued:
    """A finished sample entered the message queue.

    Attributes:
        sample: Which one.
        active: Active samples left.
        queue_size: Samples in the queue, this one included.
        processing_s: Seconds since it was submitted.
        prompt_tokens: Tokens of its prompt.
        generated_tokens: Tokens of all its responses.
        longest_response_tokens: Tokens of its longest response.
        first_version: Oldest parameter version that generated one of its tokens.
        last_version: Newest parameter version that generated one of its tokens.
        resumed_responses: Responses that took more attempts than turns.
    """

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
    """A sample failed for good; its place in the staleness budget is free again.

    Attributes:
        sample: Which one.
        active: Active samples left.
        reason: What failed last.
    """

    kind: ClassVar[str] = "sample_given_up"
    sample: int
    active: int
    reason: str


@attrs.frozen
class DataExhausted:
    """The last prompt was submitted.

    Attributes:
        samples: Samples of the whole run.
    """

    kind: ClassVar[str] = "data_exhausted"
    samples: int


@attrs.frozen
class CapacityChanged:
    """The rollouter's concurrency cap changed.

    Attributes:
        servers: Replicas in routing.
        capacity: Samples that may be active at once.
    """

    kind: ClassVar[str] = "capacity_changed"
    servers: int
    capacity: int


@attrs.frozen
class StalenessReset:
    """A weight sync was done: the next version's rollout window begins.

    Attributes:
        version: The new parameter version.
        staleness_samples: What the staleness budget begins with: active and queued samples.
        active: Active samples.
        queued: Samples in the queue.
    """

    kind: ClassVar[str] = "staleness_reset"
    version: int
    staleness_samples: int
    active: int
    queued: int


@attrs.frozen
class LentWaitEnded:
    """The trainer's wait for its lent GPUs' harvest ended.

    Attributes:
        outcome: ``reached``, ``exhausted`` (the data ended) or ``failed``.
        wait_s: Seconds waited.
        target_samples: Samples waited for.
        queue_size: Samples in the queue at its end.
    """

    kind: ClassVar[str] = "lent_wait_ended"
    outcome: str
    wait_s: float
    target_samples: int
    queue_size: int


@attrs.frozen
class BatchCollected:
    """A collection ended with a batch.

    Attributes:
        batch: Number of the batch, from 0.
        samples: The samples taken from the queue, oldest first.
        wait_s: Seconds the collection took.
        waited_samples: Samples that were not in the queue when it began.
    """

    kind: ClassVar[str] = "batch_collected"
    batch: int
    samples: tuple[int, ...]
    wait_s: float
    waited_samples: int


@attrs.frozen
class BatchTrained:
    """A fit step's compute ended.

    Attributes:
        batch: Number of the batch.
        version: Newest parameter version at that moment.
        timing_s: Seconds by timing key, such as ``update_actor``.
        metrics: The algorithm's metrics by name.
        stale_samples: Samples with tokens of an older version.
        stale_trajectories: Responses with tokens of an older version.
        partial_trajectories: Responses with tokens of several versions.
        max_partial_span: Most versions between the first and the last token of a response.
        trajectories: Responses of the batch.
        total_tokens: Tokens of the batch, the prompt counted once per response.
    """

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
    """One whole micro fit step ended, weight sync included where it had one.

    Attributes:
        global_step: Fit steps done since training began.
        timing_s: Seconds by timing key, collection and waits included.
        allocated_s: Seconds since the collection began.
        mq_size: Samples in the queue.
    """

    kind: ClassVar[str] = "fit_step_ended"
    global_step: int
    timing_s: Mapping[str, float]
    allocated_s: float
    mq_size: int


@attrs.frozen
class CycleEnded:
    """A sync cycle ended.

    Attributes:
        version: The parameter version that ended it.
        metrics: Its metrics by their public names.
    """

    kind: ClassVar[str] = "cycle_ended"
    version: int
    metrics: Mapping[str, float]


@attrs.frozen
class ValidationStarted:
    """Validation began on all serving replicas; its time counts for no rollout metric.

    Attributes:
        version: The parameter version it judges.
    """

    kind: ClassVar[str] = "validation_started"
    version: int


@attrs.frozen
class ValidationEnded:
    """Validation ended.

    Attributes:
        version: The parameter version it judged.
        answered: Prompts that got an answer.
        prompts: Prompts of the validation set.
        mean_reward: Over the answers; null without any.
        duration_s: Seconds it took, lending included.
    """

    kind: ClassVar[str] = "validation_ended"
    version: int
    answered: int
    prompts: int
    mean_reward: float | None
    duration_s: float


@attrs.frozen
class PolicyDecided:
    """The policy was asked, and the guard made a decision of the answer.

    Attributes:
        question: The method that was asked.
        global_steps: The parameter version it was asked at.
        answer: What the policy said; a rebalance by its scope.
        effective: What holds.
        forced: True when the guard decided instead of the policy.
        reason: ``policy``, or why the guard decided.
        context: The snapshot the policy saw.
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
    """GPUs moved to another state of the GPU-second ledger.

    Attributes:
        gpus: Which ones.
        state: `GpuState` from now on.
    """

    kind: ClassVar[str] = "gpu_state_changed"
    gpus: tuple[str, ...]
    state: str


@attrs.frozen
class Advisory:
    """Tell a person something worth knowing.

    Attributes:
        text: In plain words.
    """

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
    | ValidationStarted
    | ValidationEnded
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
        ValidationStarted,
        ValidationEnded,
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
