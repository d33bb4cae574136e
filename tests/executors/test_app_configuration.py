"""Configuration files: reading, overrides, translation of errors, known keys, round trip."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from swingshift.executors.app.config_reference import describe
from swingshift.executors.app.configuration import (
    load_config,
    read_mapping,
    structure_config,
)
from swingshift.executors.app.known_keys import KNOWN_KEYS
from swingshift.sdk.config import (
    ExecutorSection,
    RunConfig,
    RuntimeConfig,
)
from swingshift.sdk.errors import ConfigError

FILE = """
trainer: {nnodes: 2, n_gpus_per_node: 8}
rollout:
  nnodes: 2
  n_gpus_per_node: ${trainer.n_gpus_per_node}
async_training:
  staleness_threshold: 0.5
runtime:
executor:
  name: simulated
  model: {active_params: 3.0e9}
policy: {window: 3}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    """Return a file with a small valid configuration."""
    path = tmp_path / "run.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def refusal(source: Path | Mapping[str, object], *overrides: str) -> str:
    """Return the message with which a configuration is refused."""
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides)
    return str(caught.value)


def test_file_is_read_with_references_and_defaults(config_file: Path) -> None:
    """Written values are used, references resolved, empty and absent sections take defaults."""
    config = load_config(config_file)
    assert config.standalone_gpus == 16
    assert config.async_training.staleness_threshold == 0.5
    assert config.runtime == RuntimeConfig()
    assert config.executor == ExecutorSection(options={"model": {"active_params": 3.0e9}})
    assert config.policy == {"window": 3}


def test_overrides_replace_add_and_come_last_wins(config_file: Path) -> None:
    """An override reaches any depth, also below sections that the file does not have."""
    config = load_config(
        config_file,
        [
            "seed=1",
            "seed=7",
            "data.max_response_length=64000",
            "executor.model.layers=40",
            "policy.name=steady",
            "actor_rollout_ref.rollout.standalone_gpu_memory_utilization=1",
        ],
    )
    assert (config.seed, config.data.max_response_length) == (7, 64000)
    assert config.executor.options["model"] == {"active_params": 3.0e9, "layers": 40}
    assert config.policy == {"window": 3, "name": "steady"}
    assert config.actor_rollout_ref.rollout.standalone_memory_share == 1.0


def test_other_sections_can_be_taken_out_first(tmp_path: Path) -> None:
    """A scenario holds one section more: it is read whole, and the rest is a run configuration."""
    path = tmp_path / "scenario.yaml"
    path.write_text("benchmark: {seeds: 3}\nseed: 2\n", encoding="utf-8")
    mapping = read_mapping(path, ["benchmark.seeds=5"])
    assert mapping.pop("benchmark") == {"seeds": 5}
    assert structure_config(mapping).seed == 2


def test_mapping_serves_as_a_file_does() -> None:
    """A script hands over a mapping, and it is left as it was."""
    source: dict[str, object] = {"trainer": {"nnodes": 2}}
    assert load_config(source, ["trainer.nnodes=3"]).trainer.nnodes == 3
    assert source == {"trainer": {"nnodes": 2}}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "async_training.staleness_treshold=0.5",
            "async_training.staleness_treshold: unknown key (value 0.5); "
            "did you mean 'staleness_threshold'? allowed: use_dynamic_resource_scheduling, ",
        ),
        (
            "async_training.dynamic_schedule_deactivate_ratio=1.7",
            "async_training.dynamic_schedule_deactivate_ratio: 1.7 is not allowed; "
            "expected a finite number >= 0.0 and <= 1.0",
        ),
        ("rollout.nnodes=-1", "rollout.nnodes: -1 is not allowed; expected an integer >= 0"),
        ("rollout.nnodes=two", "rollout.nnodes: 'two' is not allowed; expected an integer"),
        ("rollout.nnodes='2'", "rollout.nnodes: '2' is not allowed; expected an integer"),
        ("rollout.nnodes=2.0", "rollout.nnodes: 2.0 is not allowed; expected an integer"),
        ("rollout.nnodes=true", "rollout.nnodes: true is not allowed; expected an integer"),
        ("rollout.nnodes=", "rollout.nnodes: null is not allowed; expected an integer"),
        (
            "async_training.staleness_threshold=.nan",
            "async_training.staleness_threshold: nan is not allowed; expected a finite number",
        ),
        (
            "runtime.sync_deadline_s=.inf",
            "runtime.sync_deadline_s: inf is not allowed; expected a finite number > 0",
        ),
        (
            "async_training.partial_rollout=1",
            "async_training.partial_rollout: 1 is not allowed; expected true or false",
        ),
        (
            "async_training.dynamic_schedule_policy=3",
            "async_training.dynamic_schedule_policy: 3 is not allowed; expected a string",
        ),
        (
            "actor_rollout_ref.rollout.standalone_gpu_memory_utilization=high",
            "actor_rollout_ref.rollout.standalone_gpu_memory_utilization: 'high' is not allowed",
        ),
        ("async_training=5", "async_training: 5 is not allowed; expected a section of keys"),
        ("executor=simulated", "executor: 'simulated' is not allowed; expected a section of keys"),
        ("executor.name=3", "executor.name: 3 is not allowed; expected a string"),
        ("policy.w=[1]", "policy.w: [1] is not allowed; expected a number, a string, true, false"),
        ("policy=[1]", "policy: [1] is not allowed; expected a section of keys"),
        (
            "rollout.gpu_memory_utilization=0.5",
            "rollout.gpu_memory_utilization: unknown key (value 0.5); "
            "did you mean 'actor_rollout_ref.rollout.gpu_memory_utilization'? allowed: nnodes",
        ),
        ("+seed=1", "+seed: unknown key (value 1); did you mean 'seed'? allowed: data"),
        ("zzz=1", "zzz: unknown key (value 1); allowed: data, actor_rollout_ref, trainer"),
        ("seed", "override 'seed': expected key=value, for example"),
        ("a..b=1", "override 'a..b=1': expected key=value, for example"),
        ("seed=[1", "seed: '[1' is not YAML: "),
        ("seed=${nothing}", "seed: Interpolation key 'nothing' not found"),
        ("seed=???", "seed: Missing mandatory value: seed"),
        ("rollout.nnodes=0", "rollout.nnodes: 0 leaves nothing to generate with; expected at"),
    ],
)
def test_refusal_is_one_line_that_says_what_to_write(override: str, message: str) -> None:
    """The line names the full key, the value, what is allowed, and the nearest valid name."""
    line = refusal({}, override)
    assert line.startswith(message)
    assert "\n" not in line


def test_all_problems_are_reported_at_once() -> None:
    """Problems of every section come together, a line each."""
    lines = refusal(
        {"trainer": {"nnodes": 0, "nodes": 1}}, "seed=-1", "data.max_prompt_length=x"
    ).splitlines()
    assert sorted(line.split(":")[0] for line in lines) == [
        "data.max_prompt_length",
        "seed",
        "trainer.nnodes",
        "trainer.nodes",
    ]


def test_dotted_key_in_a_file_is_pointed_at() -> None:
    """A full dotted key as a single key of a file is a common slip."""
    line = refusal({"async_training.staleness_threshold": 0.5})
    assert "unknown key (value 0.5); write it nested" in line


def test_keys_that_are_not_strings_are_unknown() -> None:
    """YAML allows numbers as keys; no configuration key is one."""
    assert refusal({1: 2}).startswith("1: unknown key (value 2)")  # type: ignore[dict-item]


def test_long_values_are_shortened() -> None:
    """A pasted document does not flood the terminal."""
    assert len(refusal({}, "seed=" + "x" * 10_000)) < 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed: 1\nseed: 2\n", "found duplicate key seed"),
        (b"seed: [1\n", "not YAML"),
        (b"seed: !!python/object/apply:os.getcwd []\n", "not YAML"),
        (b"\xff\xfe", "not YAML"),
        (b"- 1\n", "expected keys at the top, not a list"),
        (b"5\n", "Invalid loaded object type"),
    ],
)
def test_unreadable_file_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    """The line names the file and what is wrong with it."""
    path = tmp_path / "broken.yaml"
    path.write_bytes(content)
    line = refusal(path)
    assert line.startswith(f"configuration file {path}: ")
    assert message in line
    assert "\n" not in line


def test_missing_file_is_named(tmp_path: Path) -> None:
    """The line names the path that was asked for."""
    path = tmp_path / "nowhere.yaml"
    assert refusal(path) == f"configuration file {path}: No such file or directory"


def test_container_of_another_kind_cannot_be_overridden() -> None:
    """An element of a list is no key."""
    assert refusal({"executor": {"gpus": [1]}}, "executor.gpus.0=2").startswith("overrides: ")


def test_accepted_keys_of_verl_warn_once_per_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the keys to which one reason applies, a whole section as one key."""
    source = {
        "critic": {"optim": {"lr": 1e-5}, "ppo_epochs": 1},
        "trainer": {"logger": ["wandb"], "project_name": "math"},
    }
    with caplog.at_level(logging.WARNING):
        assert load_config(source) == RunConfig()
    assert [record.getMessage() for record in caplog.records] == [
        "no effect: critic (whether a critic is trained is the executor's; set it under executor)",
        "no effect: trainer.logger, trainer.project_name "
        "(what is recorded, and where, is chosen on the command line)",
    ]


def test_refused_key_of_verl_says_why() -> None:
    """A key whose neglect would change the run is refused with the reason and the way out."""
    lines = refusal(
        {"filter": {"path": "f.py", "name": "f"}},
        "data.train_batch_size=1024",
        "rollout.test_freq=1",
        "trainer.nnodes=0",
    ).splitlines()
    assert lines[0].startswith("filter.path: 'f.py' is not allowed; a sample is never filtered")
    assert lines[1].startswith("data.train_batch_size: 1024 is not allowed; samples stream")
    assert lines[1].endswith("leave the key out or write 0 or write null")
    assert lines[2].startswith("rollout.test_freq: 1 is not allowed; write trainer.test_freq")
    assert lines[3].startswith("trainer.nnodes: 0 is not allowed")


def test_harmless_value_of_a_refused_key_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    """A value that asks for what happens anyway passes, with a warning; its look-alike does not."""
    with caplog.at_level(logging.WARNING):
        load_config({}, ["data.train_batch_size=0", "critic.enable=false"])
    assert len(caplog.records) == 2
    assert "data.train_batch_size: false is not" in refusal({}, "data.train_batch_size=false")


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("critic.enable=true", "whether a critic is trained is the executor's; set it under exec"),
        ("algorithm.adv_estimator=gae", "advantages are relative to the group of a prompt's resp"),
        ("trainer.critic_warmup=5", "the actor is trained from the first step"),
        (
            "async_training.use_trainer_do_validate=true",
            "validation runs on the serving replicas; runtime.validation_lends=true adds the train",
        ),
    ],
)
def test_refused_keys_say_what_happens_instead(override: str, reason: str) -> None:
    """What an executor can model is not called impossible."""
    assert f"is not allowed; {reason}" in refusal({}, override)


def test_known_keys_hide_no_parameter() -> None:
    """No parameter of ours is named in the list, nor stands below a name in it."""
    for parameter in describe(RunConfig):
        names = parameter.key.split(".")
        above = {".".join(names[:depth]) for depth in range(1, len(names) + 1)}
        assert above.isdisjoint(KNOWN_KEYS)
    assert all(entry.reason for entry in KNOWN_KEYS.values())
