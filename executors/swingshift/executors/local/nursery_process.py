"""The nursery: ``python -m swingshift.executors.local.nursery_process FD``; see `nursery`."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from contextlib import suppress
from typing import NoReturn

# imported here, so that no worker has to; any other architecture shares most of what this one needs
from transformers.models.qwen2 import modeling_qwen2

from swingshift.executors.local import rollout_server, training_server, worker

_MESSAGE_BYTES = 1 << 16
_MAX_FILES = 2
# Linux, prctl(2): the signal that a process gets when its parent ends
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Fork workers and tell how they end, until the control plane closes the connection."""
    # the libraries warn of what concerns their own users
    warnings.simplefilter("ignore")
    control = socket.socket(fileno=int(sys.argv[1]))
    # what was imported is never garbage: a collection in a worker has little to look at
    gc.collect()
    gc.freeze()
    imported = (modeling_qwen2, rollout_server, training_server)
    control.send(json.dumps({"ready": [module.__name__ for module in imported]}).encode())
    # the control plane may end at any moment
    with suppress(ConnectionError):
        _obey(control)


def _obey(control: socket.socket) -> None:
    workers: set[int] = set()
    while True:
        body, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, _MAX_FILES)
        if not body:
            return
        message = json.loads(body)
        if message["verb"] == "fork":
            answer = _fork(control, files, workers)
        else:
            answer = {"status": _end(message["pid"], workers)}
        control.send(json.dumps(answer).encode())


def _fork(control: socket.socket, files: list[int], workers: set[int]) -> dict[str, object]:
    try:
        pid = os.fork()
        if pid == 0:
            _become_worker(control, *files)
    except OSError as error:
        return {"error": str(error)}
    finally:
        for file in files:
            os.close(file)
    workers.add(pid)
    return {"pid": pid}


def _end(pid: int, workers: set[int]) -> int | None:
    """Kill a worker and return how it ended; None while it has not."""
    if pid not in workers:
        # of a nursery before this one, whose end was the end of its workers
        return -signal.SIGKILL
    # it is not reaped yet, so its id is still its own; one that ended by itself does not notice
    os.kill(pid, signal.SIGKILL)
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    workers.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become_worker(control: socket.socket, connection: int, log: int) -> NoReturn:
    """Serve, and end without what the nursery would do at its end."""
    status = 1
    try:
        control.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        worker.serve(socket.socket(fileno=connection))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
