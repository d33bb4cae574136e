"""The built-in policies decide in a simulated run as they did when their traces were written down.

Responses are long, short, long again and then middling, so that rollout and training are the
bottleneck in turn. ``SWINGSHIFT_REGENERATE_GOLDENS=1`` writes the traces anew; the change belongs
in review.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import attrs
import pytest
from tests.executors.support import run_training, small_config, small_options

from swingshift.executors.simulated.costs.lengths import LengthModel
from swingshift.executors.simulated.costs.schedule import Regime, Schedule
from swingshift.sdk.events import PolicyDecided
from swingshift.sdk.registry import build_policy

GOLDEN = Path(__file__).parent / "golden"
REGIMES = (
    Regime(start=120, factor=0.04),
    Regime(start=280, factor=1.5),
    Regime(start=360, factor=0.15),
)
OPTIONS = attrs.evolve(
    small_options(),
    lengths=LengthModel(mean_tokens=8_000.0, max_tokens=32_000, schedule=Schedule(regimes=REGIMES)),
)


CONFIG = small_config(prompts=480, training={"staleness_threshold": 1.0})


def trace(name: str) -> list[list[object]]:
    """Return version, lends, rebalance and the waits of its fit steps for each cycle of a run."""
    policy = build_policy(name, deactivate_ratio=0.6)
    ran = run_training(CONFIG, policy, options=OPTIONS)
    rows: list[list[object]] = []
    waits: list[object] = []
    for decision in ran.sink.of(PolicyDecided):
        if decision.question == "should_activate_after_step":
            waits = []
            rows.append([decision.global_steps, decision.effective, None, waits])
        elif decision.question == "request_rebalance":
            rows[-1][2] = decision.effective
        elif decision.question == "deactivate_wait_samples":
            waits.append(decision.effective)
    return rows


@pytest.mark.parametrize("name", ["default", "fixed_ratio", "static_fully_async"])
def test_decisions_in_a_run_are_those_written_down(name: str) -> None:
    """One configuration, one trace per policy."""
    path = GOLDEN / f"{name}.json"
    rows = trace(name)

    if os.environ.get("SWINGSHIFT_REGENERATE_GOLDENS") == "1":
        lines = ",\n".join(json.dumps(row) for row in rows)
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"[\n{lines}\n]\n")

    assert rows == json.loads(path.read_text())


def test_traces_show_what_the_policies_are_for() -> None:
    """Golden is a run in which `default` lends at times and adapts, and the others do not."""
    lends = {name: {row[1] for row in trace(name)} for name in ("default", "static_fully_async")}
    waits = {str(row[3]) for row in trace("default")}

    assert lends == {"default": {True, False}, "static_fully_async": {False}}
    assert len(waits) > 3
