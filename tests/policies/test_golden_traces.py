"""The built-in policies decide today as they did when their traces were written down.

``SWINGSHIFT_REGENERATE_GOLDENS=1`` writes the traces anew; the change belongs in review.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.policies.histories import EASY, HARD, Cycle, snapshots

from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.registry import build_policy

GOLDEN = Path(__file__).parent / "golden"

HISTORY = [
    Cycle(activate_s=6.0),
    *[HARD] * 7,
    *[Cycle(waited_samples=20, waited_s=90.0, left_over=4, activate_s=6.5, deactivate_s=3.5)] * 6,
    *[Cycle(waited_samples=3, waited_s=12.0, left_over=30, deactivate_s=4.0)] * 8,
    *[EASY] * 40,
    *[Cycle(waited_samples=1, waited_s=0.5, left_over=-3, activate_s=40.0, deactivate_s=20.0)] * 6,
    *[Cycle(left_over=10)] * 6,
    *[HARD] * 12,
    *[Cycle(waited_samples=64, waited_s=300.0, only_hybrid=True)] * 3,
    *[Cycle(waited_samples=8, waited_s=40.0, left_over=-20, activate_s=1500.0)] * 4,
    *[HARD] * 3,
]


def trace(name: str) -> list[list[object]]:
    """Return version, lends, rebalance and wait for each cycle of the history."""
    guard = GuardedPolicy(build_policy(name, deactivate_ratio=0.6), strict=True)
    rows: list[list[object]] = []
    for version, ctx in snapshots(HISTORY):
        lends = guard.should_activate_after_step(version, False, ctx)
        rebalance = guard.request_rebalance(version, ctx) if lends else None
        guard.update_after_step(version, ctx)
        wait = guard.before_fit_step(version, lends).evaluate(ctx)
        rows.append([version, lends, rebalance.scope.value if rebalance else None, wait])
    return rows


@pytest.mark.parametrize("name", ["default", "fixed_ratio", "static_fully_async"])
def test_decisions_are_those_written_down(name: str) -> None:
    """One fixed history of regimes, one trace per policy."""
    path = GOLDEN / f"{name}.json"
    rows = trace(name)

    if os.environ.get("SWINGSHIFT_REGENERATE_GOLDENS") == "1":
        lines = ",\n".join(json.dumps(row) for row in rows)
        path.write_text(f"[\n{lines}\n]\n")

    assert rows == json.loads(path.read_text())
