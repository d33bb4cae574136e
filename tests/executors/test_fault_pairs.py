"""Two faults in one run: every pair of verbs, with kinds, times, replicas and runs by chance of a
covering array, in which any two values of different factors meet; nightly, all pairs of calls.

The first fault may end a run before the second. So that every two verbs do fail together in some
run, cases are added for those that never do in the covering array.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterable, Mapping

import pytest
from tests.executors.covering import Row, covering_array
from tests.executors.faultcases import (
    KINDS,
    PLACES,
    REPLICAS,
    TIMES,
    Case,
    Strike,
    is_possible,
    kinds_of,
    problems_of,
)
from tests.executors.faultworld import LENDING, NIGHTLY, WORLDS

from swingshift.executors.simulated.faults import Verb

pytestmark = pytest.mark.slow

FIRST, SECOND = "_of_first", "_of_second"
EVERY_TWO = list(itertools.combinations_with_replacement(Verb, 2))
# each is called once in a run
NEVER_TOGETHER = [(Verb.START, Verb.START), (Verb.STOP, Verb.STOP)]


def are_possible(row: Mapping[str, object]) -> bool:
    """Return whether both faults make sense."""
    return is_possible(row, FIRST) and is_possible(row, SECOND)


def factors() -> dict[str, tuple[Hashable, ...]]:
    """Return what a case is made of: two faults, and the run that they strike."""
    one: dict[str, tuple[Hashable, ...]] = {
        "verb": tuple(Verb),
        "kind": tuple(KINDS),
        "place": PLACES,
        "times": TIMES,
        "replica": REPLICAS,
    }
    both = {f"{name}{suffix}": one[name] for suffix in (FIRST, SECOND) for name in one}
    return {**both, "world": WORLDS}


@functools.cache
def rows() -> list[Row]:
    """Return the covering array of pairs of faults."""
    return covering_array(factors(), are_possible)


@functools.cache
def covering() -> list[Case]:
    """Return the cases of the covering array."""
    return [Case.of_row(row, FIRST, SECOND) for row in rows()]


@functools.cache
def added() -> list[Case]:
    """Return a case for each two verbs that strike together in none of the covering array."""
    met = verbs_that_met(covering())
    pairs = [pair for pair in EVERY_TWO if frozenset(pair) not in met]
    return [together(*pair) for pair in pairs if pair not in NEVER_TOGETHER]


def together(one: Verb, other: Verb) -> Case:
    """Return a case in which both strike, the worst first; if there is none, one that is mild."""
    cases = [
        Case(
            world=LENDING,
            strikes=(
                Strike(verb=one, kind=kinds[0], place=places[0]),
                Strike(verb=other, kind=kinds[1], place=places[1]),
            ),
        )
        for kinds in itertools.product(("fail", "slow"), repeat=2)
        for places in itertools.product(("first", "middle"), repeat=2)
    ]
    return next((case for case in cases if case.verdict.all_struck), cases[-1])


def verbs_that_met(cases: Iterable[Case]) -> set[frozenset[Verb]]:
    """Return the verbs of every case whose two faults struck."""
    return {
        frozenset(strike.verb for strike in case.strikes)
        for case in cases
        if case.verdict.all_struck
    }


def pairs_with(verb: Verb) -> Iterable[Case]:
    """Return the cases whose first fault is of a verb."""
    sampled = [case for case in (*covering(), *added()) if case.strikes[0].verb is verb]
    if not NIGHTLY:
        return sampled
    calls = [
        Strike(verb=other, kind=kind, place=place)
        for other in Verb
        for kind in kinds_of(other)
        for place in PLACES
    ]
    every = (
        Case(world=LENDING, strikes=pair)
        for pair in itertools.combinations(calls, 2)
        if pair[0].verb is verb
    )
    return itertools.chain(sampled, every)


def test_every_pair_of_verbs_is_among_them() -> None:
    """Whichever of the two fails first; and no case asks for what cannot be."""
    found = {(row[f"verb{FIRST}"], row[f"verb{SECOND}"]) for row in rows()}
    assert found == set(itertools.product(Verb, Verb))
    assert all(map(are_possible, rows()))


def test_every_two_verbs_fail_together_in_some_run() -> None:
    """In either order; the two may be one verb, at two of its calls."""
    met = verbs_that_met((*covering(), *added()))
    assert [pair for pair in EVERY_TWO if frozenset(pair) not in met] == NEVER_TOGETHER


def test_any_two_values_of_different_factors_meet() -> None:
    """Each kind with each time, place and replica, of the same fault and of the other one."""
    for (first, ones), (second, others) in itertools.combinations(factors().items(), 2):
        met = {(row[first], row[second]) for row in rows()}
        meetings = itertools.product(ones, others)
        assert met == {pair for pair in meetings if are_possible({first: pair[0], second: pair[1]})}


@pytest.mark.parametrize("verb", Verb)
def test_two_faults_are_survived_or_named(verb: Verb) -> None:
    """Each promise holds whatever goes wrong together."""
    assert problems_of(pairs_with(verb)) == []
