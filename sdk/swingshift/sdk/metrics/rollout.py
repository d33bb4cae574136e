"""Rollout utilization: the share of concurrency capacity in use, interval by interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile

import attrs

from swingshift.sdk.metrics.utilization import Ratio
from swingshift.sdk.validators import InvalidValueError, finite, integer, to_float

_TIME = finite()
_COUNT = integer(ge=0)


@attrs.frozen(kw_only=True)
class RolloutPoint:
    """The rollout side from ``t_s`` until the next point.

    Attributes:
        t_s: When these counts began to hold.
        active: Samples being generated.
        capacity: Samples that may be generated at once; see `concurrency_capacity`.
    """

    t_s: float = attrs.field(converter=to_float, validator=_TIME)
    active: int = attrs.field(validator=_COUNT)
    capacity: int = attrs.field(validator=_COUNT)


def concurrency_capacity(
    servers: int, concurrent_samples_per_replica: int, max_required_samples: int
) -> int:
    """Return how many samples may be generated at once.

    Args:
        servers: Replicas that serve now, each counted once, hybrid or standalone.
        concurrent_samples_per_replica: Samples that one replica may hold.
        max_required_samples: Samples that the staleness budget admits in one cycle.

    Raises:
        InvalidValueError: If a count is negative or no integer.

    Source: the specification, section 4.2.
    """
    _COUNT.check("servers", servers)
    _COUNT.check("concurrent_samples_per_replica", concurrent_samples_per_replica)
    _COUNT.check("max_required_samples", max_required_samples)
    return min(servers * concurrent_samples_per_replica, max_required_samples)


def with_known_capacity(points: Iterable[RolloutPoint], capacity: int) -> tuple[RolloutPoint, ...]:
    """Return the points with the placeholder capacity 0 at their head replaced by the real one.

    Called once for the first window of a run, when its seed was recorded before the capacity was
    known. A capacity of 0 after a known one is real (every replica was lost) and stays.

    Args:
        points: The window's points, in time order.
        capacity: The first known capacity.
    """
    points = tuple(points)
    placeholders = tuple(takewhile(lambda point: point.capacity == 0, points))
    return (
        *(attrs.evolve(point, capacity=capacity) for point in placeholders),
        *points[len(placeholders) :],
    )


def rollout_utilization(points: Sequence[RolloutPoint], end_s: float) -> Ratio:
    """Return the share of capacity-time in use between the first point and ``end_s``.

    Args:
        points: State changes in time order; several may share one time, and the last of them holds.
        end_s: When the window closes, not before the last point.

    Returns:
        Sample-seconds used over sample-seconds offered, within 0..1. Samples above the capacity of
        their interval do not count, and an interval without capacity has no weight; value 0.0
        without points, time or capacity.

    Raises:
        InvalidValueError: If time runs backwards.

    Source: the specification, section 4.2.
    """
    used = offered = 0.0
    ends_s = chain((point.t_s for point in points[1:]), (end_s,))
    for point, until_s in zip(points, ends_s, strict=False):
        if not point.t_s <= until_s < math.inf:
            raise _backwards(until_s, point.t_s)
        used += (until_s - point.t_s) * min(point.active, point.capacity)
        offered += (until_s - point.t_s) * point.capacity
    return Ratio(numerator=used, denominator=offered)


class RolloutWindow:
    """`rollout_utilization` as a running sum: constant memory, however many changes a window sees.

    The rollouter calls `record` whenever a sample is submitted, completes or is drained and
    whenever the capacity changes, which is tens of thousands of times per second in a simulation,
    and `close` once per sync cycle.
    """

    __slots__ = ("_active", "_capacity", "_offered", "_t_s", "_used")

    def __init__(self, start_s: float, active: int = 0, capacity: int = 0) -> None:
        """Open the first window.

        Args:
            start_s: When it opens.
            active: Samples being generated then.
            capacity: Samples that may be generated at once then; 0 while no replica serves, which
                gives the time until the first one serves no weight.

        Raises:
            InvalidValueError: If the time is not finite or a count is negative.
        """
        _TIME.check("start_s", start_s)
        _COUNT.check("active", active)
        _COUNT.check("capacity", capacity)
        self._t_s = start_s
        self._active = active
        self._capacity = capacity
        self._used = 0.0
        self._offered = 0.0

    def record(self, t_s: float, active: int, capacity: int) -> None:
        """Note that these counts hold from ``t_s`` on.

        Args:
            t_s: Now, not before the latest call.
            active: Samples being generated, at least 0.
            capacity: Samples that may be generated at once, at least 0.

        Raises:
            InvalidValueError: If time runs backwards or a count is negative; the window is
                unchanged.
        """
        # Two comparisons here: the full checks cost more than the rest of this method.
        if active < 0 or capacity < 0:
            _COUNT.check("active", active)
            _COUNT.check("capacity", capacity)
        self._integrate(t_s)
        self._active = active
        self._capacity = capacity

    def close(self, t_s: float) -> Ratio:
        """Return the ratio of the window that ends at ``t_s`` and open the next one there.

        The next window begins with the counts that hold now.

        Raises:
            InvalidValueError: If time runs backwards; the window stays open.
        """
        self._integrate(t_s)
        ratio = Ratio(numerator=self._used, denominator=self._offered)
        self._used = 0.0
        self._offered = 0.0
        return ratio

    def _integrate(self, t_s: float) -> None:
        """Add the interval that ends at ``t_s`` to both sums."""
        span_s = t_s - self._t_s
        if 0.0 < span_s < math.inf:
            capacity = self._capacity
            active = self._active
            self._used += span_s * (active if active < capacity else capacity)
            self._offered += span_s * capacity
            self._t_s = t_s
        elif span_s != 0.0:
            raise _backwards(t_s, self._t_s)


def _backwards(t_s: float, latest_s: float) -> InvalidValueError:
    """Return the error for a time that does not follow the latest one; NaN never does."""
    return InvalidValueError(
        "time", t_s, f"finite and at least {latest_s!r} s, the latest time recorded"
    )
