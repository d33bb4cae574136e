"""What the control plane needs from hardware: one object of async verbs, and their values.

An adapter (simulated, one box, a cluster) implements `Executor` and has no opinions: it never
retries, orders or times out on its own. The control plane decides all that, so that every adapter
behaves alike. Payloads (tokens, log-probs) stay inside the adapter; the control plane sees
*handles* and counts.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.validators import InvalidValueError, integer


class ExecutorError(SwingshiftError):
    """A verb failed for a reason the adapter can name; the control plane decides what follows."""


class ReplicaLostError(ExecutorError):
    """The replica behind a verb is gone, and with it all work it had not handed back."""


class ReplicaKind(enum.StrEnum):
    """Whether a replica owns its GPUs or shares them with the trainer."""

    STANDALONE = "standalone"
    HYBRID = "hybrid"


class PauseMode(enum.StrEnum):
    """What `Executor.pause` does with requests in flight."""

    ABORT = "abort"
    KEEP = "keep"
    DRAIN = "drain"


class MemoryPart(enum.StrEnum):
    """The parts of a replica's memory that wake separately, in this order."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"


class TrainingPart(enum.StrEnum):
    """The parts of the trainer's memory that are offloaded separately."""

    OPTIMIZER_AND_GRADIENTS = "optimizer_and_gradients"
    PARAMETERS = "parameters"


class FinishReason(enum.StrEnum):
    """Why a generation ended: by itself, at its token budget, or because it was told to stop."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class VersionSpan(NamedTuple):
    """A run of tokens generated under one parameter version."""

    version: int
    tokens: int


@attrs.frozen(kw_only=True)
class Replica:
    """One inference engine.

    Attributes:
        id: Unique name.
        kind: Standalone or hybrid.
        gpus: Names of the GPUs it runs on.
    """

    id: str
    kind: ReplicaKind
    gpus: tuple[str, ...]


@attrs.frozen(kw_only=True)
class TrainerGpu:
    """One GPU of the trainer.

    Attributes:
        id: Unique name; hybrid replicas name the same GPUs.
        train_required_bytes: Free memory, measured device-wide, without which training must not
            start.
    """

    id: str
    train_required_bytes: int


@attrs.frozen(kw_only=True)
class Inventory:
    """What `Executor.start` brought up.

    Attributes:
        replicas: Hybrid ones are asleep, standalone ones awake with weights of unknown age.
        trainer_gpus: The GPUs that train; hybrid replicas run on them.
    """

    replicas: tuple[Replica, ...]
    trainer_gpus: tuple[TrainerGpu, ...]

    def of_kind(self, kind: ReplicaKind) -> tuple[Replica, ...]:
        """Return the replicas of one kind, in inventory order."""
        return tuple(replica for replica in self.replicas if replica.kind is kind)

    @property
    def gpus(self) -> tuple[str, ...]:
        """Every GPU once, trainer GPUs first."""
        trainer = [gpu.id for gpu in self.trainer_gpus]
        dedicated = [
            gpu for replica in self.of_kind(ReplicaKind.STANDALONE) for gpu in replica.gpus
        ]
        return (*trainer, *dedicated)


@attrs.frozen(kw_only=True)
class Capabilities:
    """What an adapter can do beyond the minimum.

    The control plane refuses configurations that need more.

    Attributes:
        pause_keep: ``pause(..., KEEP)`` holds requests in the engine; without it they are aborted
            and resumed.
        lend: Hybrid replicas can sleep and wake.
        virtual_time: Time is modelled, so an expired deadline is a fault of the control plane and
            raises.
    """

    pause_keep: bool
    lend: bool
    virtual_time: bool


class Prompt(NamedTuple):
    """One entry of the data set: its position, its length, and a handle of its content."""

    position: int
    tokens: int
    handle: str


@attrs.frozen(kw_only=True)
class Observation:
    """What an episode puts between two turns: the output of a tool, as the model will read it.

    It is context, and nobody is trained on it.

    Attributes:
        handle: Where the adapter finds its tokens, those of the chat template included.
        tokens: How many there are; they count against the budget of the response.
    """

    handle: str
    tokens: int = attrs.field(validator=integer(ge=0))


class GenerationRequest(NamedTuple):
    """One attempt at one turn of one response.

    The context is the prompt, then ``generated_tokens`` and ``observed_tokens`` in the order they
    came.

    Attributes:
        request_id: Unique among requests in flight; the same for every attempt at one response.
        prompt: What to continue.
        response_index: Which of the prompt's ``rollout.n`` responses this is.
        max_new_tokens: Tokens this attempt may still add; the budget of the response less what it
            has.
        generated_tokens: Tokens the response already has from earlier attempts and turns.
        resume_from: Handle of what there is of the response; None starts from the prompt.
        turn: Which turn of its episode this is, from 0.
        observed_tokens: Tokens of all observations so far, those of ``observation`` included.
        observation: What to put after ``resume_from`` before generating; None when there is
            nothing new.
    """

    request_id: str
    prompt: Prompt
    response_index: int
    max_new_tokens: int
    generated_tokens: int = 0
    resume_from: str | None = None
    turn: int = 0
    observed_tokens: int = 0
    observation: Observation | None = None


class Generation(NamedTuple):
    """What one attempt produced; none, a part or all of a turn.

    Attributes:
        handle: Names the response so far, earlier attempts and observations included, also when
            nothing was added; valid for `GenerationRequest.resume_from`, and takes the place of
            the handle that was resumed from.
        new_tokens: Tokens this attempt added.
        finish_reason: Why it ended.
        spans: The new tokens by parameter version, in order; they sum to ``new_tokens``.
    """

    handle: str
    new_tokens: int
    finish_reason: FinishReason
    spans: tuple[VersionSpan, ...]


class Progress(NamedTuple):
    """What the engine itself says is in flight on one replica.

    Attributes:
        running: Requests being generated.
        waiting: Requests not yet begun.
        tokens: Tokens that the running ones hold in context.
    """

    running: int
    waiting: int
    tokens: int


class Insertion(NamedTuple):
    """Tokens in a response that nobody generated.

    Attributes:
        position: Generated tokens before them.
        tokens: How many there are.
    """

    position: int
    tokens: int


class Segment(NamedTuple):
    """A run of tokens in a response that are all trained on, or all not."""

    tokens: int
    is_trainable: bool


@attrs.frozen(kw_only=True)
class Episode:
    """A response up to the end of a turn: all of its turns, with what was put between them.

    Attributes:
        handle: Where the adapter finds its tokens and log-probs.
        tokens: Generated tokens; they are what is trained on.
        spans: Generated tokens by parameter version, in order.
        attempts: Generation attempts it took, as many as turns when it was never interrupted.
        turns: Turns it has.
        insertions: Observations between its turns, in order; nobody is trained on them.
        finish_reason: Why the last turn ended: STOP by itself, LENGTH because the budget of the
            response is used up. After LENGTH there is no further turn.
    """

    handle: str
    tokens: int
    spans: tuple[VersionSpan, ...]
    attempts: int
    turns: int = 1
    insertions: tuple[Insertion, ...] = ()
    finish_reason: FinishReason = FinishReason.STOP

    @property
    def observed_tokens(self) -> int:
        """Tokens that were put between turns."""
        return sum(insertion.tokens for insertion in self.insertions)

    @property
    def response_tokens(self) -> int:
        """Everything after the prompt, generated or not: what counts against the budget."""
        return self.tokens + self.observed_tokens if self.insertions else self.tokens

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The tokens after the prompt in order, marked as trainable or not; no run is empty."""
        segments, done = [], 0
        for position, tokens in self.insertions:
            segments += [Segment(position - done, True), Segment(tokens, False)]
            done = position
        segments.append(Segment(self.tokens - done, True))
        return tuple(segment for segment in segments if segment.tokens)

    @property
    def is_interrupted(self) -> bool:
        """Whether a turn was aborted and resumed, or the episode began again."""
        return self.attempts > self.turns


@attrs.frozen(kw_only=True)
class Sample:
    """One prompt with its responses and rewards: what the queue holds and the trainer consumes.

    Attributes:
        sample_id: Unique in its run.
        prompt: What was answered.
        episodes: The responses, one or more.
        rewards: One per response, in the same order.

    Raises:
        InvalidValueError: There is no response, one without tokens, or not one reward for each.
    """

    sample_id: int
    prompt: Prompt
    episodes: tuple[Episode, ...]
    rewards: tuple[float, ...]

    def __attrs_post_init__(self) -> None:
        if not self.episodes or not all(episode.spans for episode in self.episodes):
            raise InvalidValueError(
                f"tokens of the responses of sample {self.sample_id}",
                tuple(episode.tokens for episode in self.episodes),
                "one or more counts, each at least 1",
            )
        if len(self.rewards) != len(self.episodes):
            raise InvalidValueError(
                f"rewards of sample {self.sample_id}",
                self.rewards,
                f"one for each of the {len(self.episodes)} responses",
            )

    @property
    def first_version(self) -> int:
        """Oldest parameter version that generated a token of this sample."""
        return min(episode.spans[0].version for episode in self.episodes)

    @property
    def last_version(self) -> int:
        """Newest parameter version that generated a token of this sample."""
        return max(episode.spans[-1].version for episode in self.episodes)

    @property
    def generated_tokens(self) -> int:
        """Generated tokens over all responses."""
        return sum(episode.tokens for episode in self.episodes)

    @property
    def total_tokens(self) -> int:
        """Tokens a trainer computes on: of every response with its prompt and observations."""
        responses = sum(episode.response_tokens for episode in self.episodes)
        return responses + self.prompt.tokens * len(self.episodes)


@attrs.frozen(kw_only=True)
class FitBatch:
    """The samples of one fit step; an adapter must not train the same ``batch_id`` twice."""

    batch_id: int
    samples: tuple[Sample, ...]


@attrs.frozen(kw_only=True)
class FitResult:
    """What one fit step took and came to.

    Attributes:
        timing_s: Seconds by timing key (``old_log_prob``, ``update_actor``, ...).
        metrics: The algorithm's own metrics by name. Values that are not finite are left out of
            the run's events; one advisory per name says so.
    """

    timing_s: Mapping[str, float]
    metrics: Mapping[str, float] = attrs.field(factory=dict)


class SyncOutcome(enum.StrEnum):
    """What a weight sync did to one replica."""

    SYNCED = "synced"
    FAILED = "failed"


class CapacityChange(enum.StrEnum):
    """What `Executor.events` reports."""

    REPLICA_LOST = "replica_lost"
    REPLICA_READY = "replica_ready"
    GPU_LOST = "gpu_lost"
    GPU_RETURNED = "gpu_returned"


class CapacityEvent(NamedTuple):
    """A change of capacity that no verb caused; ``subject`` is the replica or GPU."""

    change: CapacityChange
    subject: str


class Executor(ABC):
    """Async verbs over sets of replicas or GPUs; order, retries and deadlines are the caller's.

    Every verb may be cancelled at any await point; the adapter then leaves the subject in a state
    from which `kill` and `restart` still work.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this adapter can do; constant for its life."""

    @abstractmethod
    async def start(self) -> Inventory:
        """Bring everything up and say what there is. Called once, first.

        Returns:
            Hybrid replicas asleep, standalone replicas awake with weights of unknown age (STALE).
        """

    @abstractmethod
    async def stop(self) -> None:
        """Release everything, and end what is under way. Called last.

        Idempotent, also after a failed `start`.
        """

    @abstractmethod
    def events(self) -> AsyncIterator[CapacityEvent]:
        """Stream capacity changes until `stop`. Called once, after `start`."""

    @abstractmethod
    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        """Generate one turn of a response, or continue one.

        Returns when the turn ends or is aborted. A request sent to a paused replica waits there.
        Cancelling the call aborts the request and drops what it produced. Between the turns of an
        episode nothing is held on a replica; the next turn may come to another one, which then has
        the whole context to compute.

        Raises:
            ReplicaLostError: The replica died; nothing of this attempt can be resumed.
            ExecutorError: The replica is not awake, or has had no weight sync since it was started
                or restarted.
        """

    @abstractmethod
    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        """Make the named requests return what they have with `FinishReason.ABORT`.

        Idempotent; unknown ids are ignored. Returns when the engine has let go of them.
        """

    @abstractmethod
    def progress(self, replica: str) -> Progress:
        """Return what the engine last reported to be in flight; zeros for one not awake."""

    @abstractmethod
    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        """Stop generating; return when that is true in the engine itself.

        ABORT returns every request with what it has, KEEP holds them, DRAIN lets running ones end.
        Requests that arrive later wait until `resume`. Idempotent.
        """

    @abstractmethod
    async def resume(self, replicas: Sequence[str]) -> None:
        """Generate again; idempotent, also without a `pause` before it."""

    @abstractmethod
    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        """Take back one part of a replica's memory; idempotent. WEIGHTS comes before KV_CACHE."""

    @abstractmethod
    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Release KV cache and weights of paused replicas.

        Idempotent, and safe after a partial `wake`.

        Returns:
            Free bytes per GPU of these replicas, measured device-wide after the release.
        """

    @abstractmethod
    async def offload_training(self, part: TrainingPart) -> None:
        """Move one part of the trainer's memory off its GPUs; idempotent."""

    @abstractmethod
    async def reload_training(self, part: TrainingPart) -> None:
        """Bring one part of the trainer's memory back to its GPUs; idempotent."""

    @abstractmethod
    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Send the trainer's weights to replicas; one call enters both sides of the collective.

        Called while the trainer's parameters are on its GPUs. Returns only when the trainer side
        is released. When it raises or is cancelled, the replicas of the call are indeterminate and
        the caller kills them before any retry.

        Returns:
            An outcome for every replica of the call: FAILED, and no error, for one that is gone.
        """

    @abstractmethod
    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """End replicas at once; their requests raise `ReplicaLostError`. Idempotent.

        Returns:
            Free bytes per GPU of these replicas, measured device-wide after their end.
        """

    @abstractmethod
    async def restart(self, replicas: Sequence[str]) -> None:
        """Bring killed replicas back awake, with weights of unknown age (STALE)."""

    @abstractmethod
    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Train on one batch; a repeated ``batch_id`` returns the first result without training."""

    @abstractmethod
    async def discard(self, handles: Sequence[str]) -> None:
        """Free payloads that nobody will ask for again: trained, or given up.

        Idempotent; unknown handles are ignored.
        """
