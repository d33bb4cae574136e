"""A run on a terminal while it goes on: how far, how good, and what every device is doing."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from swingshift.executors.app.plain_view import time_figures, utilization, validation_line
from swingshift.executors.app.run_tally import GpuNow, RunTally
from swingshift.executors.app.train_wording import duration, percent, sparkline
from swingshift.sdk.events import Advisory, Event, ValidationEnded
from swingshift.sdk.metrics import GpuState

_REFRESHES_PER_S = 4
_SPARKLINE_WIDTH = 40
_BAR_WIDTH = 40
# More devices than this are shown in groups that do the same.
_MOST_ROWS = 12
_SHOW_CURSOR = b"\x1b[?25h\n"

_DOING: Mapping[GpuState, tuple[str, str]] = {
    GpuState.TRAIN: ("green", "trains"),
    GpuState.TRAIN_WAIT: ("yellow", "waits for samples"),
    GpuState.ROLLOUT: ("blue", "generates"),
    GpuState.ROLLOUT_IDLE: ("yellow", "serves, has no request"),
    GpuState.SWITCH: ("magenta", "changes between the two"),
    GpuState.SYNC: ("cyan", "gets or sends weights"),
    GpuState.VALIDATION: ("blue", "generates for validation"),
    GpuState.IDLE: ("dim", "has nothing to do"),
    GpuState.DOWN: ("bold red", "is lost"),
}
_LENT = (GpuState.ROLLOUT, GpuState.ROLLOUT_IDLE, GpuState.VALIDATION)


class LiveView:
    """An event sink that keeps the terminal up to date while its context lasts.

    It draws by the wall clock in a thread of its own, however many events come.
    """

    def __init__(self, title: str, tally: RunTally, console: Console) -> None:
        """Bind the view.

        Args:
            title: What is trained.
            tally: Has taken every event before this gets it.
            console: The terminal.
        """
        self._title = title
        self._tally = tally
        self._console = console
        self._live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            # what is redirected to a file is to arrive there
            redirect_stderr=sys.stderr.isatty(),
        )
        self._moved: list[tuple[logging.StreamHandler[TextIO], TextIO]] = []

    def write(self, sequence: int, t_s: float, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Advisory):
            self.announce(f"advisory: {event.text}")
        elif isinstance(event, ValidationEnded):
            self.announce(validation_line(event))

    def announce(self, words: str) -> None:
        """Print something worth knowing above the view, where it stays."""
        self._console.print(Text(words))

    def leave(self) -> None:
        """Give the cursor back to a shell; for a process that ends at once."""
        os.write(self._console.file.fileno(), _SHOW_CURSOR)

    def __enter__(self) -> LiveView:
        real = sys.stderr
        self._live.start(refresh=True)
        for handler in logging.getLogger().handlers:
            # a message written beside the view would tear it
            if isinstance(handler, logging.StreamHandler) and handler.stream is real:
                self._moved.append((handler, real))
                handler.setStream(sys.stderr)
        return self

    def __exit__(self, *_: object) -> None:
        for handler, stream in self._moved:
            handler.setStream(stream)
        self._moved.clear()
        self._live.stop()

    def render(self) -> RenderableType:
        """Return the view as it is now."""
        tally = self._tally
        head = Text.assemble(
            (self._title, "bold"), f"   {tally.phase}   ", (time_figures(tally), "dim")
        )
        if tally.started is None:
            return head
        return Group(head, self._figures(tally), _devices(tally))

    def _figures(self, tally: RunTally) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for name, words in self._rows(tally):
            table.add_row(name, words)
        return table

    def _rows(self, tally: RunTally) -> Iterator[tuple[str, RenderableType]]:
        started = tally.started
        required = started.required_samples if started else 0
        yield "version", f"{tally.version} after {tally.global_step} fit steps"
        if tally.rewards:
            yield "reward", self._rewards(tally.rewards)
        yield "samples", _progress(tally)
        yield "queue", f"{tally.queue_size} samples; a fit step takes {required}"
        if tally.latest:
            rate = f"{tally.tokens_per_s:,.0f} tokens/s trained"
            yield "last cycle", f"{utilization(tally)}  {rate}"

    def _rewards(self, rewards: list[float]) -> Text:
        seen = list(rewards)
        ascii_only = self._console.options.ascii_only
        bars = sparkline(seen, _SPARKLINE_WIDTH, ascii_only=ascii_only)
        return Text.assemble(
            (f"{seen[-1]:.3f}  ", "bold"), (bars, "green"), f"  {min(seen):.3f} to {max(seen):.3f}"
        )


def _progress(tally: RunTally) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(1, tally.total), completed=tally.trained, width=_BAR_WIDTH)
    row.add_row(bar, f"{tally.trained:,} of {tally.total:,} trained")
    return row


def _devices(tally: RunTally) -> Table:
    is_simulated = tally.is_simulated
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim")
    table.add_column("device", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("", style="dim", no_wrap=True)
    table.add_column("for, simulated" if is_simulated else "for", justify="right", no_wrap=True)
    table.add_column("useful", justify="right", no_wrap=True)
    for name, gpu in _rows_of_devices(tally.gpus()):
        style, doing = _DOING[gpu.state]
        lent = "lent: " if gpu.is_trainer and gpu.state in _LENT else ""
        state = Text(gpu.state.value, style=style)
        table.add_row(name, state, lent + doing, duration(gpu.for_s), percent(gpu.useful))
    return table


def _rows_of_devices(gpus: Mapping[str, GpuNow]) -> Iterator[tuple[str, GpuNow]]:
    """Yield a row for each device, or for each group of one side in one state where they are many.

    A group's time is that of the device that entered the state last.
    """
    if len(gpus) <= _MOST_ROWS:
        yield from gpus.items()
        return
    states = list(GpuState)
    ordered = sorted(gpus.values(), key=lambda gpu: (not gpu.is_trainer, states.index(gpu.state)))
    for (is_trainer, state), members in groupby(ordered, key=lambda g: (g.is_trainer, g.state)):
        group = list(members)
        useful = sum(gpu.useful for gpu in group) / len(group)
        side = "trainer" if is_trainer else "rollout"
        for_s = min(gpu.for_s for gpu in group)
        yield f"{len(group)} {side}", GpuNow(is_trainer, state, for_s, useful)
