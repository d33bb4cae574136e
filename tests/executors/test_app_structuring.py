"""Structuring: an adapter's own sections, the reference, and the way to a mapping and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.app.config_reference import describe
from swingshift.executors.app.configuration import (
    dump_config,
    dump_section,
    structure_config,
    structure_section,
)
from swingshift.sdk.config import (
    ActorConfig,
    ActorRolloutRefConfig,
    AsyncTrainingConfig,
    ExecutorSection,
    MegatronConfig,
    RolloutEngineConfig,
    RunConfig,
    StandaloneConfig,
    TrainerConfig,
)
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import (
    Validator,
    finite,
    integer,
    to_float_tuple,
    tuple_of,
)

_KIND: Validator[str] = Validator("h20 or h100", lambda value: value in ("h20", "h100"))


@attrs.frozen(kw_only=True)
class Gpu:
    """A section of an adapter's own."""

    flops: float = attrs.field(validator=finite(gt=0.0))
    kind: str = attrs.field(default="h20", validator=_KIND)
    shares: tuple[float, ...] = attrs.field(
        default=(), converter=to_float_tuple, validator=tuple_of(finite(ge=0.0))
    )
    limits: Mapping[str, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.kind == "h20":
            finite(le=148e12).check("flops", self.flops)


@attrs.frozen(kw_only=True)
class Options:
    """The options of an adapter."""

    gpu: Gpu
    spare: tuple[Gpu, ...] = ()
    active_params: int = attrs.field(default=1, validator=integer(ge=1))
    numbers: Literal["bf16", "fp8"] = "bf16"

    def __attrs_post_init__(self) -> None:
        if len(self.spare) > 2:
            raise ValueError("two spare kinds at most")


@attrs.frozen(kw_only=True)
class Node:
    """A section that may be the name of a preset."""

    presets: ClassVar[Mapping[str, Node]]

    gpus: int


Node.presets = {"small": Node(gpus=1), "large": Node(gpus=8)}


@attrs.frozen(kw_only=True)
class Cluster:
    """A section of such sections."""

    head: Node
    others: tuple[Node, ...] = ()


def section_refusal(mapping: Mapping[str, object]) -> str:
    """Return the message with which an adapter's options are refused."""
    with pytest.raises(ConfigError) as caught:
        structure_section(Options, mapping, "executor")
    return str(caught.value)


def test_adapter_options_get_their_own_type() -> None:
    """Nested sections, lists and mappings of an adapter are structured with its own classes."""
    options = structure_section(
        Options,
        {"gpu": {"flops": 1, "shares": [1, 0.5], "limits": {"a": 1}}, "spare": [{"flops": 2.0}]},
        "executor",
    )
    assert options == Options(
        gpu=Gpu(flops=1.0, shares=(1.0, 0.5), limits={"a": 1}), spare=(Gpu(flops=2.0),)
    )
    assert isinstance(options.gpu.flops, float)


@pytest.mark.parametrize(
    ("mapping", "lines"),
    [
        ({}, ["executor.gpu: missing; expected a section of keys"]),
        ({"gpu": {}}, ["executor.gpu.flops: missing; expected a finite number > 0.0"]),
        (
            {"gpu": {"flops": 1, "kind": "h200"}, "active_params": 0},
            [
                "executor.gpu.kind: 'h200' is not allowed; expected h20 or h100",
                "executor.active_params: 0 is not allowed; expected an integer >= 1",
            ],
        ),
        (
            {"gpu": {"flops": 1, "shares": [1, -1], "limits": {"a": "b"}}},
            [
                "executor.gpu.shares[1]: -1.0 is not allowed; expected a finite number >= 0.0",
                "executor.gpu.limits.a: 'b' is not allowed; expected an integer",
            ],
        ),
        (
            {"gpu": {"flops": "1"}, "spare": [{"flops": 1}, {"flops": 1, "flosp": 2}]},
            [
                "executor.gpu.flops: '1' is not allowed; expected a finite number",
                "executor.spare[1].flosp: unknown key (value 2); did you mean 'flops'? "
                "allowed: flops, kind, shares, limits",
            ],
        ),
        ({"gpu": {"flops": 1}, "spare": "h20"}, ["executor.spare: 'h20' is not allowed; "]),
        (
            {"gpu": {"flops": 1e15}},
            ["executor.gpu.flops: 1000000000000000.0 is not allowed; expected a finite number <= "],
        ),
        ({"gpu": {"flops": 1}, "numbers": "fp4"}, ["executor.numbers: 'fp4' is not allowed; "]),
        (
            {"gpu": {"flops": 1}, "spare": [{"flops": 1}] * 3},
            ["executor: two spare kinds at most"],
        ),
        (
            {"modle": {"active_params": 3}},
            [
                "executor.gpu: missing",
                "executor.modle: unknown key (value {'active_params': 3}); allowed: gpu, spare",
            ],
        ),
    ],
)
def test_adapter_options_are_refused_alike(mapping: dict[str, object], lines: list[str]) -> None:
    """Errors in an adapter's section have the quality and the full keys of all others."""
    refused = section_refusal(mapping).splitlines()
    assert len(refused) == len(lines)
    for line, expected in zip(sorted(refused), sorted(lines), strict=True):
        assert line.startswith(expected)


def test_a_name_stands_for_a_preset() -> None:
    """Where a class has presets, its section may be the name of one, nested ones included."""
    found = structure_section(Cluster, {"head": "small", "others": ["large", {"gpus": 2}]})
    assert found == Cluster(head=Node(gpus=1), others=(Node(gpus=8), Node(gpus=2)))
    for item, expected in (
        ("larg", "'larg' is not allowed; expected a section of keys, or one of small, large; did"),
        (3, "3 is not allowed; expected a section of keys"),
    ):
        with pytest.raises(ConfigError, match=rf"^executor\.head: {expected}"):
            structure_section(Cluster, {"head": item}, "executor")


def test_a_section_is_written_out_with_every_key() -> None:
    """What is written out gives the same section again."""
    options = structure_section(Options, {"gpu": {"flops": 1, "shares": [1, 0.5]}})
    assert structure_section(Options, dump_section(options)) == options
    assert dump_section(options)["numbers"] == "bf16"


def test_missing_key_without_limits_names_its_type() -> None:
    """A required key says what belongs there, also when only its type limits it."""

    @attrs.frozen(kw_only=True)
    class Bare:
        layers: int

    with pytest.raises(ConfigError, match=r"^executor\.model\.layers: missing; expected int$"):
        structure_section(Bare, {}, "executor.model")


def test_reference_lists_every_parameter() -> None:
    """The reference has a full key, a default as a file writes it, limits and a text for each."""
    reference = {parameter.key: parameter for parameter in describe(RunConfig)}
    ratio = reference["async_training.dynamic_schedule_deactivate_ratio"]
    assert (ratio.type, ratio.default) == ("float", "0.3")
    assert ratio.allowed == "a finite number >= 0.0 and <= 1.0"
    share = reference["actor_rollout_ref.rollout.standalone_gpu_memory_utilization"]
    assert (share.type, share.default) == ("float or null", "null")
    assert all(parameter.allowed and parameter.description for parameter in reference.values())


def test_reference_of_an_adapter_carries_its_prefix() -> None:
    """Required keys, lists and sections are named as such."""
    reference = {parameter.key: parameter for parameter in describe(Options, "executor")}
    assert reference["executor.gpu.flops"].default == "required"
    assert reference["executor.gpu.shares"].type == "list"
    assert reference["executor.gpu.limits"].type == "section"


def test_dump_has_the_nesting_of_a_file() -> None:
    """Options stand beside the executor's name, as they are written."""
    dumped = dump_config(RunConfig(executor=ExecutorSection(options={"model": {"layers": 40}})))
    assert dumped["executor"] == {"name": "simulated", "model": {"layers": 40}}
    assert dumped["rollout"] == {"nnodes": 1, "n_gpus_per_node": 8, "total_rollout_steps": 100}


_COUNTS = st.integers(1, 10**6)
_SHARES = st.floats(0.0, 1.0, exclude_min=True)
_SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
_NAMES = st.text(min_size=1).filter(lambda name: name != "name")
_TREES = st.recursive(
    _SCALARS | st.text(),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_NAMES, below, max_size=3),
    max_leaves=8,
)


@st.composite
def run_configs(draw: st.DrawFn) -> RunConfig:
    """Draw a valid configuration."""
    replica, tensor, pipeline = (draw(st.sampled_from((1, 2, 4, 8))) for _ in range(3))
    is_dynamic = draw(st.booleans())
    layout = MegatronConfig(
        tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline
    )
    engine = st.builds(
        RolloutEngineConfig,
        n=_COUNTS,
        tensor_model_parallel_size=st.just(replica),
        gpu_memory_utilization=_SHARES,
        standalone_gpu_memory_utilization=st.none() | _SHARES,
    )
    return RunConfig(
        actor_rollout_ref=ActorRolloutRefConfig(
            actor=ActorConfig(ppo_mini_batch_size=draw(_COUNTS), megatron=layout),
            rollout=draw(engine),
        ),
        trainer=TrainerConfig(nnodes=draw(st.sampled_from((8, 16)))),
        rollout=StandaloneConfig(nnodes=draw(st.integers(0 if is_dynamic else 1, 64))),
        async_training=AsyncTrainingConfig(
            use_dynamic_resource_scheduling=is_dynamic,
            dynamic_schedule_deactivate_ratio=draw(st.floats(0.0, 1.0)),
            staleness_threshold=draw(st.floats(0.0, 100.0)),
            partial_rollout=draw(st.booleans()),
        ),
        executor=ExecutorSection(options=draw(st.dictionaries(_NAMES, _TREES, max_size=4))),
        policy=draw(
            st.dictionaries(st.text(), (_SCALARS | st.text()).filter(_is_finite), max_size=3)
        ),
        seed=draw(st.integers(0, 2**64)),
    )


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or finite().accepts(value)


@given(run_configs())
def test_round_trip(config: RunConfig) -> None:
    """Any valid configuration, dumped and structured again, is equal; also by way of JSON."""
    dumped = dump_config(config)
    assert structure_config(dumped) == config
    assert structure_config(json.loads(json.dumps(dumped))) == config
