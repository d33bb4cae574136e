"""A worker process as the control plane sees it: calls that return, and an end that is noticed."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from swingshift.executors.local.channel import HEADER, Message, decode, encode
from swingshift.executors.local.nursery import NURSERY
from swingshift.sdk.executor import ExecutorError, Progress

_CLOSE_S = 5.0
_QUOTED_LINES = 3
_NOTHING = Progress(0, 0, 0)


class WorkerLostError(ExecutorError):
    """A worker process ended while something was expected of it."""


def _ignore(_worker: WorkerProcess) -> None:
    """Serve as ``on_lost`` where nobody listens."""


class WorkerProcess:
    """One worker process. Made, started once, called many times, and killed or closed.

    Attributes:
        name: Names it in errors.
        progress: What a rollout worker last reported to be in flight.
        pid: Process id; None before the start.
    """

    def __init__(
        self,
        name: str,
        setting: Mapping[str, object],
        log: Path,
        *,
        on_lost: Callable[[WorkerProcess], None] = _ignore,
    ) -> None:
        """Describe the process; nothing starts yet.

        Args:
            name: Names it in errors.
            setting: What the worker is told first; see `swingshift.executors.local.worker`.
            log: File that takes what it prints.
            on_lost: Called once if it ends and nobody asked it to.
        """
        self.name = name
        self.progress = _NOTHING
        self.pid: int | None = None
        self._setting = setting
        self._log = log
        self._on_lost = on_lost
        self._status: int | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._ids = itertools.count()
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._is_expected_to_end = False

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self.pid is not None and self._status is None

    async def start(self) -> Message:
        """Start the process and return its answer to its setting, once it is ready.

        Raises:
            WorkerLostError: It ended instead.
            ExecutorError: It cannot do what it is told.
        """
        await asyncio.to_thread(NURSERY.warm_up)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self.pid = NURSERY.fork(theirs, self._log)
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._listener = asyncio.create_task(self._listen(reader))
        return await self.call("configure", **self._setting)

    async def call(self, verb: str, **arguments: object) -> Message:
        """Ask the worker to do something and return its answer.

        Cancelling the call takes back nothing: the worker still does it.

        Raises:
            WorkerLostError: It ended before it answered, or had ended before.
            ExecutorError: It answered with an error.
        """
        return await self.sent(verb, **arguments)[1]

    def sent(self, verb: str, **arguments: object) -> tuple[int, asyncio.Future[Message]]:
        """Send at once, and return the number of the call and its answer to come.

        Raises:
            WorkerLostError: The worker has ended.
        """
        number = next(self._ids)
        self._write({"id": number, "verb": verb, **arguments})
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        answer.add_done_callback(lambda _: self._pending.pop(number, None))
        return number, answer

    def tell(self, verb: str, **arguments: object) -> None:
        """Send at once, and do not wait for the answer; a worker that has ended hears nothing."""
        with suppress(WorkerLostError):
            self._write({"id": next(self._ids), "verb": verb, **arguments})

    async def kill(self) -> None:
        """End the process at once, and return when it has; idempotent."""
        self._is_expected_to_end = True
        self._end_process()
        await self._close()

    async def close(self) -> None:
        """Let the process end by itself, and kill it where it does not; idempotent."""
        self._is_expected_to_end = True
        if self._writer is not None:
            self._writer.close()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=_CLOSE_S)
        await self.kill()

    def _end_process(self) -> None:
        """Kill and reap: blocks for as long as the system takes to end a process."""
        if self.pid is None or self._status is not None:
            return
        # it is not reaped yet, so its id is still its own
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        try:
            self._status = NURSERY.reap(self.pid)
        except ExecutorError:
            self._status = -signal.SIGKILL

    def _write(self, message: Message) -> None:
        if self._writer is None or not self.is_alive or self._is_expected_to_end:
            raise WorkerLostError(self._end())
        self._writer.write(encode(message))

    async def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        if self._listener is not None:
            await asyncio.gather(self._listener, return_exceptions=True)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                self._take(decode(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionResetError):
            self._ended()

    def _take(self, message: Message) -> None:
        progress = message.get("progress")
        if isinstance(progress, list):
            self.progress = Progress(*progress)
        number = message.get("id")
        answer = self._pending.get(number) if isinstance(number, int) else None
        if answer is None or answer.done():
            return
        error = message.get("error")
        if error is None:
            answer.set_result(message)
        else:
            answer.set_exception(ExecutorError(f"{self.name}: {error}"))

    def _ended(self) -> None:
        # a worker that closed its end is of no use, whether or not it still runs
        self._end_process()
        self.progress = _NOTHING
        for answer in list(self._pending.values()):
            if not answer.done():
                answer.set_exception(WorkerLostError(self._end()))
        if not self._is_expected_to_end:
            self._on_lost(self)

    def _end(self) -> str:
        """Say in words how the process ended, with the last lines that it printed."""
        code = self._status
        if code is None:
            return f"{self.name} is not running"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        said = self._last_lines() if code > 0 else ()
        return f"{self.name} (process {self.pid}) ended with {how}" + "".join(
            f"; {line}" for line in said
        )

    def _last_lines(self) -> Sequence[str]:
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ()
        return [line.strip() for line in lines if line.strip()][-_QUOTED_LINES:]
