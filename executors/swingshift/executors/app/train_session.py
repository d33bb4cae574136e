"""One training run from start to end: its folder, its files, what is shown of it, how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import attrs
import yaml  # type: ignore[import-untyped]
from rich.console import Console

from swingshift.executors.app.assembly import (
    build_configured_policy,
    configured_executor,
    execute,
    explain_deadline,
)
from swingshift.executors.app.configuration import dump_config, dump_section
from swingshift.executors.app.interrupts import INTERRUPTED_STATUS, Interrupts
from swingshift.executors.app.live_view import LiveView
from swingshift.executors.app.metric_files import MetricFiles
from swingshift.executors.app.plain_view import PlainView
from swingshift.executors.app.run_directory import RunDirectory, make_run_directory
from swingshift.executors.app.run_log import RunLogWriter
from swingshift.executors.app.run_tally import RunTally
from swingshift.executors.app.train_config import TrainingPlan
from swingshift.executors.app.train_summary import Ending, print_summary, summarise, to_json
from swingshift.executors.runtime.adapter import SavesModel
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import SwingshiftError, UserError
from swingshift.sdk.executor import Executor

_LOG_SEGMENT_BYTES = 256 << 20
_STATUSES = {"exhausted": 0, "failed": 1, "interrupted": INTERRUPTED_STATUS}
_log = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Showing:
    """How a run is shown.

    Attributes:
        console: Where.
        is_live: Whether a view of it is kept up to date; otherwise there are lines.
        is_quiet: Whether the summary is all that is shown.
    """

    console: Console
    is_live: bool
    is_quiet: bool


class TrainSession:
    """A run that was asked for, on its way from a plan to a summary."""

    def __init__(
        self, plan: TrainingPlan, *, policy: str | None, out: Path | None, showing: Showing
    ) -> None:
        """Check everything that can be checked before the run; then make its folder.

        Args:
            plan: What to run.
            policy: A registered name or ``file.py:Class``, in place of the configured policy.
            out: The run's folder, new or empty; None for one with a number.
            showing: How the run is shown.

        Raises:
            UserError: The executor, its options, the policy or the folder cannot be used.
        """
        config = self._config = plan.config
        _, options = configured_executor(config)
        build_configured_policy(config, policy)
        self._policy = policy
        self._showing = showing
        self._directory = make_run_directory(plan.name, out)
        self._directory.config.write_text(
            _resolved(config, options, policy, self._directory), encoding="utf-8"
        )

    def run(self) -> int:
        """Run it, show and write what it came to.

        Returns:
            The exit status: 0 where the data was exhausted, 1 where the run failed or its model
            could not be saved, 130 where it was interrupted.

        Raises:
            UserError: The executor refused the configuration. Nothing of the run is left.
        """
        directory = self._directory
        try:
            with _messages_to(directory.messages):
                ending = self._run()
        except UserError:
            directory.discard()
            raise
        is_unsaved = ending.outcome == "exhausted" and ending.model == "not saved"
        return 1 if is_unsaved else _STATUSES[ending.outcome]

    def _run(self) -> Ending:
        directory = self._directory
        tally = RunTally()
        view = self._view(tally)
        interrupts = Interrupts(
            on_first=lambda: view.announce(
                "interrupted: the run ends in order; once more to leave at once"
            ),
            before_leaving=view.leave,
        )
        with ExitStack() as stack:
            stack.enter_context(interrupts)
            log = stack.enter_context(RunLogWriter(directory.run_log, max_bytes=_LOG_SEGMENT_BYTES))
            files = stack.enter_context(MetricFiles(directory))
            tally.on_row = files.write
            attendance = _Attendance(tally, interrupts, directory)
            with view:
                view.announce(f"{directory.name}: files go to {directory.path}")
                ending = self._drive([log, tally, view], attendance)
            summary = summarise(
                tally,
                ending,
                directory,
                executor=self._config.executor.name,
                has_tensorboard=files.has_tensorboard,
            )
            directory.summary.write_text(to_json(summary), encoding="utf-8")
        print_summary(summary, self._showing.console)
        return ending

    def _view(self, tally: RunTally) -> LiveView | PlainView:
        showing = self._showing
        if showing.is_live and not showing.is_quiet:
            return LiveView(self._directory.name, tally, showing.console)
        return PlainView(tally, showing.console, is_quiet=showing.is_quiet)

    def _drive(
        self, sinks: list[RunLogWriter | RunTally | LiveView | PlainView], attendance: _Attendance
    ) -> Ending:
        """Run it to whatever end.

        Raises:
            UserError: The executor refused the configuration.
        """
        name, reason = self._directory.name, ""
        outcome = RunOutcome.FAILED
        try:
            report = execute(
                self._config,
                policy=self._policy,
                name=name,
                event_sinks=sinks,
                attendant=attendance,
            )
            outcome, reason = report.outcome, report.reason
        except asyncio.CancelledError:
            if not attendance.is_interrupted:
                raise
        except Exception as error:
            if isinstance(error, UserError) and not attendance.has_begun:
                raise
            reason = self._words(error)
            _log.error("run %s failed: %s", name, reason, exc_info=error)
        if outcome is RunOutcome.FAILED and attendance.is_interrupted:
            return Ending(
                outcome="interrupted", reason=attendance.signal_name, model=attendance.model
            )
        return Ending(outcome=outcome.value, reason=reason, model=attendance.model)

    def _words(self, error: Exception) -> str:
        if isinstance(error, UnexpectedDeadlineError):
            return explain_deadline(error, self._config.runtime)
        if isinstance(error, SwingshiftError):
            return str(error)
        return f"{type(error).__name__}: {error}"


class _Attendance:
    """What is done with the executor beside the run: see `Attendant`.

    Attributes:
        model: What became of the model, see `Ending`.
    """

    def __init__(self, tally: RunTally, interrupts: Interrupts, directory: RunDirectory) -> None:
        self._tally = tally
        self._interrupts = interrupts
        self._directory = directory
        self.model = ""

    @property
    def has_begun(self) -> bool:
        """Whether the run's first event has come."""
        return self._tally.started is not None

    @property
    def is_interrupted(self) -> bool:
        """Whether a signal ended the run."""
        return self._interrupts.has_cancelled

    @property
    def signal_name(self) -> str:
        """Name of the signal; empty without one."""
        received = self._interrupts.received
        return "" if received is None else received.name

    def begin(self, executor: Executor) -> None:
        """Note what kind of time the executor has, and whom a signal cancels."""
        self._tally.is_simulated = executor.capabilities.virtual_time
        task = asyncio.current_task()
        if task is not None:
            self._interrupts.cancel_on_signal(task)

    async def end(self, executor: Executor) -> None:
        """Save the model, where the executor can."""
        # what was trained is not lost to a signal that comes now
        self._interrupts.hold()
        if isinstance(executor, SavesModel):
            self.model, self._tally.phase = "not saved", "saving the model"
            await executor.save(self._directory.model)
            self.model = "saved"
        self._tally.phase = "stopping"


class _OneLine(logging.Formatter):
    """Leave tracebacks to the file."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}"


@contextmanager
def _messages_to(path: Path) -> Iterator[None]:
    """Write warnings and errors to a file in full; to the terminal a line each, but for debugging.

    The file is made by the first of them.
    """
    root = logging.getLogger()
    file = logging.FileHandler(path, encoding="utf-8", delay=True)
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    short = _OneLine()
    handlers = () if _log.isEnabledFor(logging.DEBUG) else tuple(root.handlers)
    before = [(handler, handler.formatter) for handler in handlers]
    for handler in handlers:
        handler.setFormatter(short)
    root.addHandler(file)
    try:
        yield
    finally:
        root.removeHandler(file)
        file.close()
        for handler, formatter in before:
            handler.setFormatter(formatter)


def _resolved(
    config: RunConfig, options: object, policy: str | None, directory: RunDirectory
) -> str:
    """Return the configuration that runs the same again, every key written."""
    mapping = dump_config(config)
    mapping["executor"] = {"name": config.executor.name, **dump_section(options)}
    if policy is not None:
        training = attrs.evolve(config.async_training, dynamic_schedule_policy=policy)
        mapping["async_training"] = attrs.asdict(training)
    text: str = yaml.safe_dump(mapping, sort_keys=False, allow_unicode=True)
    return f"# Run it again: swingshift train {directory.config}\n{text}"
