"""The folder in which a run leaves what it did; none is ever written to twice."""

from __future__ import annotations

import itertools
from contextlib import suppress
from pathlib import Path

import attrs

from swingshift.sdk.errors import UserError

RUNS = Path("runs")
"""Where runs go that were not told where."""


@attrs.frozen
class RunDirectory:
    """The files of one run.

    Attributes:
        path: The folder; it exists.
    """

    path: Path

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.resolve().name

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def run_log(self) -> Path:
        """Everything that happened."""
        return self.path / "run.jsonl"

    @property
    def metrics(self) -> Path:
        """Metrics of every cycle."""
        return self.path / "metrics.jsonl"

    @property
    def summary(self) -> Path:
        """What the run came to."""
        return self.path / "summary.json"

    @property
    def messages(self) -> Path:
        """Warnings and errors, with their tracebacks."""
        return self.path / "log.txt"

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.path / "model"

    def discard(self) -> None:
        """Remove the files of a run that never began, and the folder if that was all."""
        for file in self.path.iterdir():
            if file.is_file():
                file.unlink()
        with suppress(OSError):
            self.path.rmdir()


def make_run_directory(name: str, out: Path | None = None) -> RunDirectory:
    """Make a folder of its own for a run.

    Args:
        name: What the run is called, for ``runs/NAME-NUMBER``.
        out: The folder to take instead; new or empty.

    Raises:
        UserError: The folder is not empty, or cannot be written to.
    """
    place = RUNS if out is None else out
    try:
        if out is None:
            return RunDirectory(_next_folder(name))
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"--out {out}: not empty; name a folder that is new or empty")
        probe = out / "config.yaml"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{place}: cannot be written: {error.strerror or error}; name another place with --out"
        ) from error
    return RunDirectory(out)


def _next_folder(name: str) -> Path:
    taken = [path.name.rpartition("-") for path in RUNS.glob(f"{name}-*")]
    numbers = [int(number) for stem, _, number in taken if stem == name and number.isdecimal()]
    RUNS.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(max(numbers, default=0) + 1):
        path = RUNS / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:  # another run that began at the same moment
            continue
        return path
    raise AssertionError("counting never ends")
