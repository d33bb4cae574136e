"""Observed lengths: drawn by phase, kept together, and refused where they leave gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import attrs
import pytest
from tests.executors.measured import LENGTHS, measured_options
from tests.executors.support import small_config

from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.costs.lengths import BLOCK_PROMPTS, LengthModel, LengthSource
from swingshift.executors.simulated.costs.observed import ObservedPhase, ObservedSample
from swingshift.executors.simulated.costs.schedule import Regime, Schedule
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError

SHORT = ObservedSample(prompt_tokens=4, response_tokens=(1, 2))
PHASE = ObservedPhase(samples=(SHORT,))


def source(responses: int = 2, seed: int = 0) -> LengthSource:
    return LengthSource(LENGTHS, seed=seed, responses_per_prompt=responses)


def test_each_phase_has_its_own_samples() -> None:
    """The first two prompts are of the first phase; then both samples come about as often."""
    lengths = source()
    prompts = range(2, 3 * BLOCK_PROMPTS)
    drawn = Counter((lengths.prompt_tokens(i), lengths.lengths(i)) for i in prompts)

    assert [lengths.prompt_tokens(i) for i in range(2)] == [10, 10]
    assert drawn.keys() == {(12, (7, 9)), (14, (3, 8))}
    assert drawn[12, (7, 9)] == pytest.approx(len(prompts) / 2, rel=0.1)


def test_more_responses_than_were_seen_begin_again() -> None:
    """A run with another number of responses has lengths too."""
    assert source(responses=3).lengths(0) == (5, 5, 5)
    assert source(responses=3).lengths(5) in ((7, 9, 7), (3, 8, 3))
    assert source(responses=1).lengths(5) in ((7,), (3,))


def test_observed_lengths_do_not_depend_on_the_questions() -> None:
    """Asked backwards or for fewer responses a prompt has the same; another seed has others."""
    indices = range(0, 12 * BLOCK_PROMPTS, 61)
    lengths, backwards, narrow = source(), source(), source(responses=1)
    expected = {index: lengths.lengths(index) for index in indices}
    for index in reversed(indices):
        assert backwards.lengths(index) == expected[index]
        assert narrow.lengths(index) == expected[index][:1]
    assert {i: source(seed=1).lengths(i) for i in range(2, 60)} != {
        i: source().lengths(i) for i in range(2, 60)
    }


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ObservedSample(prompt_tokens=0, response_tokens=(1,)), "prompt_tokens"),
        (lambda: ObservedSample(prompt_tokens=1, response_tokens=()), "response_tokens"),
        (lambda: ObservedSample(prompt_tokens=1, response_tokens=(2, 0)), "response_tokens[1]"),
        (lambda: ObservedPhase(samples=()), "samples"),
        (lambda: LengthModel(observed=(attrs.evolve(PHASE, start=1),)), "observed"),
        pytest.param(lambda: LengthModel(observed=(PHASE, PHASE)), "observed", id="twice"),
        (lambda: LengthModel(observed=(PHASE,), mean_tokens=100.0), "mean_tokens"),
        (
            lambda: LengthModel(
                observed=(PHASE,), schedule=Schedule(regimes=(Regime(start=0, factor=2.0),))
            ),
            "schedule",
        ),
    ],
)
def test_gaps_and_doubles_are_refused(make: Callable[[], object], name: str) -> None:
    """The error names the attribute."""
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert caught.value.name == name


def test_observed_prompts_fit_the_run() -> None:
    """A prompt that the run would not take is refused before it begins."""
    config = small_config()
    config = attrs.evolve(config, data=attrs.evolve(config.data, max_prompt_length=13))

    with pytest.raises(ConfigError) as caught:
        SimulatedAdapter().build(config, measured_options())
    assert str(caught.value) == (
        "executor.lengths.observed: a prompt_tokens of 14 is not allowed; expected at most "
        "data.max_prompt_length=13"
    )
