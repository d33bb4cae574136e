"""A worker process as the control plane sees it: calls that return, and an end that is noticed."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from swingshift.executors.local.channel import HEADER, Message, decode, encode
from swingshift.executors.local.nursery import NURSERY
from swingshift.sdk.errors import ConfigError, SwingshiftError
from swingshift.sdk.executor import ExecutorError, Progress

_POLL_S = 0.002
_BLAME_S = 1.0
_QUOTED_LINES = 3
_NOTHING = Progress(0, 0, 0)


class WorkerLostError(ExecutorError):
    """A worker process ended while something was expected of it."""


def _ignore(_worker: WorkerProcess) -> None:
    """Serve as ``on_lost`` where nobody listens."""


class WorkerProcess:
    """One worker process. Made, started once, called many times, and killed.

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
        self._life: asyncio.Task[None] | None = None
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
            WorkerLostError: It ended instead, or was killed meanwhile.
            ConfigError: It cannot do what its setting says.
            ExecutorError: It could not be started, or failed to do what its setting says.
        """
        await asyncio.to_thread(NURSERY.warm_up)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                reader, writer = await asyncio.open_connection(sock=ours)
            except BaseException:
                ours.close()
                raise
            # from here to the first call nothing waits, so nothing can come between
            try:
                if self._is_expected_to_end:
                    raise WorkerLostError(self._end())
                self.pid = NURSERY.fork(theirs, self._log)
            except BaseException:
                writer.transport.abort()
                raise
        self._writer = writer
        self._life = asyncio.create_task(self._live(reader, writer))
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
        """End the process at once, and return when it has; idempotent, also during `start`."""
        self._is_expected_to_end = True
        self._end_process()
        if self._writer is not None and self._life is not None:
            self._writer.transport.abort()
            await asyncio.wait([self._life])

    def _write(self, message: Message) -> None:
        if self._writer is None or not self.is_alive or self._is_expected_to_end:
            raise WorkerLostError(self._end())
        self._writer.write(encode(message))

    async def _live(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take messages for as long as the process lives, and see to its end."""
        try:
            # both say that the connection has ended
            with suppress(EOFError, OSError):
                while True:
                    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
                    self._take(decode(await reader.readexactly(length)))
        finally:
            writer.transport.abort()
            await self._see_it_end()

    async def _see_it_end(self) -> None:
        # a worker that closed its end is of no use, whether or not it still runs
        self._end_process()
        while self.is_alive:
            await asyncio.sleep(_POLL_S)
            self._end_process()
        self.progress = _NOTHING
        for answer in list(self._pending.values()):
            if not answer.done():
                answer.set_exception(WorkerLostError(self._end()))
        if not self._is_expected_to_end:
            self._on_lost(self)

    def _end_process(self) -> None:
        """Kill the process unless it has ended, and find out how it did once it has."""
        if self.pid is None or self._status is not None:
            return
        try:
            self._status = NURSERY.end(self.pid)
        except ExecutorError:
            # the end of the nursery was the end of its workers
            self._status = -signal.SIGKILL

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
            answer.set_exception(self._refusal(str(error), message))

    def _refusal(self, error: str, message: Message) -> SwingshiftError:
        line = " ".join(error.split())
        if message.get("is_user_error"):
            return ConfigError(line)
        return ExecutorError(f"{self.name}: {line}")

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


async def call_all(
    workers: Sequence[WorkerProcess], verb: str, **arguments: object
) -> list[Message]:
    """Ask workers that depend on one another to do something, and return their answers.

    Raises:
        WorkerLostError: One ended, whatever others that missed it then said.
        ExecutorError: One answered with an error, and none ended.
    """
    calls = [asyncio.create_task(worker.call(verb, **arguments)) for worker in workers]
    try:
        return await asyncio.gather(*calls)
    except WorkerLostError:
        raise
    except ExecutorError as error:
        # one that lost its connection to another may tell of it first; the other one is to blame
        others = [call for call in calls if not call.done()]
        if others:
            await asyncio.wait(others, timeout=_BLAME_S)
        for failure in [call.exception() for call in calls if call.done()]:
            if isinstance(failure, WorkerLostError):
                raise failure from error
        raise
