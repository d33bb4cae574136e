"""The typed configuration: defaults, derived sizes, limits and impossible combinations."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import attrs
import pytest

from swingshift.sdk.config import (
    ActorConfig,
    ActorRolloutRefConfig,
    AsyncTrainingConfig,
    DataConfig,
    ExecutorSection,
    MegatronConfig,
    RolloutEngineConfig,
    RunConfig,
    RuntimeConfig,
    Scalar,
    StandaloneConfig,
    TrainerConfig,
)
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError

SECTIONS = (
    DataConfig,
    MegatronConfig,
    ActorConfig,
    RolloutEngineConfig,
    ActorRolloutRefConfig,
    TrainerConfig,
    StandaloneConfig,
    AsyncTrainingConfig,
    RuntimeConfig,
    ExecutorSection,
    RunConfig,
)
DYNAMIC = AsyncTrainingConfig(use_dynamic_resource_scheduling=True)


def replica_of(gpus: int) -> ActorRolloutRefConfig:
    """Return a model section whose rollout replicas hold that many GPUs."""
    return ActorRolloutRefConfig(rollout=RolloutEngineConfig(tensor_model_parallel_size=gpus))


def test_scheduling_defaults_are_those_of_the_specification() -> None:
    """A configuration that says nothing schedules as the specification's tables say."""
    settings = AsyncTrainingConfig()
    assert settings.use_dynamic_resource_scheduling is False
    assert settings.dynamic_schedule_policy == "default"
    assert settings.dynamic_schedule_deactivate_ratio == 0.3
    assert settings.dynamic_schedule_enable_rebalance is True
    assert settings.staleness_threshold == 0.1
    assert settings.trigger_parameter_sync_step == 4
    assert settings.require_batches == 1


def test_sizes_of_the_published_experiment() -> None:
    """16 prompts x 1 batch x 4 collections: S = 64, and half as much again may be in flight."""
    config = RunConfig(
        actor_rollout_ref=replica_of(8),
        trainer=TrainerConfig(nnodes=2),
        rollout=StandaloneConfig(nnodes=3, total_rollout_steps=30_000),
        async_training=attrs.evolve(DYNAMIC, staleness_threshold=0.5),
    )
    assert (config.required_samples, config.step_required_samples) == (16, 64)
    assert config.max_required_samples == 96
    assert (config.hybrid_gpus, config.standalone_gpus, config.replica_gpus) == (16, 24, 8)
    assert not config.only_hybrid


def test_max_required_samples_is_rounded_down() -> None:
    """16 x 1.1 x 4 = 70.4 samples are 70."""
    assert RunConfig().max_required_samples == 70


def test_every_batch_of_a_collection_counts() -> None:
    """Two mini-batches of 8 prompts make a collection of 16 samples."""
    config = RunConfig(
        actor_rollout_ref=ActorRolloutRefConfig(actor=ActorConfig(ppo_mini_batch_size=8)),
        async_training=AsyncTrainingConfig(require_batches=2),
    )
    assert config.required_samples == 16


def test_standalone_memory_share_falls_back() -> None:
    """Without a share of its own a standalone replica takes that of a hybrid one."""
    assert RolloutEngineConfig(gpu_memory_utilization=0.4).standalone_memory_share == 0.4
    both = RolloutEngineConfig(gpu_memory_utilization=0.4, standalone_gpu_memory_utilization=1)
    assert both.standalone_memory_share == 1.0


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (AsyncTrainingConfig, "dynamic_schedule_deactivate_ratio", 1.7),
        (AsyncTrainingConfig, "dynamic_schedule_deactivate_ratio", -0.1),
        (AsyncTrainingConfig, "staleness_threshold", float("nan")),
        (AsyncTrainingConfig, "staleness_threshold", float("inf")),
        (AsyncTrainingConfig, "trigger_parameter_sync_step", 0),
        (AsyncTrainingConfig, "require_batches", True),
        (AsyncTrainingConfig, "partial_rollout", 1),
        (AsyncTrainingConfig, "dynamic_schedule_policy", " "),
        (RolloutEngineConfig, "gpu_memory_utilization", 0),
        (RolloutEngineConfig, "standalone_gpu_memory_utilization", 1.01),
        (StandaloneConfig, "nnodes", -1),
        (StandaloneConfig, "total_rollout_steps", 2.0),
        (TrainerConfig, "test_freq", 0),
        (TrainerConfig, "test_freq", -1.0),
        (RuntimeConfig, "sync_deadline_s", 0),
        (RuntimeConfig, "request_retries", -1),
        (ExecutorSection, "options", {"name": "twice"}),
        (ExecutorSection, "options", 3),
        (RunConfig, "data", MegatronConfig()),
        (RunConfig, "policy", {"ratio": float("nan")}),
        (RunConfig, "policy", {"ratios": [0.1]}),
        (RunConfig, "policy", {1: 0.1}),
        (RunConfig, "seed", -1),
    ],
)
def test_value_outside_its_limits_is_refused(
    section: type[object], name: str, value: object
) -> None:
    """Each limit holds for configurations that a script builds, and the error names the field."""
    with pytest.raises(InvalidValueError) as caught:
        section(**{name: value})
    assert caught.value.name == name
    assert caught.value.given is value or caught.value.given == value


@pytest.mark.parametrize("frequency", [-1, 1, 20])
def test_test_frequency_is_never_or_positive(frequency: int) -> None:
    """Validation runs never, or after every so many weight syncs."""
    assert TrainerConfig(test_freq=frequency).test_freq == frequency


def test_nothing_to_generate_with_is_refused() -> None:
    """No rollout nodes and no hybrid replicas: the error says which two keys can change that."""
    with pytest.raises(ConfigError, match=r"^rollout\.nnodes: 0 .*use_dynamic_resource_scheduling"):
        RunConfig(rollout=StandaloneConfig(nnodes=0))
    colocated = RunConfig(rollout=StandaloneConfig(nnodes=0), async_training=DYNAMIC)
    assert colocated.only_hybrid
    assert colocated.standalone_gpus == 0


@pytest.mark.parametrize(
    ("nodes", "gpus_per_node", "replica_gpus", "fits"),
    [(1, 8, 1, True), (1, 8, 8, True), (2, 8, 16, True), (1, 8, 3, False), (3, 8, 16, False)],
)
def test_replicas_fit_their_nodes(
    nodes: int, gpus_per_node: int, replica_gpus: int, fits: bool
) -> None:
    """A replica divides a node, or fills whole nodes without remainder."""
    rollout = StandaloneConfig(nnodes=nodes, n_gpus_per_node=gpus_per_node)
    if fits:
        RunConfig(rollout=rollout, actor_rollout_ref=replica_of(replica_gpus))
        return
    with pytest.raises(ConfigError, match=rf"parallel_size: {replica_gpus} .*rollout\.nnodes"):
        RunConfig(rollout=rollout, actor_rollout_ref=replica_of(replica_gpus))


def test_replicas_must_fit_trainer_nodes_only_when_they_can_be_hybrid() -> None:
    """With the master switch off no replica is ever put on the trainer's GPUs."""
    trainer = TrainerConfig(n_gpus_per_node=4)
    RunConfig(trainer=trainer, actor_rollout_ref=replica_of(8))
    with pytest.raises(ConfigError, match=r"trainer\.nnodes=1 with trainer\.n_gpus_per_node=4"):
        RunConfig(trainer=trainer, actor_rollout_ref=replica_of(8), async_training=DYNAMIC)


def test_trainer_layout_must_divide_its_gpus() -> None:
    """Tensor x pipeline parallelism is a divisor of the trainer's GPUs."""
    layout = MegatronConfig(tensor_model_parallel_size=4, pipeline_model_parallel_size=2)
    model = ActorRolloutRefConfig(actor=ActorConfig(megatron=layout))
    RunConfig(actor_rollout_ref=model)
    with pytest.raises(ConfigError, match=r"4 x 2; expected a divisor of the 12 trainer GPUs"):
        RunConfig(actor_rollout_ref=model, trainer=TrainerConfig(n_gpus_per_node=12))


def test_all_conflicts_are_reported_at_once() -> None:
    """Each impossible combination has its own line."""
    with pytest.raises(ConfigError) as caught:
        RunConfig(
            actor_rollout_ref=replica_of(3),
            trainer=TrainerConfig(n_gpus_per_node=4),
            async_training=DYNAMIC,
        )
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == [
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
        "actor_rollout_ref.rollout.tensor_model_parallel_size",
    ]


def test_configuration_cannot_change_under_a_run() -> None:
    """Fields are frozen, and mappings are copied to their last level."""
    options: dict[str, object] = {"model": {"layers": 40}}
    policy: dict[str, Scalar] = {"window": 3}
    config = RunConfig(executor=ExecutorSection(options=options), policy=policy)
    policy["window"] = 4
    inner = options["model"]
    assert isinstance(inner, dict)
    inner["layers"] = 0
    assert config.policy == {"window": 3}
    assert config.executor.options == {"model": {"layers": 40}}
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]


def test_configuration_travels_to_another_process() -> None:
    """Seeds run in parallel processes, so a configuration can be pickled."""
    config = RunConfig(policy={"window": 3}, seed=7)
    assert pickle.loads(pickle.dumps(config)) == config  # noqa: S301


@pytest.mark.parametrize("section", SECTIONS)
def test_every_parameter_documents_itself(section: type[attrs.AttrsInstance]) -> None:
    """Each field that is not a section has a help text that is a sentence."""
    attrs.resolve_types(section)
    for field in attrs.fields(section):
        if isinstance(field.type, type) and attrs.has(field.type):
            continue
        help_text = field.metadata["help"]
        assert isinstance(help_text, str)
        assert help_text.endswith("."), field.name


def test_mapping_types_are_read_only_for_type_checkers() -> None:
    """Options and policy arguments are declared as mappings, which have no way to be changed."""
    attrs.resolve_types(RunConfig)
    assert attrs.fields(RunConfig).policy.type == Mapping[str, Scalar]
