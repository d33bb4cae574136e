"""The public strategies: whatever they draw could come from a run."""

from __future__ import annotations

import itertools

from hypothesis import find, given

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.testing import (
    Cycle,
    History,
    Regime,
    contexts,
    cycles,
    histories,
    regimes,
    telemetries,
)

HARD = Cycle(waited_samples=40, waited_s=20.0, left_over=5, activate_s=6.0, deactivate_s=4.0)


@given(contexts())
def test_a_snapshot_fits_together(ctx: DynamicScheduleContext) -> None:
    """One entry for each collection of the cycle that ended, and none before the first."""
    cycles_done, rest = divmod(ctx.expected_samples, ctx.step_required_samples)

    assert rest == 0
    assert len(ctx.step_wait_times) == (ctx.trigger_parameter_sync_step if cycles_done else 0)
    assert all(samples <= ctx.required_samples for samples in ctx.step_wait_samples)
    assert ctx.total_generated_samples >= ctx.expected_samples
    if ctx.telemetry is not None and ctx.attainable_samples is not None:
        assert ctx.telemetry.queue_size <= ctx.attainable_samples


@given(telemetries())
def test_serving_hybrid_replicas_are_hybrid_replicas(telemetry: Telemetry) -> None:
    """Those serving are some of those that could be lent."""
    assert telemetry.serving_hybrid_replicas <= telemetry.hybrid_replicas


@given(regimes(8))
def test_a_regime_is_one_kind_of_cycle_repeated(regime: Regime) -> None:
    """1 to 60 times, within the samples of a cycle."""
    assert 1 <= regime.times <= 60
    assert regime.cycle.waited_samples <= 8
    assert regime.cycle.left_over <= 8


@given(histories())
def test_a_history_goes_forward(history: History) -> None:
    """Versions count up; what was generated never shrinks and the clock never goes back."""
    moments = history.moments()
    snapshots = [ctx for moment in moments for ctx in (moment.at_sync, moment.before_fit)]

    assert [moment.version for moment in moments] == list(range(history.cycles + 1))
    for earlier, later in itertools.pairwise(snapshots):
        assert earlier.total_generated_samples <= later.total_generated_samples
        if earlier.telemetry is not None and later.telemetry is not None:
            assert earlier.telemetry.loop_time_s < later.telemetry.loop_time_s


def test_a_snapshot_of_a_history_by_hand() -> None:
    """64 samples a cycle, 40 of them waited for from the first collection on."""
    history = History(staleness_threshold=0.5, regimes=(Regime(cycle=HARD, times=2),))
    start, _, last = history.moments()

    assert start.at_sync.step_wait_samples == ()
    assert start.at_sync.total_generated_samples == start.at_sync.last_activate_duration_s == 0
    assert last.at_sync.step_wait_samples == (16, 16, 8, 0)
    assert last.at_sync.step_wait_times == (8.0, 8.0, 4.0, 0.0)
    assert last.at_sync.expected_samples == 128
    assert last.at_sync.total_generated_samples == 133
    assert last.at_sync.buffer_samples == 64
    assert last.at_sync.last_activate_duration_s == 6.0
    assert last.before_fit.last_activate_duration_s == 0.0


def test_a_history_tells_the_way_to_a_version() -> None:
    """Like cycles are counted together, wherever a regime ends."""
    calm = Cycle()
    parts = (Regime(cycle=calm, times=1), Regime(cycle=calm, times=2), Regime(cycle=HARD, times=9))
    history = History(regimes=parts)

    assert history.place(0) == "at start-up"
    assert history.place(1) == "after 1 cycle without waits"
    assert history.place(3) == "after 3 cycles without waits"
    assert history.place(5) == (
        "after 3 cycles without waits, then 2 cycles that waited 20 s for 40 samples"
        " (5 left over, 10 s of switching)"
    )
    assert str(history).startswith("16 samples x 4 collections per cycle: start-up, then 3 cycles")


def test_what_is_unusual_in_a_cycle_is_told() -> None:
    """Once it does not shrink away, it matters."""
    cycle = find(cycles(), lambda drawn: drawn.only_hybrid and drawn.telemetry is not None)

    assert str(cycle) == "without waits (no standalone replica, with telemetry)"


def test_histories_shrink_to_the_start_up() -> None:
    """Of the usual sizes."""
    assert find(histories(), lambda _: True) == History()
