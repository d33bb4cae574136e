"""From a configuration to a run: adapters, policies with their arguments, whole runs."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from swingshift.executors.app.assembly import (
    build_configured_policy,
    configured_executor,
    execute,
    executor_adapter,
    explain_deadline,
    find_policy,
)
from swingshift.executors.app.configuration import load_config, read_mapping
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunOutcome
from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.model import QWEN3_5_35B_A3B
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.policies.default import DefaultDynamicSchedulePolicy
from swingshift.sdk.config import RunConfig, RuntimeConfig
from swingshift.sdk.errors import ConfigError, PolicyError, UnknownNameError, UserError
from swingshift.sdk.events import Event, RunStarted

TUNABLE = """
from swingshift.policies.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.sdk.validators import integer

class Tunable(FixedRatioDynamicSchedulePolicy):
    def __init__(self, window: int, deactivate_ratio: float = 0.5, only_hybrid: bool = False):
        super().__init__(deactivate_ratio, only_hybrid)
        integer(ge=1).check("window", window)
        self.share = 1 / (10 - window)

class Failing(FixedRatioDynamicSchedulePolicy):
    def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
        raise RuntimeError("broken on purpose")
"""
NEEDS_WINDOW = (
    "policy.window: missing; policy Tunable needs the argument window (int): "
    "set policy.window, or give it a default"
)
SCENARIO = "templates/scenario.yaml.template"

Put = Callable[[str, str, str], None]


@pytest.fixture
def policy_file(tmp_path: Path) -> Path:
    """Return a file with two policies."""
    path = tmp_path / "tunable.py"
    path.write_text(TUNABLE, encoding="utf-8")
    return path


@pytest.fixture
def put_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Return a function that installs a distribution with one executor entry point."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(distribution: str, point: str, extra: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{extra}"
        (info / "METADATA").write_text(metadata)
        (info / "entry_points.txt").write_text(f"[swingshift.executors]\n{point}\n")

    return put


def config(*overrides: str) -> RunConfig:
    """Return a small simulated run that lends GPUs."""
    source = Path(str(files("swingshift.executors.app") / SCENARIO))
    return load_config(read_mapping(source), ["rollout.total_rollout_steps=160", *overrides])


def refusal(error: type[UserError], call: Callable[[], object]) -> list[str]:
    """Return the lines with which a call is refused."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value).splitlines()


def test_names_lead_to_built_in_parts() -> None:
    """Entry points connect names and classes; nobody imports them by module."""
    assert isinstance(executor_adapter("simulated"), SimulatedAdapter)
    assert find_policy("default") is DefaultDynamicSchedulePolicy


def test_unknown_names_get_a_suggestion() -> None:
    """Whether asked for by name or by key, the nearest valid name is in the line."""
    with pytest.raises(UnknownNameError, match="unknown executor 'simulate'; did you mean 'simul"):
        executor_adapter("simulate")
    assert refusal(ConfigError, lambda: execute(config("executor.name=simulate"))) == [
        "executor.name: unknown executor 'simulate'; did you mean 'simulated'?; "
        "known: local, simulated"
    ]
    misspelt = config("async_training.dynamic_schedule_policy=fixd_ratio")
    (line,) = refusal(ConfigError, lambda: build_configured_policy(misspelt))
    assert line.startswith(
        "async_training.dynamic_schedule_policy: unknown policy 'fixd_ratio'; did you mean 'fixed_r"
    )


@pytest.mark.parametrize(
    ("extra", "remedy"),
    [
        ("Provides-Extra: far\n", "pip install 'faraway[far]'"),
        ("", "install what it needs"),
    ],
)
def test_executor_whose_engine_is_missing_says_what_to_install(
    put_executor: Put, extra: str, remedy: str
) -> None:
    """An extra of the executor's name is how a distribution ships an engine."""
    put_executor("faraway", "far = engine_not_installed.adapter:Adapter", extra)

    (line,) = refusal(UserError, lambda: executor_adapter("far"))
    assert "No module named 'engine_not_installed'" in line
    assert line.endswith(remedy)


def test_executor_name_claimed_twice_is_refused(put_executor: Put) -> None:
    """Which of two adapters runs is not left to the order of installation."""
    put_executor("imposter", "simulated = imposter:Adapter", "")

    (line,) = refusal(UserError, lambda: executor_adapter("simulated"))
    assert "two classes, imposter:Adapter and swingshift.executors.simulated.adapter" in line


def test_policy_gets_what_the_run_offers() -> None:
    """Ratio and topology come from their own keys; without the switch there is no policy."""
    policy = build_configured_policy(config("async_training.dynamic_schedule_deactivate_ratio=0.7"))
    assert isinstance(policy, DefaultDynamicSchedulePolicy)
    assert (policy.deactivate_ratio, policy.only_hybrid) == (0.7, False)

    static = config("async_training.use_dynamic_resource_scheduling=false")
    assert build_configured_policy(static, "default") is None


def test_policy_section_reaches_the_constructor(policy_file: Path) -> None:
    """Keys under policy are keyword arguments of whichever policy runs."""
    policy = build_configured_policy(config("policy.window=8"), f"{policy_file}:Tunable")

    assert policy is not None
    assert policy.state_attributes == ()
    assert vars(policy)["share"] == 0.5


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        ([], [NEEDS_WINDOW]),
        (
            ["policy.windw=3"],
            [
                "policy.windw: unknown key (value 3); policy Tunable takes no argument 'windw'; "
                "did you mean 'window'?; it takes: window",
                NEEDS_WINDOW,
            ],
        ),
        (
            ["policy.window=0"],
            ["policy.window: 0 is not allowed; policy Tunable expects an integer >= 1"],
        ),
        (
            ["policy.window=10"],
            [
                "policy: Tunable cannot be built with window=10: "
                "line 9: ZeroDivisionError: division by zero"
            ],
        ),
        (
            ["policy.window=3", "policy.deactivate_ratio=0.4"],
            [
                "policy.deactivate_ratio: 0.4 is not allowed; "
                "set async_training.dynamic_schedule_deactivate_ratio instead"
            ],
        ),
    ],
)
def test_policy_section_that_does_not_fit_is_refused(
    policy_file: Path, overrides: list[str], lines: list[str]
) -> None:
    """Every key is named with its value and what is allowed, a line each."""
    given = config(*overrides)

    assert refusal(
        ConfigError, lambda: build_configured_policy(given, f"{policy_file}:Tunable")
    ) == (lines)


def test_value_error_of_a_constructor_is_the_users(tmp_path: Path) -> None:
    """A plain ValueError keeps the policy author's words."""
    path = tmp_path / "picky.py"
    path.write_text(
        textwrap.dedent(
            """
            from swingshift.policies.static_fully_async import StaticFullyAsyncPolicy

            class Picky(StaticFullyAsyncPolicy):
                def __init__(self, mood="bad"):
                    raise ValueError(f"not in a {mood} mood")
            """
        )
    )
    (line,) = refusal(ConfigError, lambda: build_configured_policy(config(), f"{path}:Picky"))
    assert line == "policy Picky: not in a bad mood"


def test_run_ends_with_its_data_and_an_override_changes_it() -> None:
    """A whole run on the adapter's own loop, with events and metrics for whoever listens."""
    seen: list[Event] = []
    versions: list[int] = []

    class Events:
        def write(self, sequence: int, t_s: float, event: Event) -> None:
            seen.append(event)

    class Metrics:
        def log(self, step: int, metrics: object) -> None:
            versions.append(step)

    report = execute(config(), name="mine", event_sinks=(Events(),), metric_sinks=(Metrics(),))
    longer = execute(config("executor.lengths.mean_tokens=6000"))

    assert report.outcome is RunOutcome.EXHAUSTED
    assert report.trained_samples + report.unused_samples == 160
    assert isinstance(seen[0], RunStarted)
    assert seen[0].run == "mine"
    assert len(versions) == len(report.cycles)
    assert longer.wall_clock_s > report.wall_clock_s


def test_sections_of_the_executor_may_be_presets() -> None:
    """A name stands for a whole section, and a misspelt one gets a suggestion."""
    _, options = configured_executor(config("executor.gpu=H20", "executor.model=Qwen3.5-35B-A3B"))
    assert isinstance(options, SimulatedOptions)
    assert (options.gpu, options.model) == (H20, QWEN3_5_35B_A3B)

    misspelt = config("executor.gpu=H2O")
    assert refusal(ConfigError, lambda: configured_executor(misspelt)) == [
        "executor.gpu: 'H2O' is not allowed; expected a section of keys, or one of H20, H100, "
        "H200; did you mean 'H20'?"
    ]


def test_policy_in_a_file_replaces_the_configured_one(policy_file: Path) -> None:
    """On modelled time a policy that fails ends the run instead of being overruled."""
    with pytest.raises(PolicyError):
        execute(config(), policy=f"{policy_file}:Failing")


def test_executor_options_are_checked() -> None:
    """What stands below executor is the adapter's, and is refused as precisely as anything else."""
    given = config("executor.modl=3")
    (line,) = refusal(ConfigError, lambda: execute(given))
    assert line.startswith("executor.modl: unknown key (value 3); did you mean 'model'? allowed: m")


def test_a_deadline_is_explained_by_its_seconds_and_not_by_its_words() -> None:
    """Every key with that value is named; where none has it, the line says what took too long."""
    deadlines = RuntimeConfig(sync_deadline_s=5.0, request_deadline_s=5.0)
    error = UnexpectedDeadlineError("a replica named within 600 s", 5.0)
    assert explain_deadline(error, deadlines) == (
        f"{error}; raise runtime.sync_deadline_s or runtime.request_deadline_s"
    )
    assert explain_deadline(error, RuntimeConfig()) == str(error)
