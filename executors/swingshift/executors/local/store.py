"""Responses in shared memory: written once by the engine that generated them, read by whoever asks.

A payload is a file of fixed-size records in a directory that lives in memory, so it outlives the
process that wrote it, and reading it needs no copy through the control plane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from swingshift.sdk.executor import ExecutorError

RECORD = np.dtype([("token", "<i4"), ("log_prob", "<f4"), ("is_trainable", "?")])
"""One token of a response. ``log_prob`` is 0 where nobody generated it."""

Records = npt.NDArray[np.void]


class UnknownPayloadError(ExecutorError):
    """A handle names nothing: it was discarded, or its engine died before it was written."""


class PayloadStore:
    """The payloads of one run, by handle. Any process of the run may open the same directory."""

    def __init__(self, directory: Path) -> None:
        """Use a directory that exists by the time of the first write."""
        self._directory = directory

    def write(self, handle: str, records: Records) -> None:
        """Store a payload under a handle that is not used yet."""
        records.tofile(self._path(handle))

    def read(self, handle: str) -> Records:
        """Return a payload.

        Raises:
            UnknownPayloadError: There is none of this handle.
        """
        try:
            return np.fromfile(self._path(handle), dtype=RECORD)
        except FileNotFoundError as error:
            raise UnknownPayloadError(f"there is no payload {handle!r}") from error

    def response_tokens(self, handle: str) -> Sequence[int]:
        """Return the token ids after the prompt.

        Raises:
            UnknownPayloadError: There is none of this handle.
        """
        tokens: list[int] = self.read(handle)["token"].tolist()
        return tokens

    def discard(self, handles: Iterable[str]) -> None:
        """Free payloads; unknown handles are ignored."""
        for handle in handles:
            self._path(handle).unlink(missing_ok=True)

    def _path(self, handle: str) -> Path:
        # handles are made here, but whoever calls `discard` may pass anything
        return self._directory / f"{Path(handle).name}.payload"


def generated(tokens: Sequence[int], log_probs: Sequence[float]) -> Records:
    """Return tokens that an engine drew, as records that are trained on."""
    return _records(tokens, log_probs, is_trainable=True)


def observed(tokens: Sequence[int]) -> Records:
    """Return tokens that nobody drew, as records that are context alone."""
    return _records(tokens, [0.0] * len(tokens), is_trainable=False)


def _records(tokens: Sequence[int], log_probs: Sequence[float], *, is_trainable: bool) -> Records:
    made: Records = np.empty(len(tokens), dtype=RECORD)
    made["token"] = tokens
    made["log_prob"] = log_probs
    made["is_trainable"] = is_trainable
    return made
