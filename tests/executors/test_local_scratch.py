"""The directory of a run in memory, and those that killed runs left."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from swingshift.executors.local import scratch as scratch_module
from swingshift.executors.local.scratch import Scratch

HOLDER = """
import sys, time
from pathlib import Path
from swingshift.executors.local import scratch
scratch._SHARED_MEMORY = Path(sys.argv[1])
one = scratch.Scratch()
one.create()
(one.payloads / "0.payload").write_bytes(b"1")
print(one.path, flush=True)
time.sleep(300)
"""


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a directory in place of the machine's shared memory."""
    monkeypatch.setattr(scratch_module, "_SHARED_MEMORY", tmp_path)
    return tmp_path


@contextmanager
def another_run(memory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Let another process have a directory for as long as it lives."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(memory)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_directory_exists_from_create_to_remove(memory: Path) -> None:
    """Nobody else may read it, and nothing of it is left; removing is idempotent."""
    one = Scratch()
    one.remove()
    assert list(memory.iterdir()) == []
    one.create()
    assert [path.stat().st_mode & 0o777 for path in (one.path, one.payloads)] == [0o700, 0o700]
    assert list(memory.iterdir()) == [one.path]
    one.weights(3).touch()
    for _ in range(2):
        one.remove()
        assert list(memory.iterdir()) == []


def test_what_a_killed_run_left_is_removed(memory: Path) -> None:
    """The next run does it, whatever is in there."""
    with another_run(memory) as (process, left):
        process.send_signal(signal.SIGKILL)
        process.wait(30.0)
        assert (left / "payloads" / "0.payload").exists()
        one = Scratch()
        one.create()
        assert list(memory.iterdir()) == [one.path]
    one.remove()


def test_the_directory_of_a_live_run_stays(memory: Path) -> None:
    """Of this process or another one, however many runs begin meanwhile."""
    with another_run(memory) as (process, theirs):
        ours, later = Scratch(), Scratch()
        ours.create()
        later.create()
        assert set(memory.iterdir()) == {theirs, ours.path, later.path}
        assert (theirs / "payloads" / "0.payload").exists()
        assert process.poll() is None
    ours.remove()
    later.remove()


def test_what_others_keep_there_stays(memory: Path) -> None:
    """A directory is swept only if it has our name and our lock."""
    for name in ("swingshift-mine", "somebody"):
        (memory / name).mkdir()
    (memory / "somebody" / "lock").touch()
    one = Scratch()
    one.create()
    one.remove()
    assert {path.name for path in memory.iterdir()} == {"swingshift-mine", "somebody"}


def test_without_shared_memory_there_is_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has none gets a temporary directory."""
    monkeypatch.setattr(scratch_module, "_SHARED_MEMORY", Path("/nowhere"))
    one = Scratch()
    one.create()
    assert one.path.is_dir()
    one.remove()
