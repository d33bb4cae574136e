"""The laws of the policy contract by name.

Every law judges the bare policy, except ``liveness``, which judges it under the guard. A policy
that raises, or answers with a value of the wrong type, breaks ``total`` alone: the other laws
judge what it did up to there. One that does not come back breaks each law that comes across it:
nothing can be judged beyond it.
"""

from __future__ import annotations

from swingshift.sdk.testing.answer_laws import (
    bounded_wait,
    deactivates_only_active,
    pure_questions,
    total,
)
from swingshift.sdk.testing.history_laws import (
    FAST_RECOVERY_CYCLES,
    LONGEST_CALM,
    RECOVERY_CYCLES,
    deterministic_replay,
    liveness,
    no_wind_up,
    state_round_trip,
)
from swingshift.sdk.testing.law import Law

LAWS: tuple[Law, ...] = (
    Law(
        name="total",
        promise="never raises on a valid snapshot, and answers with a bool, an int or a Rebalance",
        judge=total,
    ),
    Law(
        name="pure_questions",
        promise="a question asked twice is answered alike and leaves state_dict() as it was",
        judge=pure_questions,
    ),
    Law(
        name="deterministic_replay",
        promise="the same history gives the same answers, at any time of day",
        judge=deterministic_replay,
    ),
    Law(
        name="bounded_wait",
        promise="the wait is from 0 to the samples of a full cycle",
        judge=bounded_wait,
    ),
    Law(
        name="deactivates_only_active",
        promise="does not take GPUs back that are not lent",
        judge=deactivates_only_active,
    ),
    Law(
        name="state_round_trip",
        promise="restored from state_dict() by way of JSON, it answers as the original would",
        judge=state_round_trip,
    ),
    Law(
        name="no_wind_up",
        promise=f"after a calm of up to {LONGEST_CALM} cycles the wait is back within"
        f" {RECOVERY_CYCLES} cycles with waits, within"
        f" {FAST_RECOVERY_CYCLES} if every sample was waited for",
        judge=no_wind_up,
    ),
    Law(
        name="liveness",
        promise="lets lent GPUs go by itself, also when the data ends at any sample",
        judge=liveness,
    ),
)
"""All laws, in the order of reports."""

LAW_NAMES: tuple[str, ...] = tuple(law.name for law in LAWS)
