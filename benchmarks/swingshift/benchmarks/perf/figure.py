"""One measured figure with its spread and its target, and how repetitions become one."""

from __future__ import annotations

from collections.abc import Callable

import attrs


@attrs.frozen(kw_only=True)
class Target:
    """What a figure should be.

    Attributes:
        limit: The limit, in the figure's unit.
        is_floor: Whether the figure should be at least, rather than below, the limit.
    """

    limit: float
    is_floor: bool

    def is_met(self, value: float) -> bool:
        """Return whether a value keeps the limit."""
        return value >= self.limit if self.is_floor else value < self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.is_floor else '<'} {self.limit:,g}"


@attrs.frozen(kw_only=True)
class Measured:
    """What several measurements of one thing came to.

    Attributes:
        value: The best of them: the one that other work on the machine disturbed least.
        spread: How far the worst is from the best, as a share of the best.
        repetitions: How many there were.
    """

    value: float
    spread: float = 0.0
    repetitions: int = 1


@attrs.frozen(kw_only=True)
class Figure:
    """One line of the table.

    Attributes:
        name: What was measured.
        measured: What it came to.
        unit: Unit of value and target.
        how: What exactly was timed or counted.
        target: What the value should be; None for a figure that only explains others.
        detail: What else was seen.
    """

    name: str
    measured: Measured
    unit: str
    how: str
    target: Target | None = None
    detail: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.target is None else self.target.is_met(self.measured.value)


def best_of(repetitions: int, measure: Callable[[], float], *, highest: bool) -> Measured:
    """Measure several times and keep the best.

    Args:
        repetitions: At least 1.
        measure: Measures once; its value is above 0.
        highest: Whether more is better.
    """
    values = [measure() for _ in range(repetitions)]
    best, worst = max(values), min(values)
    if not highest:
        best, worst = worst, best
    return Measured(value=best, spread=abs(worst - best) / best, repetitions=repetitions)
