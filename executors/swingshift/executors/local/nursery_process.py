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
from typing import NoReturn

# imported here, so that no worker has to
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
    control.send(
        json.dumps({"ready": [rollout_server.__name__, training_server.__name__]}).encode()
    )
    while True:
        body, files, _, _ = socket.recv_fds(control, _MESSAGE_BYTES, _MAX_FILES)
        if not body:
            return
        message = json.loads(body)
        if message["verb"] == "fork":
            answer = {"pid": _fork(control, files)}
        else:
            _, status = os.waitpid(message["pid"], 0)
            answer = {"status": os.waitstatus_to_exitcode(status)}
        control.send(json.dumps(answer).encode())


def _fork(control: socket.socket, files: list[int]) -> int:
    pid = os.fork()
    if pid == 0:
        control.close()
        _become_worker(*files)
    for file in files:
        os.close(file)
    return pid


def _become_worker(connection: int, log: int) -> NoReturn:
    """Serve, and end without what the nursery would do at its end."""
    status = 1
    try:
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
