"""Speed of single parts: the balancer, a guarded question, the import of the contracts."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from functools import partial

from swingshift.benchmarks.perf.figure import Figure, Target, best_of
from swingshift.executors.runtime.load_balancer import Lease, LoadBalancer
from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.registry import build_policy

PAIRS_PER_S = Target(limit=100_000, is_floor=True)
QUESTION_US = Target(limit=50, is_floor=False)
IMPORT_S = Target(limit=0.1, is_floor=False)
IMPORTED = ("attr", "attrs")

_BALANCED_REPLICAS = (4, 1280)
_LEASES_PER_REPLICA = 32
_POLICIES = ("default", "fixed_ratio", "static_fully_async")
_FIT_STEPS = 4

_IMPORT_PROBE = """
import sys, time
before = set(sys.modules)
started_s = time.perf_counter()
import swingshift.sdk
print(time.perf_counter() - started_s)
roots = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(roots - set(sys.stdlib_module_names) - {"swingshift"}))
"""


def balancer_figures(pairs: int, repetitions: int) -> Iterator[Figure]:
    """Measure acquisitions and releases in a cluster of a few and of very many replicas.

    Args:
        pairs: Acquisitions, and as many releases, of one repetition.
        repetitions: At least 1.
    """
    for replicas in _BALANCED_REPLICAS:
        measured = best_of(repetitions, partial(_pairs_per_s, replicas, pairs), highest=True)
        yield Figure(
            name=f"balancer, {replicas} replicas",
            measured=measured,
            unit="pairs/s",
            target=PAIRS_PER_S,
            how=f"acquire with a sticky session, release and forget of the oldest of "
            f"{_LEASES_PER_REPLICA} leases per replica; {pairs:,} pairs per CPU second",
        )


def question_figures(cycles: int, repetitions: int) -> Iterator[Figure]:
    """Measure a guarded question of each built-in policy, and the snapshot it is asked about.

    Args:
        cycles: Sync cycles of one repetition; each asks about ten questions.
        repetitions: At least 1.
    """
    for name in _POLICIES:
        measured = best_of(repetitions, partial(_question_us, name, cycles), highest=False)
        yield Figure(
            name=f"asking {name}",
            measured=measured,
            unit="µs",
            target=QUESTION_US,
            how=f"the guard's calls of {cycles:,} cycles with {_FIT_STEPS} fit steps, GPUs lent "
            "before the first; CPU time per question to the policy, its snapshot made before",
        )
    measured = best_of(repetitions, partial(_snapshot_us, cycles * _FIT_STEPS), highest=False)
    yield Figure(
        name="snapshot for a question",
        measured=measured,
        unit="µs",
        how="CPU time to make and validate one snapshot with its telemetry",
    )


def import_figure(repetitions: int) -> Figure:
    """Measure the import of the contracts in fresh interpreters, and name what it loads.

    Args:
        repetitions: At least 1.
    """
    loaded: set[str] = set()

    def measure() -> float:
        probe = [sys.executable, "-c", _IMPORT_PROBE]
        printed = subprocess.run(probe, capture_output=True, text=True, check=True).stdout
        seconds, _, modules = printed.partition("\n")
        loaded.update(modules.split())
        return float(seconds)

    measured = best_of(repetitions, measure, highest=False)
    others = sorted(loaded - set(IMPORTED))
    return Figure(
        name="import swingshift.sdk",
        measured=measured,
        unit="s",
        target=IMPORT_S,
        how="wall clock of the import statement in a fresh interpreter",
        detail=f"loads attrs and, against the rule, {', '.join(others)}"
        if others
        else "attrs is the only dependency loaded",
    )


def snapshot(stock: int = 20) -> DynamicScheduleContext:
    """Return a snapshot as a run makes them, telemetry included."""
    return DynamicScheduleContext(
        required_samples=16,
        trigger_parameter_sync_step=4,
        total_generated_samples=6400 + stock,
        expected_samples=6400,
        buffer_samples=3200,
        step_wait_times=(0.0, 12.5, 0.0, 31.0),
        step_wait_samples=(0, 3, 0, 9),
        only_hybrid=False,
        last_activate_duration_s=12.0,
        last_deactivate_duration_s=6.0,
        attainable_samples=96,
        telemetry=Telemetry(
            queue_size=stock,
            samples_in_flight=60,
            tokens_in_flight=4_000_000,
            standalone_samples_per_s=0.12,
            hybrid_samples_per_s=0.1,
            fit_step_s=(80.0, 82.0, 79.0, 85.0),
            weight_sync_s=5.0,
            serving_standalone_replicas=2,
            serving_hybrid_replicas=2,
            hybrid_replicas=2,
            loop_time_s=44_000.0,
        ),
    )


def _pairs_per_s(replicas: int, pairs: int) -> float:
    balancer = LoadBalancer()
    for number in range(replicas):
        balancer.add(f"replica-{number}")
    held: deque[Lease] = deque()
    keys = [f"request-{number}" for number in range(replicas * _LEASES_PER_REPLICA + pairs)]
    begin = replicas * _LEASES_PER_REPLICA
    for key in keys[:begin]:
        lease = balancer.try_acquire(key, key)
        if lease is not None:
            held.append(lease)
    started_s = time.process_time()
    for key in keys[begin:]:
        lease = balancer.try_acquire(key, key)
        if lease is not None:
            held.append(lease)
        oldest = held.popleft()
        balancer.release(oldest)
        balancer.forget(oldest.request_id)
    return pairs / (time.process_time() - started_s)


def _question_us(policy: str, cycles: int) -> float:
    guard = GuardedPolicy(build_policy(policy), strict=True, on_decision=lambda decision: None)
    ctx = snapshot()
    questions = 0
    started_s = time.process_time()
    for version in range(cycles):
        lends = guard.should_activate_after_step(version, False, ctx)
        if lends:
            guard.request_rebalance(version, ctx)
        guard.update_after_step(version, ctx)
        for step in range(_FIT_STEPS):
            guard.before_fit_step(version, lends and step == 0).evaluate(ctx)
        # the guard asks twice where GPUs are lent: whether they go back, and after how many
        questions += 2 + _FIT_STEPS + (2 if lends else 0)
    return 1e6 * (time.process_time() - started_s) / questions


def _snapshot_us(count: int) -> float:
    started_s = time.process_time()
    for number in range(count):
        snapshot(number)
    return 1e6 * (time.process_time() - started_s) / count
