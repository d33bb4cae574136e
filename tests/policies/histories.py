"""Histories of a run as policies see them: regimes, each one kind of cycle repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs
from hypothesis import strategies as st

from swingshift.sdk.context import DynamicScheduleContext

COLLECTIONS = 4
REQUIRED_SAMPLES = 16
CYCLE = COLLECTIONS * REQUIRED_SAMPLES


@attrs.frozen(kw_only=True)
class Cycle:
    """What one cycle leaves behind.

    Attributes:
        waited_samples: Samples its first collection had to wait for, at most a cycle's.
        waited_s: Seconds it waited.
        left_over: Samples generated beyond what was expected, negative for a shortfall.
        activate_s: Seconds of activations.
        deactivate_s: Seconds of deactivations.
        only_hybrid: Whether there are no standalone replicas.
    """

    waited_samples: int = 0
    waited_s: float = 0.0
    left_over: int = 0
    activate_s: float = 0.0
    deactivate_s: float = 0.0
    only_hybrid: bool = False


HARD = Cycle(waited_samples=CYCLE, waited_s=600.0, left_over=0, activate_s=6.0, deactivate_s=4.0)
"""Every sample was waited for."""

EASY = Cycle(left_over=32)
"""Nothing was waited for, and the stock is full."""


def snapshot(version: int, cycle: Cycle) -> DynamicScheduleContext:
    """Return the snapshot at the sync of a version that ends a cycle; version 0 ends none."""
    expected = CYCLE * version
    rest = COLLECTIONS - 1
    return DynamicScheduleContext(
        required_samples=REQUIRED_SAMPLES,
        trigger_parameter_sync_step=COLLECTIONS,
        total_generated_samples=max(0, expected + cycle.left_over),
        expected_samples=expected,
        buffer_samples=expected // 2,
        step_wait_times=(cycle.waited_s, *[0.0] * rest) if version else (),
        step_wait_samples=(cycle.waited_samples, *[0] * rest) if version else (),
        only_hybrid=cycle.only_hybrid,
        last_activate_duration_s=cycle.activate_s,
        last_deactivate_duration_s=cycle.deactivate_s,
    )


def snapshots(
    cycles: Iterable[Cycle], first: int = 0
) -> Iterator[tuple[int, DynamicScheduleContext]]:
    """Yield version and snapshot for each cycle in turn."""
    for version, cycle in enumerate(cycles, start=first):
        yield version, snapshot(version, cycle)


def cycles() -> st.SearchStrategy[Cycle]:
    """Draw one kind of cycle with standalone replicas."""
    seconds = st.just(0.0) | st.floats(0.001, 2_000)
    return st.builds(
        Cycle,
        waited_samples=st.just(0) | st.integers(0, CYCLE),
        waited_s=seconds,
        left_over=st.integers(-CYCLE, 2 * CYCLE),
        activate_s=seconds,
        deactivate_s=seconds,
    )


def histories() -> st.SearchStrategy[list[Cycle]]:
    """Draw regimes, each one kind of cycle repeated 1 to 60 times, as one list."""
    regimes = st.tuples(cycles(), st.integers(1, 60))
    return st.lists(regimes, min_size=1, max_size=6).map(
        lambda drawn: [cycle for cycle, times in drawn for _ in range(times)]
    )
