"""How far the runs are and how long they will still take: a bar in a terminal, else plain lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from swingshift.benchmarks.runner import OnProgress


@contextmanager
def showing_progress(console: Console, title: str) -> Iterator[OnProgress]:
    """Show progress while the context lasts, and give what has to be told of it.

    Args:
        console: Where to show it.
        title: What is going on.
    """
    if not console.is_terminal:
        yield _Lines(console, title, time.monotonic)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[ended]}/{task.fields[jobs]} runs, time left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(title, total=1.0, ended=0, jobs=0)

        def tell(share: float, ended: int, jobs: int) -> None:
            bar.update(task, completed=share, ended=ended, jobs=jobs)

        yield tell


class _Lines:
    """A line whenever runs ended."""

    def __init__(self, console: Console, title: str, now_s: Callable[[], float]) -> None:
        self._console = console
        self._title = title
        self._now_s = now_s
        self._start_s = now_s()
        self._ended = 0

    def __call__(self, share: float, ended: int, jobs: int) -> None:
        if ended == self._ended:
            return
        self._ended = ended
        left = ""
        if ended < jobs and share > 0.0:
            left_s = (self._now_s() - self._start_s) * (1.0 - share) / share
            left = f", about {left_s:.0f} s left"
        self._console.print(f"{self._title}: {ended}/{jobs} runs{left}", highlight=False)
