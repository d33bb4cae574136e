"""Snapshots: complete, frozen, and refused when they cannot be true."""

from __future__ import annotations

import math

import attrs
import pytest
from tests.sdk.snapshots import SNAPSHOT, TELEMETRY

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.validators import InvalidValueError


def test_the_cycle_is_the_product_of_its_collections() -> None:
    """`step_required_samples` is derived: 16 samples times 4 collections."""
    assert SNAPSHOT.step_required_samples == 64


def test_the_fields_of_the_specification_suffice() -> None:
    """What goes beyond the specification is unknown unless given."""
    assert SNAPSHOT.attainable_samples is None
    assert SNAPSHOT.telemetry is None
    required = [field.name for field in attrs.fields(DynamicScheduleContext)][:10]
    assert all(
        attrs.fields_dict(DynamicScheduleContext)[name].default is attrs.NOTHING
        for name in required
    )


def test_lists_become_tuples_and_whole_numbers_floats() -> None:
    """A snapshot shares nothing that its maker may still change."""
    waits_s = [1, 2.5]

    ctx = attrs.evolve(SNAPSHOT, step_wait_times=waits_s, step_wait_samples=[3, 4])
    waits_s.append(9)

    assert ctx.step_wait_times == (1.0, 2.5)
    assert ctx.step_wait_samples == (3, 4)
    assert hash(ctx) == hash(attrs.evolve(ctx))


def test_a_snapshot_cannot_be_changed() -> None:
    """A policy cannot alter what the next one sees."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        SNAPSHOT.expected_samples = 3  # type: ignore[misc]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        TELEMETRY.queue_size = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("required_samples", 0),
        ("required_samples", True),
        ("trigger_parameter_sync_step", 0),
        ("trigger_parameter_sync_step", 4.0),
        ("total_generated_samples", -1),
        ("expected_samples", -1),
        ("buffer_samples", math.inf),
        ("step_wait_times", (math.nan, 0.0, 0.0, 0.0)),
        ("step_wait_times", (-1.0, 0.0, 0.0, 0.0)),
        ("step_wait_samples", (True, 0, 0, 0)),
        ("step_wait_samples", "1234"),
        ("only_hybrid", 1),
        ("last_activate_duration_s", -0.1),
        ("last_deactivate_duration_s", math.inf),
        ("attainable_samples", -1),
        ("telemetry", {}),
    ],
)
def test_a_snapshot_that_cannot_be_true_is_refused(name: str, value: object) -> None:
    """The error names the field."""
    fields = attrs.asdict(SNAPSHOT, recurse=False) | {name: value}

    with pytest.raises(InvalidValueError, match=f"^{name}"):
        DynamicScheduleContext(**fields)


def test_the_parallel_sequences_have_one_length() -> None:
    """One wait time and one count per collection, never one without the other."""
    with pytest.raises(InvalidValueError, match="step_wait_samples must be as long as"):
        attrs.evolve(SNAPSHOT, step_wait_times=(1.0,))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue_size", -1),
        ("samples_in_flight", 1.5),
        ("tokens_in_flight", True),
        ("standalone_samples_per_s", math.nan),
        ("hybrid_samples_per_s", -1.0),
        ("fit_step_s", (1.0, -1.0)),
        ("weight_sync_s", math.inf),
        ("serving_standalone_replicas", -1),
        ("serving_hybrid_replicas", -1),
        ("hybrid_replicas", "2"),
        ("loop_time_s", math.nan),
    ],
)
def test_a_measurement_that_cannot_be_true_is_refused(name: str, value: object) -> None:
    """Telemetry is held to the same rules."""
    fields = attrs.asdict(TELEMETRY, recurse=False) | {name: value}

    with pytest.raises(InvalidValueError, match=f"^{name}"):
        Telemetry(**fields)
