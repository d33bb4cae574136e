"""Factors that change along a run: drift, oscillation and regimes, multiplied with each other.

The position is whatever the user of a schedule counts: prompts for lengths, calls for durations.
"""

from __future__ import annotations

import math
from itertools import pairwise

import attrs

from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import finite, integer


@attrs.frozen(kw_only=True)
class Drift:
    """A factor that moves from one value to another over a range of positions and stays there.

    Args:
        start: Position at which it leaves ``from_factor``.
        end: Position at which it reaches ``to_factor``, after ``start``.
        from_factor: Factor until ``start``.
        to_factor: Factor from ``end`` on.
        geometric: Move by equal ratios instead of equal differences.
    """

    end: int = attrs.field(validator=integer(ge=1))
    to_factor: float = attrs.field(validator=finite(gt=0))
    start: int = attrs.field(default=0, validator=integer(ge=0))
    from_factor: float = attrs.field(default=1.0, validator=finite(gt=0))
    geometric: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))

    def __attrs_post_init__(self) -> None:
        if self.end <= self.start:
            raise ConfigError(f"Drift.end={self.end} must be after Drift.start={self.start}")

    def factor(self, position: int) -> float:
        """Return the factor at a position."""
        done = min(1.0, max(0.0, (position - self.start) / (self.end - self.start)))
        if self.geometric:
            return float(self.from_factor * (self.to_factor / self.from_factor) ** done)
        return self.from_factor + (self.to_factor - self.from_factor) * done


@attrs.frozen(kw_only=True)
class Oscillation:
    """A factor that swings around 1 as a sine, rising at position 0.

    Args:
        period: Positions from one peak to the next.
        amplitude: Greatest distance from 1, below 1.
    """

    period: float = attrs.field(validator=finite(gt=0))
    amplitude: float = attrs.field(validator=finite(ge=0, le=0.99))

    def factor(self, position: int) -> float:
        """Return the factor at a position."""
        return 1.0 + self.amplitude * math.sin(2.0 * math.pi * position / self.period)


@attrs.frozen(kw_only=True)
class Regime:
    """A factor that holds from a position until the next regime begins.

    Args:
        start: Position from which it holds.
        factor: The factor.
    """

    start: int = attrs.field(validator=integer(ge=0))
    factor: float = attrs.field(validator=finite(gt=0))


@attrs.frozen(kw_only=True)
class Schedule:
    """The product of the parts that are given; 1 everywhere when none is.

    Args:
        drift: A lasting change.
        oscillation: A periodic change.
        regimes: Sudden changes, by rising start; 1 before the first.
    """

    drift: Drift | None = None
    oscillation: Oscillation | None = None
    regimes: tuple[Regime, ...] = ()

    def __attrs_post_init__(self) -> None:
        starts = [regime.start for regime in self.regimes]
        if any(later <= earlier for earlier, later in pairwise(starts)):
            raise ConfigError(f"Schedule.regimes must have rising starts, got {starts}")

    @property
    def is_constant(self) -> bool:
        """Whether the factor is 1 at every position."""
        return self.drift is None and self.oscillation is None and not self.regimes

    def factor(self, position: int) -> float:
        """Return the factor at a position, at least 0."""
        product = 1.0
        if self.drift is not None:
            product *= self.drift.factor(position)
        if self.oscillation is not None:
            product *= self.oscillation.factor(position)
        current = 1.0
        for regime in self.regimes:
            if regime.start > position:
                break
            current = regime.factor
        return product * current
