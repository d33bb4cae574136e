"""Messages between the control plane and a worker: JSON, each behind its length, on a socket pair.

Only counts, names and token ids of prompts travel here; responses and weights lie in shared memory.
"""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from typing import TypeAlias

Message: TypeAlias = dict[str, object]

HEADER = struct.Struct(">I")
"""The length of what follows, in bytes."""

_CHUNK_BYTES = 1 << 16


def encode(message: Mapping[str, object]) -> bytes:
    """Return a message as it travels."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """Return the message of a body."""
    message: Message = json.loads(body)
    return message


class WorkerChannel:
    """The worker's end: blocking, or a look at what has come."""

    def __init__(self, connection: socket.socket) -> None:
        """Take over a connected socket."""
        self._connection = connection
        self._buffer = bytearray()

    def receive(self, timeout_s: float | None) -> list[Message]:
        """Return what has come.

        Args:
            timeout_s: How long to wait when nothing has; None until something has, 0 not at all.

        Raises:
            EOFError: The control plane is gone.
        """
        # a select with a deadline of its own, because a socket in non-blocking mode could not send
        while select.select([self._connection], [], [], timeout_s)[0]:
            try:
                chunk = self._connection.recv(_CHUNK_BYTES)
            except ConnectionResetError:
                # it ended with an answer unread
                chunk = b""
            if not chunk:
                raise EOFError("the control plane closed the connection")
            self._buffer += chunk
            messages = self._whole_messages()
            if messages:
                return messages
        return []

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message.

        Raises:
            EOFError: The control plane is gone.
        """
        try:
            self._connection.sendall(encode(message))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError("the control plane closed the connection") from error

    def _whole_messages(self) -> list[Message]:
        messages: list[Message] = []
        while len(self._buffer) >= HEADER.size:
            (length,) = HEADER.unpack_from(self._buffer)
            end = HEADER.size + length
            if len(self._buffer) < end:
                break
            messages.append(decode(bytes(self._buffer[HEADER.size : end])))
            del self._buffer[:end]
        return messages
