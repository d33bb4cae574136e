"""The command line: exit statuses, one line per problem, plug-ins that may be broken."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swingshift.executors.app import cli

PLUGIN = """
import logging
import os
import signal
from pathlib import Path

import typer

from swingshift.executors.app.assembly import execute
from swingshift.executors.app.configuration import load_config


def register(app):
    @app.command()
    def rehearse(file: Path, overrides: list[str]) -> None:
        print(execute(load_config(file, overrides)).outcome)

    @app.command()
    def crash() -> None:
        logging.getLogger("swingshift.plugin").debug("about to crash")
        raise RuntimeError("a fault")

    @app.command()
    def hang() -> None:
        # a process that was started in the background ignores it otherwise
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)

    @app.command()
    def count(times: int = typer.Option(1, min=1, help="How often.")) -> int:
        return times

    @app.command()
    def leave(how: str) -> None:
        raise {"exit": typer.Exit(7), "abort": typer.Abort()}[how]


def broken(app):
    raise RuntimeError("of no use")
"""

Swingshift = Callable[..., "Outcome"]


class Outcome:
    """What a command came to."""

    def __init__(self, status: object, out: str, err: str) -> None:
        self.status = status or 0
        self.out = out
        self.errors = err.splitlines()


@pytest.fixture
def swingshift(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Swingshift]:
    """Return a function that runs the command in this process, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["swingshift", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Outcome(end.value.code, *capsys.readouterr())

    yield run
    logging.getLogger("swingshift").setLevel(logging.NOTSET)


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs the plug-in with some of its entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rehearsal.py").write_text(PLUGIN, encoding="utf-8")

    def install(**points: str) -> None:
        info = tmp_path / "rehearsal-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rehearsal\nVersion: 1.0\n")
        lines = [f"{name} = rehearsal:{value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[swingshift.commands]", *lines, ""]))

    return install


@pytest.fixture
def scenario(tmp_path: Path, swingshift: Swingshift) -> Path:
    """Return a small scenario file."""
    assert swingshift("init", tmp_path / "study").status == 0
    return tmp_path / "study" / "scenario.yaml"


def test_help_names_every_command_and_an_example(swingshift: Swingshift) -> None:
    """Without arguments, too: what there is, and a line to copy."""
    shown = swingshift("--help")

    assert shown.status == 0
    assert all(name in shown.out for name in ("policies", "init", "--version", "Example:"))
    assert swingshift().out.split() == shown.out.split()
    assert all("Example: " in swingshift(name, "--help").out for name in ("policies", "init"))


def test_version_is_that_of_the_distribution(swingshift: Swingshift) -> None:
    """One line, for bug reports."""
    assert swingshift("--version").out.startswith("swingshift 0.")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("polices",), "unknown command 'polices'; did you mean 'policies'?; known: "),
        (("--debgu", "policies"), "unknown option '--debgu'; did you mean '--debug'?; known: "),
        (("count", "--time", "3"), "unknown option '--time'; did you mean '--times'?; known: "),
        (("count", "-x"), "unknown option '-x'; known: --help, --times, -h"),
        (("count", "--times", "x"), "--times: 'x' is not allowed; expected a valid integer; see "),
        (("count", "--times", "0"), "--times: '0' is not allowed; expected a number greater than"),
        (("count", "--times"), "option '--times' requires an argument"),
        (("init",), "DIR: missing (where; made if missing); see swingshift init --help"),
        (("init", "a", "b"), "got unexpected extra argument"),
    ],
)
def test_misused_command_line_is_one_line_and_status_2(
    swingshift: Swingshift,
    plugins: Callable[..., None],
    arguments: tuple[str, ...],
    line: str,
) -> None:
    """It names what was given, what is allowed and the nearest valid name, as every other error."""
    plugins(rehearsal="register")
    refused = swingshift(*arguments)

    assert (refused.status, refused.out) == (2, "")
    assert len(refused.errors) == 1
    assert refused.errors[0].startswith(f"error: {line}")


@pytest.mark.parametrize(
    ("arguments", "status", "errors"),
    [
        (("count", "--times", "3"), 3, []),
        (("leave", "exit"), 7, []),
        (("leave", "abort"), 1, ["aborted"]),
    ],
)
def test_a_command_chooses_its_status(
    swingshift: Swingshift,
    plugins: Callable[..., None],
    arguments: tuple[str, ...],
    status: int,
    errors: list[str],
) -> None:
    """By what it returns, or by typer's own exceptions."""
    plugins(rehearsal="register")
    ended = swingshift(*arguments)

    assert (ended.status, ended.errors) == (status, errors)


def test_broken_plugins_cost_one_line_each_and_nothing_else(
    swingshift: Swingshift, plugins: Callable[..., None]
) -> None:
    """Neither a function that fails nor one that is missing takes other commands with it."""
    plugins(aaa="broken", bbb="absent", rehearsal="register")
    shown = swingshift("--help")

    assert shown.status == 0
    assert "rehearse" in shown.out
    assert shown.errors[:1] == ["warning: command 'aaa' is left out: RuntimeError: of no use"]
    assert shown.errors[1].startswith("warning: command 'bbb' is left out: AttributeError: ")


@pytest.mark.parametrize(
    ("override", "line"),
    [
        (
            "async_training.staleness_treshold=0.5",
            "async_training.staleness_treshold: unknown key (value 0.5); did you mean 'staleness_t",
        ),
        ("trainer.nnodes=two", "trainer.nnodes: 'two' is not allowed; expected an integer"),
        (
            "rollout.total_rollout_steps=-3",
            "rollout.total_rollout_steps: -3 is not allowed; expected an integer >= 1",
        ),
        (
            "async_training.staleness_threshold=.nan",
            "async_training.staleness_threshold: nan is not allowed; expected a finite number >= 0",
        ),
        (
            "async_training.dynamic_schedule_deactivate_ratio=1.7",
            "async_training.dynamic_schedule_deactivate_ratio: 1.7 is not allowed; expected a fini",
        ),
        (
            "async_training.dynamic_schedule_policy=defualt",
            "async_training.dynamic_schedule_policy: unknown policy 'defualt'; did you mean 'defau",
        ),
        (
            "policy.window=3",
            "policy.window: unknown key (value 3); policy DefaultDynamicSchedulePo",
        ),
        ("executor.lengths.mean_tokens=x", "executor.lengths.mean_tokens: 'x' is not allowed; exp"),
    ],
)
def test_what_the_user_wrote_wrong_is_one_line_and_status_2(
    swingshift: Swingshift,
    plugins: Callable[..., None],
    scenario: Path,
    override: str,
    line: str,
) -> None:
    """The line names key, value, what is allowed and the nearest valid name."""
    plugins(rehearsal="register")
    refused = swingshift("rehearse", scenario, override)

    assert refused.status == 2
    assert len(refused.errors) == 1
    assert refused.errors[0].startswith(f"error: {line}")


def test_every_problem_has_a_line_of_its_own(
    swingshift: Swingshift, plugins: Callable[..., None], scenario: Path
) -> None:
    """Several mistakes are told at once."""
    plugins(rehearsal="register")
    refused = swingshift("rehearse", scenario, "seed=-1", "trainer.nodes=2")

    assert [line.split(":")[1] for line in refused.errors] == [" trainer.nodes", " seed"]
    assert swingshift("rehearse", scenario, "rollout.total_rollout_steps=64").out == "exhausted\n"


def test_debug_shows_where_an_error_came_from(
    monkeypatch: pytest.MonkeyPatch, plugins: Callable[..., None], swingshift: Swingshift
) -> None:
    """For whoever writes a plug-in: the exception itself instead of its line."""
    monkeypatch.setattr(sys, "argv", ["swingshift", "--debug", "init", os.devnull])

    with pytest.raises(Exception, match=r"cannot write /dev/null"):
        cli.main()


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command as a user does, with the plug-in on its path."""
    return subprocess.run(
        [Path(sys.executable).with_name("swingshift"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )


def test_fault_keeps_its_traceback_and_an_interrupt_its_status(
    plugins: Callable[..., None], tmp_path: Path
) -> None:
    """Status 1 says that the program is wrong, 130 that the user stopped it."""
    plugins(rehearsal="register")
    crashed = run_alone(tmp_path, "--debug", "crash")
    interrupted = run_alone(tmp_path, "hang")

    assert crashed.returncode == 1
    assert crashed.stderr.startswith("debug: about to crash\nTraceback (most recent call last):")
    assert crashed.stderr.endswith("\nRuntimeError: a fault\n")
    assert (interrupted.returncode, interrupted.stderr) == (130, "")


def test_warnings_of_a_configuration_are_lines_on_stderr(
    plugins: Callable[..., None], scenario: Path, tmp_path: Path
) -> None:
    """A key that has no effect is said, and the run goes on."""
    plugins(rehearsal="register")
    done = run_alone(tmp_path, "rehearse", str(scenario), "trainer.project_name=x", "policy=null")

    assert done.returncode == 0
    assert done.stdout == "exhausted\n"
    assert done.stderr.startswith("warning: ")
    assert "trainer.project_name" in done.stderr
    assert len(done.stderr.splitlines()) == 1
