"""One check of a policy from start to end: judge each law, run it once, show what came of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.resources import as_file, files

from rich.console import Console
from rich.text import Text

from swingshift.executors.app.assembly import (
    configured_policy_factory,
    execute,
    explain_deadline,
)
from swingshift.executors.app.configuration import load_config
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig
from swingshift.sdk.decision import ACTIVATE
from swingshift.sdk.errors import ConfigError, PolicyError
from swingshift.sdk.events import Event, PolicyDecided
from swingshift.sdk.testing import (
    CHECKS,
    LAW_NAMES,
    CheckResult,
    EventLogChecker,
    Verdict,
    check_policy,
)
from swingshift.sdk.testing.policy_check import new_policy
from swingshift.sdk.testing.watchdog import StuckError, restart, watchdog, within_limit

_SCENARIO = ("templates", "scenario.yaml.template")
_RUN = "simulated run"
_RUN_SAMPLES = 640
_SHOWN_VIOLATIONS = 5
_LIMIT_S = 5.0
_LABEL_WIDTH = max(len(verdict.value) for verdict in (Verdict.HOLDS, Verdict.VIOLATED))
_STYLES = {Verdict.HOLDS: "green", Verdict.VIOLATED: "bold red"}


class CheckSession:
    """A policy, and the terminal that its verdicts are shown in."""

    def __init__(
        self,
        policy: str,
        overrides: Sequence[str],
        *,
        seed: int,
        examples: int,
        screen: Console,
        status: Console,
    ) -> None:
        """Find the policy; nothing is judged yet.

        Args:
            policy: A registered name or ``file.py:Class``.
            overrides: ``key=value`` each, for the policy's arguments and the run.
            seed: Selects what is drawn, for the laws and in the run.
            examples: Histories drawn for each law.
            screen: Shows verdicts, each as soon as it is there.
            status: Shows what goes on, where it is a terminal.

        Raises:
            UserError: There is no such policy, or it cannot be built.
        """
        self._name = policy
        self._config = _scenario([*overrides, f"seed={seed}"])
        self._factory = configured_policy_factory(self._config, policy)
        self._class_name = type(new_policy(self._factory)).__name__
        self._seed = seed
        self._examples = examples
        self._screen = screen
        self._status = status

    def run(self, *, with_run: bool) -> bool:
        """Judge the policy and say what came of it.

        Args:
            with_run: Whether it also has to go through a simulated run.

        Returns:
            Whether it keeps every law, and its run went well.
        """
        # not wrapped: whoever copies the reference gets it in one piece
        head = Text.assemble((self._class_name, "bold"), f"  {self._name}")
        self._screen.print(head, soft_wrap=True)
        drawn = f"{self._examples} histories drawn for each law, seed {self._seed}\n"
        self._screen.print(Text(drawn, style="dim"))
        broken = sum(self._judge(number, name) for number, name in enumerate(LAW_NAMES, 1))
        faults = self._simulate() if with_run else 0
        if broken:
            words = f"breaks {broken} of the {len(LAW_NAMES)} laws of the policy contract"
        elif faults:
            words = "keeps the policy contract, and its run went wrong"
        else:
            proof = ", and its run went well" if with_run else ""
            words = f"keeps the policy contract{proof}"
        style = "bold red" if broken or faults else "bold green"
        self._screen.print(Text(f"\n{self._class_name} {words}.", style=style))
        return not broken and not faults

    def _judge(self, number: int, law: str) -> bool:
        """Judge one law, show the verdict, and return whether it is broken."""
        with self._status.status(f"judging {law} ({number} of {len(LAW_NAMES)})"):
            report = check_policy(
                self._factory, laws=[law], max_examples=self._examples, seed=self._seed
            )
        (result,) = report.results
        self._show(result)
        return result.is_violation

    def _simulate(self) -> int:
        """Run the policy once, show how it ended, and return how much went wrong."""
        checker, lends = EventLogChecker(), _Lends()
        samples = self._config.rollout.total_rollout_steps
        words, faults = f"{samples} samples on a simulated cluster", tuple[str, ...]()
        # a log that ends where the run broke off is not judged
        try:
            status = self._status.status(f"running it on a simulated cluster, {samples} samples")
            with status, watchdog():
                report = within_limit(
                    "what follows an event",
                    partial(
                        execute,
                        self._config,
                        policy=self._name,
                        name="check",
                        event_sinks=[checker, lends],
                    ),
                    _LIMIT_S,
                )
        except (PolicyError, StuckError) as error:
            faults = (f"it ended: {error}",)
        except SystemExit as error:
            faults = (f"it ended: the policy raised SystemExit: {error}",)
        except UnexpectedDeadlineError as error:
            faults = (f"it ended: {explain_deadline(error, self._config.runtime)}",)
        else:
            words, faults = _words(report, lends.count), tuple(_faults(report, checker))
        breach = ("\n".join(faults), "") if faults else None
        self._show(CheckResult.of(_RUN, words, breach, excuse=""))
        return len(faults)

    def _show(self, result: CheckResult) -> None:
        label = result.verdict.value.ljust(_LABEL_WIDTH + 2)
        told = [f"{result.check}: {result.promise}", *result.message.splitlines()]
        if result.example:
            told.append(f"smallest history: {result.example}")
        width = self._screen.width - len(label)
        lines = [line for words in told for line in textwrap.wrap(words, width)]
        text = Text(textwrap.indent("\n".join(lines), " " * len(label))[len(label) :])
        text.stylize("bold", 0, len(result.check))
        self._screen.print(Text(label, style=_STYLES[result.verdict]), text, sep="")


class _Lends:
    """An event sink that counts how often GPUs were lent, and shows that the run goes on."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        restart(_LIMIT_S)
        if isinstance(event, PolicyDecided) and event.question == ACTIVATE.name:
            self.count += bool(event.effective)


def _scenario(overrides: Sequence[str]) -> RunConfig:
    """Return the small cluster that ``swingshift init`` describes.

    Raises:
        ConfigError: An override cannot be used, or there would be nobody to ask.
    """
    source = files("swingshift.executors.app").joinpath(*_SCENARIO)
    with as_file(source) as path:
        config = load_config(path, [f"rollout.total_rollout_steps={_RUN_SAMPLES}", *overrides])
    if not config.async_training.use_dynamic_resource_scheduling:
        raise ConfigError(
            "async_training.use_dynamic_resource_scheduling: false is not allowed; without it no"
            " policy is asked: leave the key out"
        )
    return config


def _words(report: RunReport, lends: int) -> str:
    return (
        f"{report.trained_samples} samples trained in {len(report.cycles)} cycles, in"
        f" {report.wall_clock_s:,.0f} s of simulated time; GPUs were lent {lends} times"
    )


def _faults(report: RunReport, checker: EventLogChecker) -> Iterator[str]:
    if report.outcome is RunOutcome.FAILED:
        yield f"it failed: {report.reason}"
    violations = checker.violations()
    if violations:
        yield f"its event log breaks {len({v.check for v in violations})} of {len(CHECKS)} checks"
        yield from map(str, violations[:_SHOWN_VIOLATIONS])
