"""The directory of one run that lives in memory: responses, weights under way, offloaded state."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
import uuid
from pathlib import Path
from typing import IO

_PREFIX = "swingshift-"
_LOCK = "lock"
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 -- the point is that it lives in memory


class Scratch:
    """A directory that is gone after the run, and that the next run removes where it is not.

    Attributes:
        path: The directory; it exists after `create`.
    """

    def __init__(self) -> None:
        """Choose a name; nothing is created yet."""
        root = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
        self._root = root
        self.path = root / f"{_PREFIX}{uuid.uuid4().hex[:12]}"
        self._lock: IO[bytes] | None = None

    @property
    def payloads(self) -> Path:
        """Where responses lie."""
        return self.path / "payloads"

    @property
    def offloaded(self) -> Path:
        """Where training state lies that is not on its device."""
        return self.path / "offloaded"

    def weights(self, version: int) -> Path:
        """Return the file of the weights of a version."""
        return self.path / f"weights-{version}.safetensors"

    def log(self, worker: str) -> Path:
        """Return the file that takes what a worker prints."""
        return self.path / f"{worker}.log"

    def create(self) -> None:
        """Make the directory, and remove those of runs that ended without doing so."""
        self._sweep()
        # it gets its name when it is locked, so that no sweep of another run comes between
        unnamed = self._root / f".{self.path.name}"
        unnamed.mkdir(mode=0o700)
        self._lock = (unnamed / _LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unnamed.rename(self.path)
        for directory in (self.payloads, self.offloaded):
            directory.mkdir(mode=0o700)

    def remove(self) -> None:
        """Remove the directory with all that is in it; idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _sweep(self) -> None:
        # the lock of a run ends with its process, however that ends
        for lock in self._root.glob(f"{_PREFIX}*/{_LOCK}"):
            try:
                with lock.open("rb") as held:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(lock.parent, ignore_errors=True)
            except OSError:
                continue
