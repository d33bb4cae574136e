"""Runs in parallel processes: one job per run and seed, reports in the order of the jobs."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import attrs

from swingshift.executors.app.assembly import execute, explain_deadline
from swingshift.executors.app.run_log import RunLogWriter
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunOutcome, RunReport
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import PolicyError, UserError

_POLL_S = 0.2

SEGMENT_BYTES = 256 << 20
"""Size at which a run log goes on in another file."""

OnProgress = Callable[[float, int, int], None]
"""Called with the share of the work done, from 0 to 1, the jobs that ended, and all jobs."""


@attrs.frozen(kw_only=True)
class Job:
    """One run to make.

    Attributes:
        name: Names it in messages and in its log.
        config: The whole configuration, seed included.
        policy: A registered name or ``file.py:Class`` in place of the configured policy.
        log: First file of the run log; None for no log.
    """

    name: str
    config: RunConfig
    policy: str | None = None
    log: Path | None = None


@attrs.frozen(kw_only=True)
class JobFailure:
    """Why there is no report.

    Attributes:
        job: The job's name.
        reason: In one line.
        details: A traceback, where the reason is a fault in code.
        is_user_error: Whether the configuration or the policy was refused before the run began.
    """

    job: str
    reason: str
    details: str = ""
    is_user_error: bool = False


class _Slots(Protocol):
    """How much of each job is done; a list, or memory that processes share."""

    def __setitem__(self, index: int, share: float, /) -> None: ...


def run_jobs(
    jobs: Sequence[Job], *, workers: int | None = None, on_progress: OnProgress | None = None
) -> tuple[RunReport | JobFailure, ...]:
    """Run jobs in as many processes as there are cores, and return what came of each.

    One process at most means this one. An interrupt ends every process at once.

    Args:
        jobs: In the order in which their results are wanted.
        workers: Processes; None for one per core that this process may use.
        on_progress: Called a few times per second, from the thread that called this.
    """
    wanted = min(available_cores() if workers is None else workers, len(jobs))
    tell = on_progress or (lambda share, ended, jobs: None)
    tell(0.0, 0, len(jobs))
    if wanted <= 1:
        return _run_here(jobs, tell)
    return _run_in_processes(jobs, wanted, tell)


def run_job(job: Job, tell: Callable[[float], None]) -> RunReport | JobFailure:
    """Run one job in this process.

    Args:
        job: The run to make.
        tell: Called after every cycle with the share that is done.
    """
    try:
        with ExitStack() as stack:
            report = execute(
                job.config,
                policy=job.policy,
                name=job.name,
                event_sinks=[stack.enter_context(_log(job.log))] if job.log else [],
                metric_sinks=(_Share(job.config, tell),),
            )
    except UserError as error:
        return JobFailure(job=job.name, reason=str(error), is_user_error=True)
    except UnexpectedDeadlineError as error:
        return JobFailure(job=job.name, reason=explain_deadline(error, job.config.runtime))
    except PolicyError as error:
        return JobFailure(job=job.name, reason=str(error), details=_traceback(error.__cause__))
    # A failure is a value: the class of an exception may be unknown in the other process.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        return JobFailure(job=job.name, reason=reason, details=_traceback(error))
    if report.outcome is RunOutcome.FAILED:
        return JobFailure(job=job.name, reason=report.reason)
    return report


def _log(path: Path) -> RunLogWriter:
    return RunLogWriter(path, max_bytes=SEGMENT_BYTES)


def _traceback(error: BaseException | None) -> str:
    return "" if error is None else "".join(traceback.format_exception(error))


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Share:
    """A metric sink that turns the version reached into the share of the run that is done."""

    def __init__(self, config: RunConfig, tell: Callable[[float], None]) -> None:
        prompts = config.rollout.total_rollout_steps
        self._share_per_cycle = config.step_required_samples / prompts
        self._tell = tell

    def log(self, version: int, metrics: Mapping[str, float]) -> None:
        self._tell(min(1.0, version * self._share_per_cycle))


class _Work:
    """Adds up the shares of jobs, each weighed by its prompts."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        prompts = [job.config.rollout.total_rollout_steps for job in jobs]
        self._weights = [count / sum(prompts) for count in prompts]

    def share(self, done: Sequence[float]) -> float:
        pairs = zip(self._weights, done, strict=True)
        return min(1.0, sum(weight * share for weight, share in pairs))


def _run_here(jobs: Sequence[Job], tell: OnProgress) -> tuple[RunReport | JobFailure, ...]:
    work, done = _Work(jobs), [0.0] * len(jobs)
    results: list[RunReport | JobFailure] = []
    for index, job in enumerate(jobs):

        def advance(share: float, index: int = index) -> None:
            done[index] = share
            tell(work.share(done), len(results), len(jobs))

        results.append(run_job(job, advance))
        advance(1.0)
    return tuple(results)


def _run_in_processes(
    jobs: Sequence[Job], workers: int, tell: OnProgress
) -> tuple[RunReport | JobFailure, ...]:
    context = multiprocessing.get_context("spawn")
    work, done = _Work(jobs), context.RawArray("d", len(jobs))
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(workers, context, _prepare_worker, (done,)) as pool:
        try:
            futures = _submit(pool, jobs)
            pending = set(futures)
            while pending:
                _, pending = wait(pending, _POLL_S, FIRST_COMPLETED)
                tell(work.share(done), len(jobs) - len(pending), len(jobs))
            return tuple(future.result() for future in futures)
        except BaseException:
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _submit(pool: ProcessPoolExecutor, jobs: Sequence[Job]) -> list[Future[RunReport | JobFailure]]:
    """Submit the jobs from a moment in which interrupts are held back.

    Processes that start in it inherit that they never see one: an interrupt from the keyboard goes
    to all of them, and this process alone answers it.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(_run_in_worker, index, job) for index, job in enumerate(jobs)]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


_shares: _Slots = {}


def tune_garbage_collection() -> None:
    """Let the collector pass less often over what a process that only simulates keeps anyway.

    For processes of ours alone: it changes the interpreter's settings. Worth 6 to 15 per cent of a
    simulated run.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _prepare_worker(shares: _Slots) -> None:
    tune_garbage_collection()
    global _shares  # noqa: PLW0603  # shared memory reaches a process only when it starts
    _shares = shares


def _run_in_worker(index: int, job: Job) -> RunReport | JobFailure:
    def advance(share: float) -> None:
        _shares[index] = share

    result = run_job(job, advance)
    advance(1.0)
    return result
