"""One benchmark from start to end: run, show, write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import attrs
from rich.console import Console
from rich.text import Text

from swingshift.benchmarks.document import result_document, to_json
from swingshift.benchmarks.progress import showing_progress
from swingshift.benchmarks.report import write_report
from swingshift.benchmarks.result import BenchmarkResult, jobs_of, summarise
from swingshift.benchmarks.runner import Job, JobFailure, run_jobs
from swingshift.benchmarks.scenario import Scenario
from swingshift.benchmarks.sensitivity import Sensitivity, study_sensitivity
from swingshift.benchmarks.tables import (
    runs_table,
    scenario_line,
    sensitivity_table,
    to_rich,
    verdicts_table,
)
from swingshift.executors.runtime.run import RunReport
from swingshift.sdk.errors import UserError


@attrs.frozen(kw_only=True)
class Outputs:
    """Where results go besides the terminal; None for nowhere.

    Attributes:
        json_file: File for the machine-readable result.
        report: Folder for the report.
        logs: Folder for the run logs.
    """

    json_file: Path | None = None
    report: Path | None = None
    logs: Path | None = None

    def prepare(self) -> None:
        """Make the folders, before time is spent on results that could not be written.

        Raises:
            UserError: A place cannot be written to.
        """
        for option, folder in (("--out", self.report), ("--log", self.logs)):
            if folder is not None:
                with _writing(option, folder):
                    folder.mkdir(parents=True, exist_ok=True)
                    with TemporaryFile(dir=folder):
                        pass
        if self.json_file is not None:
            with _writing("--json", self.json_file):
                self.json_file.parent.mkdir(parents=True, exist_ok=True)
                is_new = not self.json_file.exists()
                with self.json_file.open("a"):
                    pass
                if is_new:
                    self.json_file.unlink()


@contextmanager
def _writing(option: str, path: Path) -> Iterator[None]:
    """Turn the refusal of the system to write somewhere into one that names the option."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{option} {path}: cannot be written: {error.strerror or error}; name another place"
        ) from error


class Session:
    """A scenario, where its results go, and the terminal they are shown in."""

    def __init__(
        self,
        scenario: Scenario,
        outputs: Outputs,
        *,
        screen: Console,
        status: Console,
        workers: int | None = None,
    ) -> None:
        """Bind the parts; nothing happens yet.

        Args:
            scenario: What to run.
            outputs: Where results go.
            screen: Shows results.
            status: Shows progress and failures.
            workers: Processes; None for one per core.
        """
        self._scenario = scenario
        self._outputs = outputs
        self._screen = screen
        self._status = status
        self._workers = workers

    def run(self) -> bool:
        """Run the scenario, show and write what it comes to.

        Returns:
            Whether every run ended well and, where the scenario ran in full and as it is written,
            everything that it expects holds.

        Raises:
            UserError: The configuration or the policy was refused by the executor.
        """
        scenario = self._scenario
        self._say(scenario.name, style="bold")
        self._say(scenario.section.description)
        self._say(scenario_line(scenario))
        reports = self._run_jobs(jobs_of(scenario, logs=self._outputs.logs))
        if reports is None:
            return False
        result = summarise(scenario, reports)
        self._screen.print(to_rich(runs_table(result)))
        if result.verdicts:
            self._screen.print(to_rich(verdicts_table(result)))
        outputs = self._outputs
        if outputs.json_file is not None:
            with _writing("--json", outputs.json_file):
                outputs.json_file.write_text(to_json(result_document(result)), encoding="utf-8")
        study, is_studied = self._study()
        if outputs.report is not None:
            with _writing("--out", outputs.report):
                summary, *_ = write_report(result, study, outputs.report)
            self._say(f"The report is {summary}.")
        return self._conclude(result) and is_studied

    def _run_jobs(self, jobs: Sequence[Job]) -> tuple[RunReport, ...] | None:
        with showing_progress(self._status, "running") as tell:
            results = run_jobs(jobs, workers=self._workers, on_progress=tell)
        failures = [result for result in results if isinstance(result, JobFailure)]
        self._explain(failures)
        if failures:
            return None
        return tuple(result for result in results if not isinstance(result, JobFailure))

    def _explain(self, failures: Sequence[JobFailure]) -> None:
        refused = {failure.reason: None for failure in failures if failure.is_user_error}
        if refused:
            raise UserError("\n".join(refused))
        jobs: dict[str, list[str]] = {}
        for failure in failures:
            jobs.setdefault(failure.reason, []).append(failure.job)
        for reason, (first, *others) in jobs.items():
            more = f" and {len(others)} more" if others else ""
            self._tell(f"run {first}{more} failed: {reason}")
        # The same fault in every run has the same traceback.
        for details in {failure.details: None for failure in failures if failure.details}:
            self._tell(details)

    def _study(self) -> tuple[Sensitivity | None, bool]:
        """Make the sensitivity study, where one is asked for; say whether that went well."""
        scenario = self._scenario
        if scenario.study is None:
            return None, True
        with showing_progress(self._status, "sensitivity") as tell:
            study = study_sensitivity(
                scenario, scenario.study, workers=self._workers, on_progress=tell
            )
        if isinstance(study, JobFailure):
            self._explain([study])
            return None, False
        labels = {run.name: run.label for run in scenario.runs}
        self._screen.print(to_rich(sensitivity_table(study, labels)))
        return study, True

    def _conclude(self, result: BenchmarkResult) -> bool:
        judged = [verdict for verdict in result.verdicts if verdict.holds is not None]
        if not judged:
            return True
        missed = len(result.missed)
        words = (
            f"All {len(judged)} thresholds hold."
            if not missed
            else f"{missed} of {len(judged)} thresholds do not hold."
        )
        is_binding = result.scenario.is_as_written
        if not is_binding:
            words += " They were set for the scenario as it is written, run in full."
        self._say(words, style="bold red" if missed and is_binding else "bold")
        return not (missed and is_binding)

    def _tell(self, words: str) -> None:
        self._status.print(words, markup=False, highlight=False, soft_wrap=True)

    def _say(self, words: str, style: str = "") -> None:
        if words:
            self._screen.print(Text(words, style=style))
