"""The command ``check``: verdicts, a simulated run, exit statuses, a line for each mistake."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NoReturn

import attrs
import pytest
import typer
from typer.testing import CliRunner, Result

from swingshift.executors.app import check_session
from swingshift.executors.app.assembly import execute
from swingshift.executors.app.check import register
from swingshift.executors.app.cli import main
from swingshift.executors.app.commands import init
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk import registry
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.testing import CHECKS, LAW_NAMES, EventLogChecker, Violation, watchdog

POLICIES = """
import sys

from tests.sdk.policy_doubles import (
    EndsTheProgram, NeverComesBack, RaisesOnZeroSamples, SaysFalseForEver, SpecificationExample,
    UnboundedRatio, WaitsTooLong
)

class NeedsAWindow(SpecificationExample):
    def __init__(self, window: int, deactivate_ratio: float, only_hybrid: bool = False):
        super().__init__(deactivate_ratio, only_hybrid)

class EndsWhenBuilt(SpecificationExample):
    def __init__(self):
        sys.exit(7)

class NoPolicy: ...
"""


@pytest.fixture
def policies(tmp_path: Path) -> str:
    """Return a file with policies, sound and other."""
    path = tmp_path / "policies.py"
    path.write_text(POLICIES)
    return str(path)


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    """Return an application with this command alone, and one that makes it a group."""
    made = typer.Typer()
    register(made)
    made.command()(init)
    return made


def check(app: typer.Typer, *arguments: str, columns: int = 80) -> Result:
    """Run the command."""
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, ["check", *arguments])


def words(result: Result) -> str:
    """Return the output without its line breaks."""
    return " ".join(result.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "fixed_ratio", "static_fully_async"])
def test_built_in_policies_pass(app: typer.Typer, name: str) -> None:
    """With each law by name, and how a run of them ended."""
    result = check(app, name, "--examples", "8")

    assert result.exit_code == 0, result.output
    for law in LAW_NAMES:
        assert f"holds     {law}: " in result.stdout
    assert "holds     simulated run: 640 samples trained in 10 cycles, in " in result.stdout
    assert "keeps the policy contract, and its run went well." in words(result)
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_policy_of_the_specification_passes(app: typer.Typer, policies: str) -> None:
    """As it stands there; arguments are those that a run offers."""
    result = check(app, f"{policies}:SpecificationExample", "--examples", "8")

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"SpecificationExample  {policies}:SpecificationExample\n")


def test_what_init_writes_passes(
    app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of whoever starts from it."""
    monkeypatch.setattr(registry, "_decorated", dict(registry._decorated))
    assert CliRunner().invoke(app, ["init", str(tmp_path / "study")]).exit_code == 0
    result = check(app, f"{tmp_path}/study/my_policy.py:MyPolicy", "--examples", "8")

    assert result.exit_code == 0, result.output


@pytest.mark.slow
def test_a_broken_law_is_shown_with_its_smallest_history(app: typer.Typer, policies: str) -> None:
    """And the others with it: nothing stops at the first fault."""
    result = check(app, f"{policies}:UnboundedRatio", "--examples", "40", "--no-run")

    assert result.exit_code == 1
    assert "VIOLATED no_wind_up: after a calm of up to 200 cycles" in words(result)
    assert "at start-up the wait is 32 (allowed 0..64); 55 cycles without waits" in words(result)
    assert "smallest history: 16 samples x 4 collections per cycle: start-up" in words(result)
    assert "holds liveness" in words(result)
    assert words(result).endswith("UnboundedRatio breaks 1 of the 8 laws of the policy contract.")
    assert "simulated run" not in result.stdout


def test_a_policy_that_fails_in_the_run_is_told_where(app: typer.Typer, policies: str) -> None:
    """The question, the error and the version."""
    result = check(app, f"{policies}:RaisesOnZeroSamples", "--examples", "4")

    assert result.exit_code == 1
    assert (
        "VIOLATED simulated run: 640 samples on a simulated cluster it ended:"
        " RaisesOnZeroSamples.should_activate_after_step raised ZeroDivisionError"
    ) in words(result)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        (("request_deadline_s=0.5",), "runtime.request_deadline_s"),
        (
            ("switch_step_deadline_s=0.25", "sync_deadline_s=0.25"),
            "runtime.switch_step_deadline_s or runtime.sync_deadline_s",
        ),
    ],
)
def test_a_deadline_that_expires_in_the_run_is_one_line(
    app: typer.Typer, changes: tuple[str, ...], keys: str
) -> None:
    """What took too long, and the keys to raise; the laws have been judged all the same."""
    overrides = (f"runtime.{change}" for change in changes)
    result = check(app, "default", "--examples", "1", *overrides, columns=400)

    assert result.exit_code == 1
    (line,) = (line for line in result.stdout.splitlines() if "it ended: " in line)
    assert " s, and no fault was injected; raise " in line
    assert line.endswith(f"; raise {keys}")
    assert result.stdout.endswith("keeps the policy contract, and its run went wrong.\n")
    assert result.stderr == ""


def test_a_run_that_fails_fails_the_check(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a policy that keeps every law."""

    def fail(config: RunConfig, **arguments: object) -> RunReport:
        report = execute(config)
        return attrs.evolve(report, outcome=RunOutcome.FAILED, reason="no replica serves")

    monkeypatch.setattr(check_session, "execute", fail)
    result = check(app, "default", "--examples", "1", "rollout.total_rollout_steps=64")

    assert result.exit_code == 1
    assert "VIOLATED simulated run: 64 samples trained in 1 cycles, in" in words(result)
    assert "it failed: no replica serves" in words(result)
    assert words(result).endswith("keeps the policy contract, and its run went wrong.")


def test_what_the_event_log_shows_fails_the_check(
    app: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run can end well and have broken a promise on the way."""
    found = Violation(check="samples", sequence=7, t_s=2.5, text="sample 3 is trained twice")
    monkeypatch.setattr(EventLogChecker, "violations", lambda _: (found, found))
    result = check(app, "default", "--examples", "1", "rollout.total_rollout_steps=64")

    assert result.exit_code == 1
    assert f"its event log breaks 1 of {len(CHECKS)} checks" in words(result)
    assert "samples: at event 7 (2.5 s): sample 3 is trained twice" in words(result)


def test_an_interrupt_ends_it_at_once(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the status that shells expect."""

    def interrupt(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(check_session, "check_policy", interrupt)
    result = check(app, "default")

    assert result.exit_code == 130
    assert result.stderr.endswith("interrupted\n")


def test_a_run_without_a_policy_is_refused(app: typer.Typer) -> None:
    """There would be nobody to ask."""
    result = check(app, "default", "async_training.use_dynamic_resource_scheduling=false")

    assert isinstance(result.exception, ConfigError)
    assert "without it no policy is asked: leave the key out" in str(result.exception)


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ("defalt", "unknown policy 'defalt'; did you mean 'default'?; known: default, fixed_ratio"),
        ("{broken}:Mine", "policy file {broken} does not import: line 2: NameError: name 'Base'"),
        ("{file}:NoPolicy", "policy {file}:NoPolicy: expected a subclass of DynamicSchedulePolicy"),
        ("{file}:Nobody", "policy file {file} has no class 'Nobody'; policies in it: NeedsAWindow"),
        (
            "{file}:NeedsAWindow",
            "policy.window: missing; policy NeedsAWindow needs the argument window (int):"
            " set policy.window, or give it a default",
        ),
        (
            "{file}:EndsWhenBuilt",
            "no policy can be built: the constructor raised SystemExit: 7; it must not end the",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(
    policies: str,
    policy: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was given, what is allowed, what to do; and nothing is judged."""
    broken = Path(policies).with_name("broken.py")
    broken.write_text("\nclass Mine(Base): ...\n")
    places = {"file": policies, "broken": str(broken)}
    monkeypatch.setattr(sys, "argv", ["swingshift", "check", policy.format(**places)])
    with pytest.raises(SystemExit) as ended:
        main()

    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert shown.out == ""
    assert shown.err.startswith(f"error: {problem.format(**places)}")
    assert shown.err.count("\n") == 1


def test_arguments_of_the_policy_can_be_given(app: typer.Typer, policies: str) -> None:
    """In the words of a configuration."""
    reference = f"{policies}:NeedsAWindow"
    result = check(app, reference, "policy.window=3", "--examples", "2", "--no-run")

    assert result.exit_code == 0, result.output


def test_the_seed_selects_what_is_drawn(app: typer.Typer, policies: str) -> None:
    """One seed gives one output."""
    arguments = (f"{policies}:WaitsTooLong", "--examples", "5", "--no-run", "--seed")
    first, again, other = (check(app, *arguments, seed).stdout for seed in ("3", "3", "4"))

    assert first == again
    assert "seed 3" in first
    assert first.replace("seed 3", "seed 4").split("\n")[1] == other.split("\n")[1]


def test_a_policy_is_needed_and_help_shows_an_example(app: typer.Typer) -> None:
    """Whoever tries the command learns how it is used."""
    assert check(app).exit_code == 2
    assert check(app, "default", "--examples", "0").exit_code == 2
    assert "swingshift check my_study/my_policy.py:MyPolicy" in check(app, "--help").stdout


def test_a_policy_that_ends_the_program_breaks_a_law(app: typer.Typer, policies: str) -> None:
    """The check goes on to the end, and its status is its own."""
    result = check(app, f"{policies}:EndsTheProgram", "--examples", "2")

    assert result.exit_code == 1
    assert "at start-up should_activate_after_step raised SystemExit: 0" in words(result)
    assert "it ended: the policy raised SystemExit: 0" in words(result)
    assert words(result).endswith("EndsTheProgram breaks 1 of the 8 laws of the policy contract.")


def test_a_policy_that_never_comes_back_is_ended(
    app: typer.Typer, policies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the laws and in the run, with the line that it was at."""
    monkeypatch.setattr(watchdog, "LIMIT_S", 0.05)
    monkeypatch.setattr(check_session, "_LIMIT_S", 0.5)
    result = check(app, f"{policies}:NeverComesBack", "--examples", "40")

    assert result.exit_code == 1
    assert "deactivate_wait_samples took more than 0.05 s of computing and was ended" in words(
        result
    )
    assert "it ended: what follows an event took more than 0.5 s of computing" in words(result)
    assert " of policy_doubles.py" in words(result)
