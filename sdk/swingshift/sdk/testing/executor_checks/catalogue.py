"""The promises of the executor contract by name."""

from __future__ import annotations

from swingshift.sdk.testing.executor_checks import (
    learning,
    life,
    memory,
    pausing,
    requests,
    weights,
)
from swingshift.sdk.testing.executor_checks.promise import Promise

_GROUPS = (
    life.START,
    requests.GENERATE,
    requests.CONTINUED,
    requests.ABORT,
    requests.PROGRESS,
    pausing.PAUSE,
    pausing.RESUME,
    memory.MEMORY,
    memory.TRAINING,
    weights.WEIGHTS,
    weights.KILL,
    weights.RESTART,
    weights.CANCELLED,
    learning.FIT,
    learning.DISCARD,
    life.EVENTS,
    life.STOP,
)

PROMISES: tuple[Promise, ...] = tuple(promise for group in _GROUPS for promise in group.promises)
"""All promises, in the order of reports."""

PROMISE_NAMES: tuple[str, ...] = tuple(promise.name for promise in PROMISES)
