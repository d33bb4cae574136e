"""What runs in the process of one engine: messages come in, and it obeys them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import torch

from swingshift.executors.local.channel import Message, WorkerChannel
from swingshift.sdk.errors import UserError


class Server(Protocol):
    """An engine that obeys messages."""

    def handle(self, message: Message) -> None:
        """Obey one message; its answer, if it gets one, is sent from here or later."""
        ...

    def work(self) -> bool:
        """Do a piece of work that no message waits for; return whether there is more of it."""
        ...


class Mailbox:
    """Answers of a worker; each carries what the engine has in flight, if it counts that."""

    def __init__(self, channel: WorkerChannel) -> None:
        """Answer over a channel."""
        self._channel = channel
        self.progress: Callable[[], Sequence[int] | None] = lambda: None

    def answer(self, message: Message, **result: object) -> None:
        """Answer a message."""
        self._send({"id": message["id"], **result})

    def refuse(self, message: Message, reason: str, *, is_user_error: bool = False) -> None:
        """Answer a message with what is wrong with it."""
        self._send({"id": message["id"], "error": reason, "is_user_error": is_user_error})

    def report(self) -> None:
        """Tell what is in flight, though nobody asked."""
        self._send({})

    def _send(self, message: Message) -> None:
        progress = self.progress()
        if progress is not None:
            message["progress"] = list(progress)
        self._channel.send(message)


class Refusal(Exception):  # noqa: N818 -- an answer, not a fault of the worker
    """What a message asks for cannot be done now; the text is the answer."""


def serve(connection: socket.socket) -> None:
    """Obey messages until the control plane closes the connection."""
    channel = WorkerChannel(connection)
    try:
        _serve(channel, Mailbox(channel))
    except EOFError:
        return


def _serve(channel: WorkerChannel, mailbox: Mailbox) -> None:
    server: Server | None = None
    has_work = False
    while True:
        for message in channel.receive(0.0 if has_work else None):
            try:
                if message["verb"] == "configure":
                    server = _configure(message, mailbox)
                elif server is None:
                    raise Refusal("was not told what to be")
                else:
                    server.handle(message)
            except Refusal as refusal:
                mailbox.refuse(message, str(refusal))
            except UserError as error:
                # of its setting; later ones are of no use to whoever reads them
                mailbox.refuse(message, str(error), is_user_error=server is None)
            except EOFError:
                raise
            except Exception as error:
                mailbox.refuse(message, f"{type(error).__name__}: {error}")
                # whoever reads the log sees where
                sys.excepthook(type(error), error, error.__traceback__)
        has_work = server is not None and server.work()


def _configure(setting: Message, mailbox: Mailbox) -> Server:
    os.environ.update(cast("dict[str, str]", setting["environment"]))
    cores = cast("list[int]", setting["cores"])
    if cores:
        os.sched_setaffinity(0, cores)
        torch.set_num_threads(len(cores))
    # the servers import this module
    if setting["role"] == "training":
        from swingshift.executors.local.training_server import TrainingServer  # noqa: PLC0415

        return TrainingServer(setting, mailbox)
    from swingshift.executors.local.rollout_server import RolloutServer  # noqa: PLC0415

    return RolloutServer(setting, mailbox)
