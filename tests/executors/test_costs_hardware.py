"""GPU presets and their validation."""

from __future__ import annotations

import math

import attrs
import pytest

from swingshift.executors.simulated.costs.hardware import H20, GpuSpec
from swingshift.sdk.validators import InvalidValueError


def test_presets_carry_the_datasheet_figures() -> None:
    """Memory, bandwidth and FLOP/s are those of the vendor's datasheets."""
    figures = {
        name: (spec.memory_bytes, spec.memory_bandwidth_bytes_per_s, spec.bf16_flops_per_s)
        for name, spec in GpuSpec.presets.items()
    }
    assert figures == {
        "H20": (96e9, 4.0e12, 148e12),
        "H100": (80e9, 3.35e12, 990e12),
        "H200": (141e9, 4.8e12, 990e12),
    }


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, True])
def test_every_rate_refuses_what_is_no_positive_number(value: float) -> None:
    """No field takes zero, a negative, NaN, infinity or a bool, and the message names the field."""
    for field in attrs.fields(GpuSpec)[1:]:
        with pytest.raises(InvalidValueError, match=f"{field.name} must be a finite number"):
            GpuSpec(**(attrs.asdict(H20) | {field.name: value}))
