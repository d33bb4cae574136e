"""Responses in shared memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.local.store import (
    PayloadStore,
    UnknownPayloadError,
    generated,
    observed,
)

TOKENS = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-100.0, 0.0, width=32)))


@given(turns=st.lists(TOKENS, min_size=1, max_size=4), tool=st.lists(st.integers(0, 9)))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[tuple[int, float]]], tool: list[int]
) -> None:
    """Tokens, log-probs and what is trained on come back as they were, in order."""
    store = PayloadStore(tmp_path_factory.mktemp("payloads"))
    pieces = [generated([t for t, _ in turn], [p for _, p in turn]) for turn in turns]
    store.write("a", np.concatenate([*pieces, observed(tool)]))
    read = store.read("a")
    drawn = [pair for turn in turns for pair in turn]
    assert read["token"].tolist() == [token for token, _ in drawn] + tool
    assert read["log_prob"].tolist() == [log_prob for _, log_prob in drawn] + [0.0] * len(tool)
    assert read["is_trainable"].tolist() == [True] * len(drawn) + [False] * len(tool)
    assert list(store.response_tokens("a")) == read["token"].tolist()


def test_a_payload_of_no_tokens_is_one(tmp_path: Path) -> None:
    """A request that was aborted before its first token has one; it is empty."""
    store = PayloadStore(tmp_path)
    store.write("a", generated([], []))
    assert len(store.read("a")) == 0


def test_what_is_discarded_is_gone(tmp_path: Path) -> None:
    """The others stay; a handle that is unknown, or discarded already, is ignored."""
    store = PayloadStore(tmp_path)
    for handle in ("a", "b"):
        store.write(handle, observed([1]))
    store.discard(["a", "a", "nobody", ""])
    with pytest.raises(UnknownPayloadError, match="there is no payload 'a'"):
        store.read("a")
    assert list(store.response_tokens("b")) == [1]


@pytest.mark.parametrize("handle", ["../outside", "{path}/outside", "a/../../outside", ".."])
def test_no_handle_reaches_out_of_the_directory(tmp_path: Path, handle: str) -> None:
    """Whoever calls discard may pass anything."""
    inside, outside = tmp_path / "payloads", tmp_path / "outside.payload"
    inside.mkdir()
    outside.touch()
    store = PayloadStore(inside)
    store.discard([handle.format(path=tmp_path)])
    assert outside.exists()
    assert inside.exists()


def test_another_process_reads_it(tmp_path: Path) -> None:
    """The directory is all that processes of a run share."""
    PayloadStore(tmp_path).write("a", observed([3, 1, 4]))
    script = (
        "import sys; from pathlib import Path\n"
        "from swingshift.executors.local.store import PayloadStore\n"
        "print(*PayloadStore(Path(sys.argv[1])).response_tokens('a'))"
    )
    read = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert read.stdout.split() == ["3", "1", "4"]
