"""Covering arrays: few rows in which any two values of different factors meet.

Found greedily, row by row: begin with two values that have not met yet, then give every other
factor the value that brings the most new meetings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence

Row = dict[str, Hashable]
_Meeting = tuple[tuple[str, Hashable], tuple[str, Hashable]]


def _always(_: Mapping[str, Hashable]) -> bool:
    return True


def covering_array(
    factors: Mapping[str, Sequence[Hashable]],
    is_possible: Callable[[Mapping[str, Hashable]], bool] = _always,
) -> list[Row]:
    """Return rows in which every possible pair of values of two factors occurs.

    Args:
        factors: The values of each factor.
        is_possible: Says whether values may be together in a row; asked about parts of rows too,
            where it must not refuse what more values could make possible.
    """
    open_meetings: dict[_Meeting, None] = {
        ((first, one), (second, other)): None
        for first, second in itertools.combinations(factors, 2)
        for one, other in itertools.product(factors[first], factors[second])
        if is_possible({first: one, second: other})
    }
    rows: list[Row] = []
    while open_meetings:
        row: Row = dict(next(iter(open_meetings)))
        for factor in factors:
            if factor not in row:
                row[factor] = _best(factor, row, factors, is_possible, open_meetings)
        for meeting in _meetings(row, factors):
            open_meetings.pop(meeting, None)
        rows.append({factor: row[factor] for factor in factors})
    return rows


def _best(
    factor: str,
    row: Row,
    factors: Mapping[str, Sequence[Hashable]],
    is_possible: Callable[[Mapping[str, Hashable]], bool],
    open_meetings: Mapping[_Meeting, None],
) -> Hashable:
    def new_meetings(value: Hashable) -> int:
        meetings = _meetings({**row, factor: value}, factors)
        return sum(meeting in open_meetings for meeting in meetings)

    return max(
        (value for value in factors[factor] if is_possible({**row, factor: value})),
        key=new_meetings,
    )


def _meetings(row: Row, factors: Mapping[str, Sequence[Hashable]]) -> list[_Meeting]:
    known = [(factor, row[factor]) for factor in factors if factor in row]
    return list(itertools.combinations(known, 2))
