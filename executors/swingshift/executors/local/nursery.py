"""Workers in milliseconds: one process imports torch, and every worker is a fork of it.

Importing torch and transformers takes seconds of a core. A *nursery* process does it once for the
life of this process; it starts no thread and touches no device, so a fork of it is as good as a
fresh start. It ends when this process does, and its workers with it.
"""

from __future__ import annotations

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


class Nursery:
    """This process's end of the nursery. Calls block for milliseconds, the first for seconds."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def warm_up(self) -> None:
        """Start the nursery process if there is none, and return when it has imported everything.

        Blocks for seconds.

        Raises:
            ExecutorError: It ended instead; what it printed says why.
        """
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "swingshift.executors.local.nursery_process",
                        str(theirs.fileno()),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # whether there is a GPU is asked without touching one, which would spoil forks
                    env={**os.environ, "PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
                    # an interrupt at the terminal is for the control plane, which ends its workers
                    start_new_session=True,
                )
            self._control = ours
            self._answer()

    def fork(self, connection: socket.socket, log: Path) -> int:
        """Return the process id of a new worker that obeys messages on a connection.

        Args:
            connection: The worker's end.
            log: File that takes what it prints.

        Raises:
            ExecutorError: The nursery ended.
        """
        with log.open("ab") as file:
            answer = self._ask({"verb": "fork"}, [connection.fileno(), file.fileno()])
        return cast("int", answer["pid"])

    def reap(self, pid: int) -> int:
        """Wait for the end of a worker and return its exit status, negative for a signal.

        Called once for each worker, when it is ending; its process id may be used again after it.

        Raises:
            ExecutorError: The nursery ended.
        """
        return cast("int", self._ask({"verb": "reap", "pid": pid}, [])["status"])

    def _ask(self, message: Message, files: list[int]) -> Message:
        with self._lock:
            if self._control is None:
                raise ExecutorError("the nursery of worker processes was not started")
            try:
                socket.send_fds(self._control, [json.dumps(message).encode()], files)
            except OSError as error:
                raise ExecutorError("the nursery of worker processes has ended") from error
            return self._answer()

    def _answer(self) -> Message:
        body = b"" if self._control is None else self._control.recv(_MESSAGE_BYTES)
        if not body:
            status = None if self._process is None else self._process.wait()
            raise ExecutorError(
                f"the nursery of worker processes ended with status {status}; what it printed "
                "says why"
            )
        answer: Message = json.loads(body)
        return answer


NURSERY = Nursery()
"""The one of this process."""
