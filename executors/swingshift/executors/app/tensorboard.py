"""TensorBoard files, written without TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

INSTALL = "pip install 'swingshift[local]'"
"""What to do where the writer is missing."""


class TensorBoardWriter:
    """Writes scalars under their names exactly as they are."""

    def __init__(self, directory: Path) -> None:
        """Begin a file.

        Args:
            directory: Where; it exists.

        Raises:
            ImportError: tensorboardX is not installed.
        """
        # Put off: it is an extra, and not light.
        from tensorboardX.event_file_writer import (  # type: ignore[import-untyped]  # noqa: PLC0415
            EventsWriter,
        )
        from tensorboardX.proto import (  # type: ignore[import-untyped]  # noqa: PLC0415
            event_pb2,
            summary_pb2,
        )

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        # the plain one: a cycle is written at once, without a thread and a queue between
        self._writer = EventsWriter(str(directory / "events"))

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of one step, so that a reader sees them at once."""
        value = self._summary.Value
        summary = self._summary(
            value=[value(tag=name, simple_value=number) for name, number in metrics.items()]
        )
        self._writer.write_event(self._event(wall_time=time.time(), step=step, summary=summary))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
