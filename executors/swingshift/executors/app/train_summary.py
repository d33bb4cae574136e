"""What a run came to: for people on a terminal, for programs in ``summary.json``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping

import attrs
from rich.console import Console
from rich.text import Text

from swingshift.executors.app.run_directory import RunDirectory
from swingshift.executors.app.run_tally import RunTally
from swingshift.executors.app.train_wording import duration, percent

_STYLES = {"exhausted": "bold green", "failed": "bold red", "interrupted": "bold yellow"}
_LABEL_WIDTH = 18
# no line begins with the sign
_GLUED_PERCENT = "\N{NO-BREAK SPACE}%"
_WORDS = {"exhausted": "done: all data is trained"}


@attrs.frozen(kw_only=True)
class Ending:
    """How a run ended.

    Attributes:
        outcome: ``exhausted``, ``failed`` or ``interrupted``.
        reason: In words; empty for the good end.
        model: What became of the model: ``saved``, ``not saved``, or empty where the executor
            saves none.
    """

    outcome: str
    reason: str
    model: str


@attrs.frozen(kw_only=True)
class TrainSummary:
    """A run that ended, in figures.

    Attributes:
        run: Its name.
        executor: Name of the executor.
        policy: Class of the policy; ``none`` where dynamic scheduling is off.
        outcome: See `Ending`.
        reason: See `Ending`.
        is_simulated: Whether the time is virtual.
        wall_clock_s: Seconds from the first event to the last, on the executor's clock.
        elapsed_s: Seconds that it took, start and end of the executor included.
        cycles: Sync cycles that ended.
        fit_steps: Fit steps done.
        total_samples: Samples of the data; 0 if the run did not begin, as of the next three.
        trained_samples: Samples trained.
        unused_samples: Samples never trained, given-up ones included.
        given_up_samples: Samples that failed for good.
        first_reward: Mean reward of the first cycle; null if none was reported, as of the next.
        last_reward: Mean reward of the last cycle.
        validation_reward: Mean reward of the latest validation; null without one.
        trajectories: Responses trained.
        stale_samples: Trained samples with tokens of an older version.
        stale_trajectories: Trained responses with tokens of an older version.
        partial_trajectories: Trained responses with tokens of several versions.
        max_partial_span: Most versions between the first and the last token of one of them.
        gpu_seconds: GPU-seconds by state; they sum to wall clock x GPUs.
        model: See `Ending`.
        directory: The folder of all files.
        files: The files by what is in them.
        tensorboard: The command that shows the metrics; empty without TensorBoard files.
    """

    run: str
    executor: str
    policy: str
    outcome: str
    reason: str
    is_simulated: bool
    wall_clock_s: float
    elapsed_s: float
    cycles: int
    fit_steps: int
    total_samples: int
    trained_samples: int
    unused_samples: int
    given_up_samples: int
    first_reward: float | None
    last_reward: float | None
    validation_reward: float | None
    trajectories: int
    stale_samples: int
    stale_trajectories: int
    partial_trajectories: int
    max_partial_span: int
    gpu_seconds: Mapping[str, float]
    model: str
    directory: str
    files: Mapping[str, str]
    tensorboard: str


def summarise(
    tally: RunTally,
    ending: Ending,
    directory: RunDirectory,
    *,
    executor: str,
    has_tensorboard: bool,
) -> TrainSummary:
    """Return what a run came to.

    Args:
        tally: Has taken every event of it.
        ending: How it ended.
        directory: Its files.
        executor: Name of the executor.
        has_tensorboard: Whether there are TensorBoard files among them.
    """
    ended, rewards = tally.ended, tally.rewards
    files = {
        "config": directory.config,
        "metrics": directory.metrics,
        "run_log": directory.run_log,
        "summary": directory.summary,
    }
    if directory.messages.exists():
        files["messages"] = directory.messages
    if ending.model == "saved":
        files["model"] = directory.model
    return TrainSummary(
        run=directory.name,
        executor=executor,
        policy=tally.started.policy if tally.started else "",
        outcome=ending.outcome,
        reason=ending.reason,
        is_simulated=tally.is_simulated,
        wall_clock_s=tally.run_s,
        elapsed_s=tally.elapsed_s,
        cycles=tally.cycles,
        fit_steps=tally.global_step,
        total_samples=tally.total,
        trained_samples=ended.trained_samples if ended else 0,
        unused_samples=ended.unused_samples if ended else 0,
        given_up_samples=ended.given_up_samples if ended else 0,
        first_reward=rewards[0] if rewards else None,
        last_reward=rewards[-1] if rewards else None,
        validation_reward=tally.validation_reward,
        trajectories=tally.trajectories,
        stale_samples=tally.stale_samples,
        stale_trajectories=tally.stale_trajectories,
        partial_trajectories=tally.partial_trajectories,
        max_partial_span=tally.max_partial_span,
        gpu_seconds={state.value: seconds for state, seconds in tally.gpu_seconds().items()},
        model=ending.model,
        directory=str(directory.path),
        files={what: path.name for what, path in files.items()},
        tensorboard=f"tensorboard --logdir {directory.path}" if has_tensorboard else "",
    )


def to_json(summary: TrainSummary) -> str:
    """Return the summary for programs."""
    return json.dumps(attrs.asdict(summary), indent=2) + "\n"


def print_summary(summary: TrainSummary, console: Console) -> None:
    """Show the summary; paths and commands stay in one piece."""
    words = _WORDS.get(summary.outcome, f"{summary.outcome}: {summary.reason}")
    console.print(Text(f"{summary.run} {words}", style=_STYLES[summary.outcome]), soft_wrap=True)
    for name, told in _lines(summary):
        lines = textwrap.wrap(
            told.replace(" %", _GLUED_PERCENT),
            max(_LABEL_WIDTH, console.width - _LABEL_WIDTH),
            break_long_words=False,
            break_on_hyphens=False,
        )
        text = Text(name.ljust(_LABEL_WIDTH), style="dim")
        joined = f"\n{' ' * _LABEL_WIDTH}".join(lines).replace(_GLUED_PERCENT, " %")
        text.append(joined, style="not dim")
        console.print(text, soft_wrap=True)


def _lines(summary: TrainSummary) -> Iterator[tuple[str, str]]:
    yield "time", _times(summary)
    yield "cycles", f"{summary.cycles} with {summary.fit_steps} fit steps"
    yield (
        "samples",
        f"{summary.trained_samples:,} of {summary.total_samples:,} trained, "
        f"{summary.unused_samples:,} unused, {summary.given_up_samples:,} of them given up",
    )
    if summary.first_reward is not None and summary.last_reward is not None:
        yield (
            "mean reward",
            f"{summary.first_reward:.3f} in the first cycle, {summary.last_reward:.3f} in the last",
        )
    if summary.validation_reward is not None:
        yield "validation", f"{summary.validation_reward:.3f} mean reward in the latest"
    if summary.trajectories:
        yield "staleness", _staleness(summary)
        yield "partial rollouts", _partial(summary)
    ledger = _ledger(summary.gpu_seconds)
    if ledger:
        yield "GPU-seconds", ledger
    if summary.model == "saved":
        yield "model", f"{summary.directory}/{summary.files['model']}"
    elif summary.model:
        yield "model", f"{summary.model}; see {summary.directory}/{summary.files['messages']}"
    named = (name for what, name in summary.files.items() if what != "model")
    yield "files", f"{summary.directory}: {', '.join(named)}"
    if summary.tensorboard:
        yield "plots", summary.tensorboard


def _times(summary: TrainSummary) -> str:
    words = duration(summary.elapsed_s)
    if summary.is_simulated:
        return f"{words} for {duration(summary.wall_clock_s)} of simulated time"
    return f"{words}, of which {duration(summary.wall_clock_s)} from the first event to the last"


def _staleness(summary: TrainSummary) -> str:
    share = percent(summary.stale_trajectories / summary.trajectories)
    return (
        f"{summary.stale_samples:,} samples and {summary.stale_trajectories:,} of "
        f"{summary.trajectories:,} responses with tokens of an older version, {share}"
    )


def _partial(summary: TrainSummary) -> str:
    share = percent(summary.partial_trajectories / summary.trajectories)
    span = summary.max_partial_span
    return (
        f"{summary.partial_trajectories:,} responses with tokens of several versions, {share}; "
        f"at most {span} version{'s' * (span != 1)} apart"
    )


def _ledger(gpu_seconds: Mapping[str, float]) -> str:
    total = sum(gpu_seconds.values())
    if not total:
        return ""
    shares = sorted(((seconds / total, state) for state, seconds in gpu_seconds.items() if seconds))
    return ", ".join(f"{state} {100 * share:.1f} %" for share, state in reversed(shares))
