"""Workers in milliseconds: one process imports torch, and every worker is a fork of it.

Importing torch and transformers takes seconds of a core. A *nursery* process does it once for the
life of this process; it starts no thread and touches no device, so a fork of it is as good as a
fresh start. It ends when this process does, and its workers with it. As their parent it also ends
them: the id of a process is its own until its parent has asked how it ended.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

from swingshift.executors.local.channel import Message
from swingshift.sdk.executor import ExecutorError

_MESSAGE_BYTES = 1 << 16
_ENDED = "the nursery of worker processes has ended"


class Nursery:
    """This process's end of the nursery. Calls block for milliseconds, `warm_up` for seconds."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._starting = threading.Lock()
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the nursery that was started last; None before the first."""
        return None if self._process is None else self._process.pid

    def warm_up(self) -> None:
        """Start the nursery process if there is none, and return when it has imported everything.

        Blocks for seconds.

        Raises:
            ExecutorError: It ended instead; what it printed says why.
        """
        with self._starting:
            if self._process is not None and self._process.poll() is None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = _start(theirs)
            try:
                _receive(ours)
            except ExecutorError as error:
                ours.close()
                status = process.wait()
                raise ExecutorError(f"{error}, with status {status}; it printed why") from None
            with self._asking:
                if self._control is not None:
                    self._control.close()
                self._process, self._control = process, ours

    def close(self) -> None:
        """End the nursery and its workers; idempotent, and done at the end of this process."""
        with self._asking:
            if self._process is not None and self._control is not None:
                self._control.close()
                self._process.kill()
                self._process.wait()
                self._control = None

    def fork(self, connection: socket.socket, log: Path) -> int:
        """Return the process id of a new worker that obeys messages on a connection.

        Args:
            connection: The worker's end.
            log: File that takes what it prints.

        Raises:
            ExecutorError: There is no nursery, or the system allows no further process.
        """
        with log.open("ab") as file:
            answer = self._ask({"verb": "fork"}, [connection.fileno(), file.fileno()])
        if "error" in answer:
            raise ExecutorError(f"no worker process could be started: {answer['error']}")
        return cast("int", answer["pid"])

    def end(self, pid: int) -> int | None:
        """Kill a worker unless it has ended.

        Asked until there is an answer, and not again afterwards: its process id may be another
        process's then.

        Returns:
            Its exit status, negative for a signal; None while the system has not ended it yet.

        Raises:
            ExecutorError: There is no nursery.
        """
        return cast("int | None", self._ask({"verb": "end", "pid": pid}, [])["status"])

    def _ask(self, message: Message, files: list[int]) -> Message:
        with self._asking:
            if self._control is None:
                raise ExecutorError("the nursery of worker processes was not started")
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], files)
            except OSError as error:
                raise ExecutorError(_ENDED) from error
            return _receive(self._control)


def _start(connection: socket.socket) -> subprocess.Popen[bytes]:
    module = "swingshift.executors.local.nursery_process"
    return subprocess.Popen(
        # -P: what lies in the working directory is not meant to be imported
        [sys.executable, "-P", "-m", module, str(connection.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=(connection.fileno(),),
        env={
            **os.environ,
            # whether there is a GPU is asked without touching one, which would spoil forks
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            # its threads begin when numpy is imported
            "OPENBLAS_NUM_THREADS": "1",
        },
        # an interrupt at the terminal is for the control plane, which ends its workers
        start_new_session=True,
    )


def _receive(connection: socket.socket) -> Message:
    try:
        body = connection.recv(_MESSAGE_BYTES)
    except ConnectionResetError:
        body = b""
    if not body:
        raise ExecutorError(_ENDED)
    answer: Message = json.loads(body)
    return answer


NURSERY = Nursery()
"""The one of this process."""
atexit.register(NURSERY.close)
