"""A run in plain lines, for files, pipes and whoever prefers them."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from swingshift.executors.app.run_tally import RunTally
from swingshift.executors.app.train_wording import duration, percent
from swingshift.sdk.events import Advisory, CycleEnded, Event, ValidationEnded

_UTILIZATION = {
    "train": "dynamic_resource/train_resource_utilization",
    "rollout": "dynamic_resource/rollout_resource_utilization",
    "cluster": "dynamic_resource/resource_utilization",
}


class PlainView:
    """An event sink that prints a line for each cycle; also a context manager."""

    def __init__(self, tally: RunTally, console: Console, *, is_quiet: bool = False) -> None:
        """Bind the view.

        Args:
            tally: Has taken every event before this gets it.
            console: Where to print.
            is_quiet: Whether to print nothing.
        """
        self._tally = tally
        self._console = console
        self._is_quiet = is_quiet

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        if isinstance(event, CycleEnded):
            self.announce("  ".join(cycle_figures(self._tally)))
        elif isinstance(event, ValidationEnded):
            self.announce(validation_line(event))
        elif isinstance(event, Advisory):
            self.announce(f"advisory: {event.text}")

    def announce(self, words: str) -> None:
        """Print something worth knowing."""
        if not self._is_quiet:
            self._console.print(words, markup=False, highlight=False, soft_wrap=True)

    def leave(self) -> None:
        """Leave the terminal as it was; there is nothing to do."""

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def utilization(tally: RunTally) -> str:
    """Return the utilizations of the latest cycle."""
    latest = tally.latest
    return "  ".join(
        f"{name} {percent(latest[key])}" for name, key in _UTILIZATION.items() if key in latest
    )


def validation_line(event: ValidationEnded) -> str:
    """Return what a validation came to."""
    reward = "no" if event.mean_reward is None else f"{event.mean_reward:.3f}"
    return (
        f"validation of version {event.version}: mean reward {reward}, "
        f"{event.answered} of {event.prompts} prompts answered"
    )


def time_figures(tally: RunTally) -> str:
    """Return how long the run has taken and will still take."""
    left_s = tally.remaining_s
    words = duration(tally.elapsed_s)
    if tally.is_simulated:
        words += f" for {duration(tally.run_s)} of simulated time"
    return words if left_s is None else f"{words}, about {duration(left_s)} left"


def cycle_figures(tally: RunTally) -> Iterator[str]:
    """Yield what there is to say of the cycle that ended last."""
    required = tally.started.required_samples if tally.started else 0
    yield f"version {tally.version}"
    if tally.rewards:
        yield f"reward {tally.rewards[-1]:.3f}"
    yield f"trained {tally.trained}/{tally.total}"
    yield f"queue {tally.queue_size}/{required}"
    yield utilization(tally)
    yield f"{tally.tokens_per_s:,.0f} tokens/s"
    yield time_figures(tally)
