"""Messages between the control plane and a worker."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.local.channel import HEADER, Message, WorkerChannel, decode, encode

Ends = tuple[socket.socket, WorkerChannel]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6)


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Return the control plane's socket and the worker's channel."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30.0)
    with ours, theirs:
        yield ours, WorkerChannel(theirs)


def _read(connection: socket.socket) -> Message:
    def exactly(count: int) -> bytes:
        body = b""
        while len(body) < count:
            chunk = connection.recv(count - len(body))
            assert chunk
            body += chunk
        return body

    (length,) = HEADER.unpack(exactly(HEADER.size))
    return decode(exactly(length))


@given(messages=MESSAGES, cuts=st.lists(st.integers(0, 400), max_size=8))
def test_messages_arrive_whole_and_in_order(messages: list[Message], cuts: list[int]) -> None:
    """However their bytes are cut on the way."""
    sent = b"".join(map(encode, messages))
    bounds = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = WorkerChannel(theirs)
        received: list[Message] = []
        for begin, end in itertools.pairwise(bounds):
            ours.sendall(sent[begin:end])
            received += channel.receive(0.0)
        assert received == messages


def test_nothing_is_received_where_nothing_came(ends: Ends) -> None:
    """A look does not wait, also with half a message there."""
    ours, channel = ends
    assert channel.receive(0.0) == []
    ours.sendall(encode({"verb": "pause"})[:7])
    assert channel.receive(0.0) == []
    ours.sendall(encode({"verb": "pause"})[7:])
    assert channel.receive(30.0) == [{"verb": "pause"}]


def test_a_long_message_arrives(ends: Ends) -> None:
    """It is longer than what a socket holds at once."""
    ours, channel = ends
    message: Message = {"prompt": list(range(300_000))}
    sender = threading.Thread(target=channel.send, args=(message,))
    sender.start()
    assert _read(ours) == message
    sender.join(30.0)
    sender = threading.Thread(target=ours.sendall, args=(encode(message),))
    sender.start()
    received: list[Message] = []
    while not received:
        received = channel.receive(30.0)
    assert received == [message]
    sender.join(30.0)


def test_the_end_of_the_control_plane_is_told(ends: Ends) -> None:
    """Whether the worker listens or answers."""
    ours, channel = ends
    ours.close()
    with pytest.raises(EOFError, match="closed the connection"):
        channel.receive(None)
    with pytest.raises(EOFError, match="closed the connection"):
        channel.send({"id": 0})


def test_an_end_with_an_answer_unread_is_an_end(ends: Ends) -> None:
    """The system reports a reset then; what came before it is still obeyed or dropped."""
    ours, channel = ends
    channel.send({"id": 0})
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(None)


def test_a_message_is_json(ends: Ends) -> None:
    """What travels can be read by eye, and is no pickle."""
    message: Message = {"id": 1, "verb": "wake", "part": "weights"}
    assert json.loads(encode(message)[HEADER.size :]) == message
