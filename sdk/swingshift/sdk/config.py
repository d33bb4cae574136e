"""The typed configuration of a run: sections, defaults, limits, and the sizes derived from them.

Keys and nesting are those of a verl fully-async training configuration, as the specification's
section 2 uses them; ``runtime``, ``executor``, ``policy`` and ``seed`` are ours. Every parameter
says what it means, with its unit, in the ``help`` entry of its field's metadata. Files are read
elsewhere: these classes hold values and refuse impossible ones, also when a script builds them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import attrs

from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import (
    Validator,
    boolean,
    finite,
    instance_of,
    integer,
    optional,
    text,
    to_float,
    to_optional_float,
)

Scalar: TypeAlias = bool | int | float | str | None


def _switch(default: bool, help_text: str) -> bool:
    return attrs.field(default=default, validator=boolean(), metadata={"help": help_text})


def _count(default: int, help_text: str, *, ge: int = 1) -> int:
    return attrs.field(default=default, validator=integer(ge=ge), metadata={"help": help_text})


def _number(default: float, help_text: str, limits: Validator[float]) -> float:
    return attrs.field(
        default=default, converter=to_float, validator=limits, metadata={"help": help_text}
    )


def _name(default: str, help_text: str) -> str:
    return attrs.field(default=default, validator=text(), metadata={"help": help_text})


# A configuration holds copies of its own, so that nobody can change it under a run.
def _own_options(value: Mapping[str, object]) -> Mapping[str, object]:
    return copy.deepcopy(value)


def _own_arguments(value: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
    return copy.deepcopy(value)


def _is_frequency(value: object) -> bool:
    return integer(ge=-1).accepts(value) and value != 0


def is_scalar(value: object) -> bool:
    """Return whether a value may stand in the ``policy`` section: a `Scalar`, and finite."""
    return value is None or isinstance(value, bool | str) or finite().accepts(value)


def _is_policy_section(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and is_scalar(item) for name, item in value.items()
    )


def _is_options(value: object) -> bool:
    return isinstance(value, Mapping) and "name" not in value


_SHARE = finite(gt=0.0, le=1.0)
_RATIO = finite(ge=0.0, le=1.0)
_DURATION = finite(gt=0.0)
_FREQUENCY: Validator[int] = Validator("-1 (never) or an integer >= 1", _is_frequency)
_OPTIONS: Validator[Mapping[str, object]] = Validator(
    "a section of keys, none of them 'name'", _is_options
)
_POLICY_SECTION: Validator[Mapping[str, Scalar]] = Validator(
    "a section of keys with numbers, strings, booleans or null", _is_policy_section
)


@attrs.frozen(kw_only=True)
class DataConfig:
    """The lengths of prompts and responses."""

    max_prompt_length: int = _count(1024, "Longest prompt, in tokens.")
    max_response_length: int = _count(8192, "Longest response, in tokens, over all its turns.")


@attrs.frozen(kw_only=True)
class MegatronConfig:
    """How the trainer's model is split over GPUs; what is left of the GPUs is data parallel."""

    tensor_model_parallel_size: int = _count(1, "GPUs over which each layer is split.")
    pipeline_model_parallel_size: int = _count(1, "Pipeline stages of the trainer's model.")
    expert_model_parallel_size: int = _count(1, "GPUs over which a layer's experts are spread.")


@attrs.frozen(kw_only=True)
class ActorConfig:
    """The model being trained."""

    ppo_mini_batch_size: int = _count(16, "Prompts per mini-batch; each brings its n responses.")
    megatron: MegatronConfig = attrs.field(
        factory=MegatronConfig, validator=instance_of(MegatronConfig)
    )


@attrs.frozen(kw_only=True)
class RolloutEngineConfig:
    """One rollout replica, hybrid or standalone."""

    n: int = _count(1, "Responses per prompt.")
    tensor_model_parallel_size: int = _count(1, "GPUs of one replica.")
    gpu_memory_utilization: float = _number(
        0.5, "Share of a GPU's memory that the engine of a hybrid replica may use.", _SHARE
    )
    standalone_gpu_memory_utilization: float | None = attrs.field(
        default=None,
        converter=to_optional_float,
        validator=optional(_SHARE),
        metadata={
            "help": "The same share for standalone replicas; null takes gpu_memory_utilization."
        },
    )
    max_num_seqs: int = _count(256, "Requests that one replica runs at the same time.")

    @property
    def standalone_memory_share(self) -> float:
        """Share of a GPU's memory for a standalone replica, after the fallback."""
        if self.standalone_gpu_memory_utilization is None:
            return self.gpu_memory_utilization
        return self.standalone_gpu_memory_utilization


@attrs.frozen(kw_only=True)
class ActorRolloutRefConfig:
    """The trained model and the engines that generate with it."""

    actor: ActorConfig = attrs.field(factory=ActorConfig, validator=instance_of(ActorConfig))
    rollout: RolloutEngineConfig = attrs.field(
        factory=RolloutEngineConfig, validator=instance_of(RolloutEngineConfig)
    )


@attrs.frozen(kw_only=True)
class TrainerConfig:
    """The trainer's nodes."""

    nnodes: int = _count(1, "Trainer nodes.")
    n_gpus_per_node: int = _count(8, "GPUs of a trainer node.")
    test_freq: int = attrs.field(
        default=-1,
        validator=_FREQUENCY,
        metadata={"help": "Validate after every so many weight syncs; -1 for never."},
    )


@attrs.frozen(kw_only=True)
class StandaloneConfig:
    """The dedicated rollout nodes, and how much they have to do."""

    nnodes: int = _count(1, "Standalone rollout nodes; 0 for hybrid replicas alone.", ge=0)
    n_gpus_per_node: int = _count(8, "GPUs of a standalone rollout node.")
    total_rollout_steps: int = _count(100, "Prompts of the whole run; each makes one sample.")


@attrs.frozen(kw_only=True)
class AsyncTrainingConfig:
    """Staleness, synchronisation, and the scheduling of hybrid replicas."""

    use_dynamic_resource_scheduling: bool = _switch(
        False, "Put hybrid replicas on the trainer's GPUs and let a policy lend them to rollout."
    )
    dynamic_schedule_policy: str = _name("default", "Registered name of the policy.")
    dynamic_schedule_deactivate_ratio: float = _number(
        0.3, "Share of a cycle's samples to wait for before GPUs return to training.", _RATIO
    )
    dynamic_schedule_enable_rebalance: bool = _switch(
        True, "Let the policy redistribute requests in flight after hybrid replicas joined."
    )
    staleness_threshold: float = _number(
        0.1, "Samples generated ahead of need, as a share of a cycle's samples.", finite(ge=0.0)
    )
    trigger_parameter_sync_step: int = _count(4, "Collections between two weight syncs.")
    require_batches: int = _count(1, "Mini-batches per collection.")
    partial_rollout: bool = _switch(
        True, "At a weight sync, interrupt responses in flight; false lets them end first."
    )
    concurrent_samples_per_replica: int = _count(
        16, "Samples in flight for each serving replica; a sample is a prompt with its responses."
    )


@attrs.frozen(kw_only=True)
class RuntimeConfig:
    """Deadlines and retries of the control plane, in seconds of the executor's clock."""

    start_deadline_s: float = _number(
        3600.0, "Seconds for the executor to bring everything up.", _DURATION
    )
    stop_deadline_s: float = _number(
        600.0, "Seconds for the executor to release everything.", _DURATION
    )
    switch_step_deadline_s: float = _number(
        600.0, "Seconds for one step of lending or returning GPUs.", _DURATION
    )
    sync_deadline_s: float = _number(600.0, "Seconds for one weight sync.", _DURATION)
    fit_deadline_s: float = _number(7200.0, "Seconds for one fit step.", _DURATION)
    request_deadline_s: float = _number(
        14400.0, "Seconds for one attempt of one request on one replica.", _DURATION
    )
    drain_deadline_s: float = _number(
        14400.0,
        "Seconds for episodes in flight to end with partial_rollout: false; then they start anew.",
        _DURATION,
    )
    wait_deadline_s: float = _number(
        86400.0, "Seconds for one wait of the trainer for samples.", _DURATION
    )
    restart_deadline_s: float = _number(
        900.0, "Seconds for one restart of a replica that died.", _DURATION
    )
    restart_attempts: int = _count(
        3, "Restarts of a replica until it serves again; after that it stays away.", ge=0
    )
    validation_lends: bool = _switch(
        False, "Lend the trainer's GPUs for validation where the policy does not."
    )
    request_retries: int = _count(
        3, "Times a failed request is tried again before its sample is given up.", ge=0
    )


@attrs.frozen(kw_only=True)
class ExecutorSection:
    """The executor adapter, and whatever it wants to be told.

    In a file the options stand beside ``name``, under ``executor:``; the adapter gives them a type.
    """

    name: str = _name("simulated", "Registered name of the executor adapter.")
    options: Mapping[str, object] = attrs.field(
        factory=dict,
        converter=_own_options,
        validator=_OPTIONS,
        metadata={"help": "Everything else under executor; each adapter documents its own keys."},
    )


@attrs.frozen(kw_only=True)
class RunConfig:
    """Everything that decides how one training run is scheduled.

    Raises:
        InvalidValueError: A value is outside its limits.
        ConfigError: The values are possible one by one but not together; a line for each conflict.
    """

    data: DataConfig = attrs.field(factory=DataConfig, validator=instance_of(DataConfig))
    actor_rollout_ref: ActorRolloutRefConfig = attrs.field(
        factory=ActorRolloutRefConfig, validator=instance_of(ActorRolloutRefConfig)
    )
    trainer: TrainerConfig = attrs.field(
        factory=TrainerConfig, validator=instance_of(TrainerConfig)
    )
    rollout: StandaloneConfig = attrs.field(
        factory=StandaloneConfig, validator=instance_of(StandaloneConfig)
    )
    async_training: AsyncTrainingConfig = attrs.field(
        factory=AsyncTrainingConfig, validator=instance_of(AsyncTrainingConfig)
    )
    runtime: RuntimeConfig = attrs.field(
        factory=RuntimeConfig, validator=instance_of(RuntimeConfig)
    )
    executor: ExecutorSection = attrs.field(
        factory=ExecutorSection, validator=instance_of(ExecutorSection)
    )
    policy: Mapping[str, Scalar] = attrs.field(
        factory=dict,
        converter=_own_arguments,
        validator=_POLICY_SECTION,
        metadata={"help": "Keyword arguments for the policy's constructor."},
    )
    seed: int = _count(0, "Seed of everything random in the run.", ge=0)

    def __attrs_post_init__(self) -> None:
        conflicts = tuple(self._conflicts())
        if conflicts:
            raise ConfigError("\n".join(conflicts))

    @property
    def required_samples(self) -> int:
        """Samples of one collection."""
        batch_samples = self.actor_rollout_ref.actor.ppo_mini_batch_size
        return batch_samples * self.async_training.require_batches

    @property
    def step_required_samples(self) -> int:
        """Samples of one cycle, from one weight sync to the next."""
        return self.required_samples * self.async_training.trigger_parameter_sync_step

    @property
    def max_required_samples(self) -> int:
        """Most samples that may be queued, or submitted in one cycle, or in flight."""
        settings = self.async_training
        stale = 1.0 + settings.staleness_threshold
        return int(self.required_samples * stale * settings.trigger_parameter_sync_step)

    @property
    def hybrid_gpus(self) -> int:
        """GPUs on the trainer's nodes; they can be lent when the master switch is on."""
        return self.trainer.nnodes * self.trainer.n_gpus_per_node

    @property
    def standalone_gpus(self) -> int:
        """GPUs on dedicated rollout nodes."""
        return self.rollout.nnodes * self.rollout.n_gpus_per_node

    @property
    def only_hybrid(self) -> bool:
        """Whether there are no standalone replicas."""
        return self.rollout.nnodes == 0

    @property
    def replica_gpus(self) -> int:
        """GPUs of one rollout replica."""
        return self.actor_rollout_ref.rollout.tensor_model_parallel_size

    def _conflicts(self) -> Iterator[str]:
        is_dynamic = self.async_training.use_dynamic_resource_scheduling
        if self.only_hybrid and not is_dynamic:
            yield (
                "rollout.nnodes: 0 leaves nothing to generate with; expected at least 1, or "
                "async_training.use_dynamic_resource_scheduling=true to generate on trainer GPUs"
            )
        if is_dynamic:
            yield from self._placement("trainer", self.trainer)
        if not self.only_hybrid:
            yield from self._placement("rollout", self.rollout)
        megatron = self.actor_rollout_ref.actor.megatron
        tensor = megatron.tensor_model_parallel_size
        pipeline = megatron.pipeline_model_parallel_size
        if self.hybrid_gpus % (tensor * pipeline):
            yield (
                "actor_rollout_ref.actor.megatron: tensor_model_parallel_size x "
                f"pipeline_model_parallel_size is {tensor} x {pipeline}; expected a divisor of the "
                f"{self.hybrid_gpus} trainer GPUs (trainer.nnodes x trainer.n_gpus_per_node)"
            )

    def _placement(self, section: str, nodes: TrainerConfig | StandaloneConfig) -> Iterator[str]:
        replica, node = self.replica_gpus, nodes.n_gpus_per_node
        fits_in_a_node = node % replica == 0
        fills_whole_nodes = replica % node == 0 and nodes.nnodes % (replica // node) == 0
        if not fits_in_a_node and not fills_whole_nodes:
            yield (
                f"actor_rollout_ref.rollout.tensor_model_parallel_size: {replica} does not fit "
                f"{section}.nnodes={nodes.nnodes} with {section}.n_gpus_per_node={node}; expected "
                "a divisor of the GPUs of a node, or whole nodes without remainder"
            )
