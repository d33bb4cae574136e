"""One fault at a time: at every verb, of every kind, early, in the middle and late in a run.

A run ends in a named state whatever happens, and keeps every promise that the checker of event logs
and the modelled cluster know of; where one call alone went wrong, everything is trained. Nightly
runs take every combination, all others a covering array.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator

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
from tests.executors.faultworld import LENDING, NIGHTLY, WORLDS, World, came_back, judge

from swingshift.executors.simulated.faults import Verb

pytestmark = pytest.mark.slow


@functools.cache
def of_one_verb(verb: Verb) -> list[Case]:
    """Return the cases whose one fault is of a verb."""
    return list(_of_one_verb(verb))


def _of_one_verb(verb: Verb) -> Iterator[Case]:
    """Yield every kind of fault of a verb at every place, or all there is to combine."""
    kinds = kinds_of(verb)
    if NIGHTLY:
        combined = itertools.product(WORLDS, kinds, PLACES, TIMES, REPLICAS)
    else:
        combined = itertools.product([LENDING], kinds, PLACES, [1], [None])
    for world, kind, place, times, replica in combined:
        if is_possible({"world": world, "replica": replica}):
            strike = Strike(verb=verb, kind=kind, place=place, times=times, replica=replica)
            yield Case(world=world, strikes=(strike,))


@pytest.mark.parametrize("verb", Verb)
def test_a_fault_of_any_call_is_survived_or_named(verb: Verb) -> None:
    """The first, the middle and the last call, each in every way that it can go wrong."""
    assert problems_of(of_one_verb(verb)) == []


@pytest.mark.parametrize("verb", Verb)
def test_a_fault_strikes_at_every_place(verb: Verb) -> None:
    """No verb is left out because nothing calls it."""
    mild = [(Strike(verb=verb, kind="late", place=place),) for place in PLACES]
    cases = [case for case in of_one_verb(verb) if case.world is LENDING and case.strikes in mild]
    assert [case.strikes for case in cases if case.verdict.all_struck] == mild


@functools.cache
def rows() -> list[Row]:
    """Return the covering array of single faults."""
    factors: dict[str, tuple[Hashable, ...]] = {
        "verb": tuple(Verb),
        "kind": tuple(KINDS),
        "place": PLACES,
        "times": TIMES,
        "replica": REPLICAS,
        "world": WORLDS,
    }
    return covering_array(factors, is_possible)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_fault_of_any_replica_in_any_run_is_survived_or_named(world: World) -> None:
    """Hybrid replicas alone, responses of one version, no lending; one call or all there are."""
    assert problems_of(Case.of_row(row) for row in rows() if row["world"] is world) == []


@pytest.mark.parametrize("kind", ["die", "die-unreported"])
@pytest.mark.parametrize("verb", [verb for verb in Verb if "die" in kinds_of(verb)])
def test_a_standalone_replica_that_dies_comes_back(verb: Verb, kind: str) -> None:
    """Restarted, synced and in routing again, whether the executor reports it or a request does."""
    strike = Strike(verb=verb, kind=kind, replica="standalone-0")
    judged = judge(Case(world=LENDING, strikes=(strike,)).plan)
    assert judged.struck
    assert came_back(judged.sink, "standalone-0")
