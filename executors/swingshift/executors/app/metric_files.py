"""Metrics of a run in files: a line of JSON for each cycle, and TensorBoard."""

from __future__ import annotations

import json
import logging
from types import TracebackType

from swingshift.executors.app.run_directory import RunDirectory
from swingshift.executors.app.run_tally import MetricRow
from swingshift.executors.app.tensorboard import INSTALL, TensorBoardWriter

_log = logging.getLogger(__name__)


class MetricFiles:
    """Takes rows as they come, so that a reader sees each at once; also a context manager."""

    def __init__(self, directory: RunDirectory) -> None:
        """Begin the files; one warning says what to install where TensorBoard's cannot be."""
        self._lines = directory.metrics.open("x", encoding="utf-8")
        self._tensorboard: TensorBoardWriter | None = None
        try:
            self._tensorboard = TensorBoardWriter(directory.path)
        except ImportError as error:
            _log.warning("no TensorBoard files: %s; install the writer: %s", error, INSTALL)

    @property
    def has_tensorboard(self) -> bool:
        """Whether TensorBoard files are written, too."""
        return self._tensorboard is not None

    def write(self, row: MetricRow) -> None:
        """Write one row."""
        line = {"version": row.version, "t_s": row.t_s, **row.metrics}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        if self._tensorboard is not None:
            self._tensorboard.write(row.version, row.metrics)

    def __enter__(self) -> MetricFiles:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lines.close()
        if self._tensorboard is not None:
            self._tensorboard.close()
