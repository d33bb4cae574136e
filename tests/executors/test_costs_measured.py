"""Measured costs: the curve of step times, what a batch takes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.measured import COSTS, DECODE, ENGINE
from tests.executors.support import MODEL

from swingshift.executors.app.configuration import dump_section, structure_section
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredCosts,
    MeasuredDecode,
    MeasuredMemory,
    MeasuredTiming,
)
from swingshift.executors.simulated.costs.training import FitWork
from swingshift.executors.simulated.costs.transfer import TransferParameters
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError


@st.composite
def curves(draw: st.DrawFn) -> MeasuredDecode:
    """Draw a curve of one point or more."""
    running = sorted(draw(st.sets(st.integers(1, 200), min_size=1, max_size=6)))
    times = st.floats(1e-4, 1.0)
    return MeasuredDecode(
        steps=tuple(DecodePoint(running=count, step_s=draw(times)) for count in running)
    )


@pytest.mark.parametrize(
    ("running", "step_s"),
    [(1, 0.1), (2, 0.16), (3, 0.17), (5, 0.19), (6, 0.2), (10, 0.24)],
)
def test_step_times_lie_on_straight_lines(running: int, step_s: float) -> None:
    """0.01 s a request between 2 and 6, and on beyond them."""
    assert DECODE.step_s(running) == pytest.approx(step_s)


@given(curves(), st.integers(1, 300))
def test_step_times_stay_between_their_neighbours(decode: MeasuredDecode, running: int) -> None:
    """Through every point, between two of them, and never below the last one beyond it."""
    points = decode.steps
    assert all(decode.step_s(p.running) == pytest.approx(p.step_s) for p in points)
    below = [point for point in points if point.running <= running] or [points[0]]
    above = [point for point in points if point.running >= running]
    step_s = decode.step_s(running)
    if above:
        low, high = sorted((below[-1].step_s, above[0].step_s))
        assert low - 1e-9 <= step_s <= high + 1e-9
    else:
        assert step_s >= points[-1].step_s


def test_context_makes_steps_longer() -> None:
    """By the same for each token, and by one token of each request with every step."""
    decode = attrs.evolve(DECODE, per_context_token_s=0.001)
    engine = attrs.evolve(ENGINE, decode=decode)

    assert engine.step(2, 100.0) == pytest.approx((0.26, 0.002))


def test_a_fit_step_by_hand() -> None:
    """100 tokens in 3 sequences: 100 x 0.01, and 1 + 100 x 0.02 + 3 x 0.1."""
    work = FitWork.of([20, 30, 50])

    assert COSTS.fit_seconds(work) == {
        "old_log_prob": pytest.approx(1.0),
        "update_actor": pytest.approx(3.3),
    }


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: MeasuredDecode(steps=()), "steps"),
        pytest.param(lambda: MeasuredDecode(steps=DECODE.steps[::-1]), "steps", id="falling"),
        pytest.param(lambda: MeasuredDecode(steps=DECODE.steps[:1] * 2), "steps", id="twice"),
        (lambda: DecodePoint(running=True, step_s=0.1), "running"),
        (lambda: DecodePoint(running=1, step_s=0.0), "step_s"),
        (lambda: MeasuredTiming(per_token_s=float("nan")), "per_token_s"),
        (lambda: attrs.evolve(COSTS, fit_step={}), "fit_step"),
        (lambda: attrs.evolve(ENGINE, kv_capacity_tokens=0), "kv_capacity_tokens"),
        (
            lambda: MeasuredMemory(
                device_bytes=39.0, parameters_bytes=10.0, optimizer_and_gradients_bytes=30.0
            ),
            "device_bytes",
        ),
    ],
)
def test_what_cannot_have_been_measured_is_refused(make: Callable[[], object], name: str) -> None:
    """The error names the attribute."""
    with pytest.raises(InvalidValueError) as caught:
        make()
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({}, "executor.model: null is not allowed; expected a section or a name: a machine is "),
        ({"gpu": "H20"}, "executor.model: null is not allowed; expected a section or a name"),
        ({"model": dump_section(MODEL)}, "executor.gpu: null is not allowed; expected a section"),
        (
            {"measured": dump_section(COSTS), "gpu": "H20"},
            "executor.gpu: GpuSpec(name='H20', ",
        ),
        (
            {"measured": dump_section(COSTS), "transfer": {"sleep_latency_s": 2.0}},
            "executor.transfer: TransferParameters(",
        ),
        (
            {"measured": {**dump_section(COSTS), "sync": {"standalone_s": 0.5}}},
            "executor.measured.sync.hybrid_s: missing; expected a finite number >= 0",
        ),
        (
            {"measured": {**dump_section(COSTS), "slep_s": 1.0}},
            "executor.measured.slep_s: unknown key (value 1.0)",
        ),
    ],
)
def test_one_of_the_two_forms_must_be_complete(section: dict[str, object], line: str) -> None:
    """The error names the key that is missing, or too many."""
    with pytest.raises(ConfigError) as caught:
        structure_section(SimulatedOptions, section, "executor")
    assert str(caught.value).startswith(line)


def test_both_forms_do_without_the_other() -> None:
    """A modelled machine has no measured part, a measured one neither model nor GPU."""
    modelled = SimulatedOptions(model=MODEL, gpu=H20)

    assert modelled.model_and_gpu() == (MODEL, H20)
    assert SimulatedOptions(measured=COSTS, transfer=TransferParameters()).model is None


def test_costs_are_written_out_and_read_again() -> None:
    """`dump_section` gives the plain keys from which the same costs come back."""
    written = dump_section(COSTS)

    assert written["sync"] == {"standalone_s": 0.5, "hybrid_s": 0.7}
    assert structure_section(MeasuredCosts, written) == COSTS
