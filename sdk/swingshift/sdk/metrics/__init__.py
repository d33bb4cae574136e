"""What a run measures: utilizations, the GPU-second ledger, and how every metric aggregates.

Everything here is pure and knows no clock: times are passed in, in seconds of one monotonic clock
whose origin does not matter. Two classes accumulate (`RolloutWindow`, `GpuSecondLedger`) because a
run cannot keep its whole history; each has a pure function that it is proven equal to.
"""

from __future__ import annotations

from swingshift.sdk.metrics.catalogue import (
    METRICS,
    Aggregation,
    MetricSpec,
    aggregate,
    percentile,
)
from swingshift.sdk.metrics.ledger import (
    GpuId,
    GpuSecondLedger,
    GpuState,
    LedgerError,
    LedgerInterval,
    ledger_totals,
)
from swingshift.sdk.metrics.rollout import (
    RolloutPoint,
    RolloutWindow,
    concurrency_capacity,
    rollout_utilization,
    with_known_capacity,
)
from swingshift.sdk.metrics.utilization import (
    TRAIN_COMPUTE_KEYS,
    MicroStep,
    Ratio,
    cluster_utilization,
    hybrid_rollout_fraction,
    idle_ratio,
    train_compute_s,
    train_utilization,
)

__all__ = [
    "METRICS",
    "TRAIN_COMPUTE_KEYS",
    "Aggregation",
    "GpuId",
    "GpuSecondLedger",
    "GpuState",
    "LedgerError",
    "LedgerInterval",
    "MetricSpec",
    "MicroStep",
    "Ratio",
    "RolloutPoint",
    "RolloutWindow",
    "aggregate",
    "cluster_utilization",
    "concurrency_capacity",
    "hybrid_rollout_fraction",
    "idle_ratio",
    "ledger_totals",
    "percentile",
    "rollout_utilization",
    "train_compute_s",
    "train_utilization",
    "with_known_capacity",
]
