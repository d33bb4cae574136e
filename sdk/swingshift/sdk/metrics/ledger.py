"""The GPU-second ledger: every second of every GPU belongs to exactly one state."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import TypeAlias

import attrs

from swingshift.sdk.errors import SwingshiftError, did_you_mean
from swingshift.sdk.validators import InvalidValueError, finite, to_float

_TIME = finite()

GpuId: TypeAlias = str | int
"""What names a GPU: as the executor's inventory names it."""

# Far above the rounding of a day of changes, far below a second that went missing.
_REL_TOLERANCE = 1e-9
_ABS_TOLERANCE_S = 1e-6


class LedgerError(SwingshiftError):
    """The ledger was fed something that cannot be accounted for, or does not balance."""


class GpuState(StrEnum):
    """What a GPU is doing, by who holds it."""

    TRAIN = "train"
    """The trainer computes on it."""
    TRAIN_WAIT = "train_wait"
    """The trainer holds it and waits for samples."""
    ROLLOUT = "rollout"
    """Its replica serves and has requests in flight."""
    ROLLOUT_IDLE = "rollout_idle"
    """Its replica serves and has nothing in flight."""
    SWITCH = "switch"
    """It is on its way between training and rollout."""
    SYNC = "sync"
    """It takes part in a weight sync."""
    VALIDATION = "validation"
    """Its replica generates for validation."""
    IDLE = "idle"
    """Nothing is assigned to it."""
    DOWN = "down"
    """It is lost, or fenced until its replica restarts."""


class _Account:
    """One GPU: its state, since when, and the seconds of the states it has left."""

    __slots__ = ("seconds", "since_s", "state")

    def __init__(self, start_s: float) -> None:
        self.state = GpuState.IDLE
        self.since_s = start_s
        self.seconds = dict.fromkeys(GpuState, 0.0)

    def enter(self, state: GpuState, t_s: float) -> None:
        """Book the time up to ``t_s`` and change the state."""
        self.seconds[self.state] += t_s - self.since_s
        self.since_s = t_s
        self.state = state

    def seconds_at(self, t_s: float) -> dict[GpuState, float]:
        """Return seconds by state with the open state counted up to ``t_s``."""
        return {**self.seconds, self.state: self.seconds[self.state] + (t_s - self.since_s)}


class GpuSecondLedger:
    """Accounts for the time of a fixed set of GPUs; memory does not grow with the run.

    The recorder calls `set_state` whenever GPUs change what they do, in time order, and reads the
    totals at the end of a cycle and of the run. Every GPU starts `GpuState.IDLE`. A GPU that is
    lost stays in the ledger as `GpuState.DOWN`: the denominator is always the whole inventory.
    """

    __slots__ = ("_accounts", "_start_s")

    def __init__(self, gpus: Iterable[GpuId], start_s: float) -> None:
        """Open the ledger.

        Args:
            gpus: Every GPU of the inventory, each once.
            start_s: When accounting begins.

        Raises:
            LedgerError: If a GPU is named twice.
            InvalidValueError: If the time is not finite.
        """
        _TIME.check("start_s", start_s)
        self._start_s = start_s
        self._accounts: dict[GpuId, _Account] = {}
        for gpu in gpus:
            if gpu in self._accounts:
                raise LedgerError(
                    f"GPU {gpu!r} is in the inventory twice; each GPU must be named once"
                )
            self._accounts[gpu] = _Account(start_s)

    def set_state(self, gpus: Iterable[GpuId], state: GpuState, t_s: float) -> None:
        """Note that the GPUs are in ``state`` from ``t_s`` on.

        Costs time proportional to the number of GPUs named. Naming the state a GPU is in already
        changes nothing.

        Raises:
            LedgerError: If a GPU is unknown or ``t_s`` lies before its latest change; then no GPU
                has changed.
        """
        for account in [self._account(gpu, t_s) for gpu in gpus]:
            account.enter(state, t_s)

    def gpu_totals(self, t_s: float) -> dict[GpuId, dict[GpuState, float]]:
        """Return seconds by GPU and state up to ``t_s``, all states present.

        Raises:
            LedgerError: If ``t_s`` lies before the latest change of a GPU.
        """
        return {gpu: self._account(gpu, t_s).seconds_at(t_s) for gpu in self._accounts}

    def totals(self, t_s: float) -> dict[GpuState, float]:
        """Return GPU-seconds by state up to ``t_s``, all states present.

        Raises:
            LedgerError: If ``t_s`` lies before the latest change of a GPU.
        """
        by_gpu = self.gpu_totals(t_s).values()
        return {state: math.fsum(seconds[state] for seconds in by_gpu) for state in GpuState}

    def check(self, t_s: float) -> None:
        """Prove that each GPU's states sum to the wall clock, hence all states to wall x GPUs.

        Raises:
            LedgerError: If a GPU's states do not, naming it, or ``t_s`` lies before a change.
        """
        wall_s = t_s - self._start_s
        for gpu, seconds in self.gpu_totals(t_s).items():
            booked_s = math.fsum(seconds.values())
            if not math.isclose(booked_s, wall_s, rel_tol=_REL_TOLERANCE, abs_tol=_ABS_TOLERANCE_S):
                raise LedgerError(
                    f"GPU {gpu!r}: its states sum to {booked_s!r} s but {wall_s!r} s have passed; "
                    "every second must be booked once"
                )

    def _account(self, gpu: GpuId, t_s: float) -> _Account:
        """Return the account of a known GPU whose latest change is not after ``t_s``."""
        account = self._accounts.get(gpu)
        if account is None:
            known = [str(name) for name in self._accounts]
            raise LedgerError(
                f"unknown GPU {gpu!r}{did_you_mean(str(gpu), known)}; "
                f"the ledger was opened with {len(known)} GPUs"
            )
        if not account.since_s <= t_s < math.inf:
            raise LedgerError(
                f"GPU {gpu!r}: time must be finite and not run backwards, "
                f"got {t_s!r} s after {account.since_s!r} s"
            )
        return account


@attrs.frozen(kw_only=True)
class LedgerInterval:
    """One GPU in one state for some time, as a run log records it.

    Attributes:
        gpu: Which GPU.
        state: What it did.
        start_s: From when.
        end_s: Until when, not before ``start_s``.
    """

    gpu: GpuId
    state: GpuState
    start_s: float = attrs.field(converter=to_float, validator=_TIME)
    end_s: float = attrs.field(converter=to_float, validator=_TIME)

    @end_s.validator
    def _ends_after_start(self, _attribute: attrs.Attribute[float], end_s: float) -> None:
        if end_s < self.start_s:
            raise InvalidValueError(
                f"end_s of an interval of GPU {self.gpu!r}", end_s, f"at least {self.start_s!r} s"
            )


def ledger_totals(intervals: Iterable[LedgerInterval]) -> dict[GpuState, float]:
    """Return GPU-seconds by state, all states present: the ledger's totals from a full history.

    Args:
        intervals: In any order, those of one GPU without overlap.
    """
    spans_s: dict[GpuState, list[float]] = {state: [] for state in GpuState}
    for interval in intervals:
        spans_s[interval.state].append(interval.end_s - interval.start_s)
    return {state: math.fsum(spans) for state, spans in spans_s.items()}
