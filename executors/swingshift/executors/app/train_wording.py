"""How figures of a run are written for people."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_ASCII_BARS = "_.-=+*#@"
_MINUTE_S, _HOUR_S = 60, 3600


def duration(seconds: float) -> str:
    """Return ``4.2 s``, ``3:12`` or ``1:02:33``."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, _MINUTE_S)
    if whole < _HOUR_S:
        return f"{minutes}:{rest:02}"
    hours, minutes = divmod(minutes, _MINUTE_S)
    return f"{hours}:{minutes:02}:{rest:02}"


def percent(share: float) -> str:
    """Return a share in whole per cent."""
    return f"{100 * share:.0f} %"


def sparkline(values: Sequence[float], width: int, *, ascii_only: bool = False) -> str:
    """Return the course of some values as a line of bars, the least lowest and the most highest.

    Args:
        values: In order; more than fit are averaged in groups.
        width: Most characters, 1 or more.
        ascii_only: Whether the terminal knows no other characters.
    """
    bars = _ASCII_BARS if ascii_only else _BARS
    shown = _averaged(values, width)
    if not shown:
        return ""
    least, span = min(shown), max(shown) - min(shown)
    if not span:
        return bars[0] * len(shown)
    return "".join(bars[round((value - least) / span * (len(bars) - 1))] for value in shown)


def _averaged(values: Sequence[float], width: int) -> list[float]:
    count = len(values)
    if count <= width:
        return list(values)
    edges = [count * place // width for place in range(width + 1)]
    groups = [values[begin:end] for begin, end in pairwise(edges)]
    return [sum(group) / len(group) for group in groups]
