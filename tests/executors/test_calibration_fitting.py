"""From measured durations to the costs that explain them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.executors.app.calibration.fitting import fit_engine, fit_timings
from swingshift.executors.app.calibration.probes import DecodeProbe, FitProbe
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredDecode,
    MeasuredEngine,
    MeasuredPrefill,
    MeasuredTiming,
)
from swingshift.executors.simulated.costs.training import FitWork

PROMPT = 5


def took_s(engine: MeasuredEngine, running: int, tokens: int) -> float:
    """Return how long so many requests with so many tokens each take, step by step."""
    prompts = running * PROMPT
    seconds = engine.prefill.fixed_s + engine.prefill_s(prompts)
    for step in range(1, tokens):
        seconds += engine.step(running, prompts + running * step).base_s
    return seconds


def probed(engine: MeasuredEngine) -> list[DecodeProbe]:
    """Return what a machine without noise shows."""
    return [
        DecodeProbe(
            running=running,
            prompt_tokens=running * PROMPT,
            new_tokens=tokens,
            seconds=took_s(engine, running, tokens),
        )
        for running in (1, 2, 4, 8)
        for tokens in (1, 16, 32, 64)
    ]


def engine_of(
    steps_s: list[float], per_context_token_s: float, fixed_s: float, per_token_s: float
) -> MeasuredEngine:
    points = zip((1, 2, 4, 8), sorted(steps_s), strict=True)
    return MeasuredEngine(
        decode=MeasuredDecode(
            steps=tuple(DecodePoint(running=running, step_s=step) for running, step in points),
            per_context_token_s=per_context_token_s,
        ),
        prefill=MeasuredPrefill(fixed_s=fixed_s, per_token_s=per_token_s),
    )


@given(
    steps_s=st.lists(st.floats(1e-4, 1e-1), min_size=4, max_size=4),
    per_context_token_s=st.floats(1e-8, 1e-5),
    fixed_s=st.floats(1e-4, 1e-1),
    per_token_s=st.floats(1e-7, 1e-3),
)
def test_costs_of_an_engine_are_found_again(
    steps_s: list[float], per_context_token_s: float, fixed_s: float, per_token_s: float
) -> None:
    """Where there is no noise, every duration is explained."""
    engine = engine_of(steps_s, per_context_token_s, fixed_s, per_token_s)
    found = fit_engine(probed(engine))
    for running in (1, 2, 4, 8):
        for tokens in (1, 20, 64):
            wanted = took_s(engine, running, tokens)
            assert took_s(found, running, tokens) == pytest.approx(wanted, rel=1e-3)


def test_step_times_never_fall() -> None:
    """A step with more requests that seems quicker is noise."""
    engine = engine_of([1e-3, 2e-3, 3e-3, 4e-3], 0.0, 1e-3, 1e-6)
    noisy = [
        probe
        if probe.running != 4
        else DecodeProbe(
            running=4,
            prompt_tokens=probe.prompt_tokens,
            new_tokens=probe.new_tokens,
            seconds=probe.seconds / 10,
        )
        for probe in probed(engine)
    ]
    steps = [point.step_s for point in fit_engine(noisy).decode.steps]
    assert steps == sorted(steps)


def fit_probe(tokens: int, sequences: int, beyond_s: float = 0.0) -> FitProbe:
    """Return a fit step of 10 ms + 2 us a token + 1 ms a response, after 5 ms for advantages."""
    update_s = 0.01 + 2e-6 * tokens + 1e-3 * sequences
    return FitProbe(
        tokens=tokens,
        sequences=sequences,
        timing_s={"adv": 0.005, "update_actor": update_s},
        seconds=0.005 + update_s + beyond_s,
    )


SIZES = ((1000, 10), (4000, 10), (2000, 20), (8000, 20))


def test_fit_steps_are_explained() -> None:
    """Each timing key has its own costs."""
    found = fit_timings([fit_probe(*size) for size in SIZES])
    work = FitWork(tokens=3000, squared_tokens=0.0, sequences=15, optimizer_steps=1)
    assert list(found) == ["adv", "update_actor"]
    assert found["adv"].seconds(work) == pytest.approx(0.005)
    assert found["update_actor"].seconds(work) == pytest.approx(0.01 + 0.006 + 0.015)


def test_what_a_verb_takes_beyond_its_parts_is_not_forgotten() -> None:
    """It counts to the last part."""
    found = fit_timings([fit_probe(*size, beyond_s=0.1) for size in SIZES])
    work = FitWork(tokens=1000, squared_tokens=0.0, sequences=10, optimizer_steps=1)
    assert found["update_actor"].seconds(work) == pytest.approx(0.122)


def test_no_cost_is_negative() -> None:
    """Where noise says so, the cost is 0 and the others explain what there is."""
    probes = [
        FitProbe(tokens=tokens, sequences=1, timing_s={"update_actor": s}, seconds=s)
        for tokens, s in ((100, 0.4), (200, 0.3), (300, 0.2))
    ]
    timing = fit_timings(probes)["update_actor"]
    assert min(timing.fixed_s, timing.per_token_s, timing.per_sequence_s) >= 0.0
    assert timing != MeasuredTiming()
