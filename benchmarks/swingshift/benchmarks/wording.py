"""Figures as tables and plots write them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from swingshift.benchmarks.statistics import Spread
from swingshift.sdk.metrics import METRICS

_RATIO = "ratio"


def is_share(metric: str) -> bool:
    """Return whether a metric is a share within 0..1, written in percent."""
    return metric in METRICS and METRICS[metric].unit == _RATIO


def show_metric(metric: str, value: float) -> str:
    """Return a metric's value with its unit, shares in percent."""
    if is_share(metric):
        return show_percent(value)
    unit = METRICS[metric].unit if metric in METRICS else ""
    return f"{round(value, 1):g} {unit}".strip()


def show_metric_spread(metric: str, value: Spread) -> str:
    """Return a metric's value with its unit, and its spread over seeds."""
    scale = 100.0 if is_share(metric) else 1.0
    unit = "%" if is_share(metric) else METRICS[metric].unit if metric in METRICS else ""
    return f"{show_spread(value, scale)} {unit}".strip()


def show_spread(value: Spread, scale: float = 1.0, digits: int = 1) -> str:
    """Return a figure and, where there is any, its spread, both multiplied with a scale."""
    mean = f"{value.mean * scale:.{digits}f}"
    return f"{mean} ± {value.std * scale:.{digits}f}" if value.std else mean


def show_wall_clocks(values: Sequence[Spread]) -> tuple[str, ...]:
    """Return times in seconds in one unit, hours where the longest has one."""
    longest_s = max(value.mean for value in values)
    unit, unit_s = ("h", 3600.0) if longest_s >= 3600.0 else ("s", 1.0)
    digits = 2 if longest_s / unit_s < 10.0 else 1
    return tuple(f"{show_spread(value, 1.0 / unit_s, digits)} {unit}" for value in values)


def show_number(value: float) -> str:
    """Return a number in few characters, as a file can hold it: 0.05, 30000, 148e12, 20e-6."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.6g}"
    exponent = 3 * math.floor(math.log10(abs(value)) / 3.0)
    return f"{value / 10.0**exponent:.6g}e{exponent}"


def show_percent(share: float) -> str:
    """Return a share in percent."""
    return f"{share * 100.0:.1f} %"


def show_change(reduction: float) -> str:
    """Return by how much less of something there is, as a change: -15.3 % for 0.153."""
    return f"{-reduction * 100.0:+.1f} %"


def show_points(share: float) -> str:
    """Return a difference of two shares in percentage points."""
    return f"{share * 100.0:g} points"
