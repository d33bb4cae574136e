"""Puts together what lends GPUs and what recovers them: for our run and for a foreign loop."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.recovery import Recovery
from swingshift.executors.runtime.restarts import Restarts
from swingshift.executors.runtime.workload import Workload
from swingshift.sdk.config import RunConfig
from swingshift.sdk.events import StalenessReset
from swingshift.sdk.executor import Executor
from swingshift.sdk.guard import GuardedPolicy


@attrs.frozen
class Switchboard:
    """A controller, and what keeps its fleet alive beside it."""

    controller: DynamicResourceController
    recovery: Recovery


def build_switchboard(
    config: RunConfig,
    executor: Executor,
    fleet: Fleet,
    balancer: LoadBalancer,
    policy: GuardedPolicy | None,
    workload: Workload,
    recorder: Recorder,
    changes: Changes,
    deadlines: Deadlines,
    *,
    on_error: Callable[[BaseException], None],
) -> Switchboard:
    """Bind controller and recovery to each other; neither does anything yet.

    Args:
        config: Deadlines, retries and switches.
        executor: Acts.
        fleet: Book of replicas and GPUs.
        balancer: Routing.
        policy: Decides; None when there are no hybrid replicas.
        workload: What snapshots are made of.
        recorder: Hears of everything.
        changes: Notified whenever an answer of the workload or a replica's state changed.
        deadlines: Rule for a step that does not end.
        on_error: Called when recovery itself fails.
    """
    restarts = Restarts(
        executor,
        fleet,
        recorder,
        deadlines,
        deadline_s=config.runtime.restart_deadline_s,
        attempts=config.runtime.restart_attempts,
    )
    recorder.subscribe(restarts, StalenessReset)
    controller = DynamicResourceController(
        executor,
        fleet,
        balancer,
        policy,
        workload,
        recorder,
        deadlines,
        restarts,
        config=config.runtime,
        enable_rebalance=config.async_training.dynamic_schedule_enable_rebalance,
        partial_rollout=config.async_training.partial_rollout,
    )
    recovery = Recovery(executor, fleet, controller, restarts, changes, on_error=on_error)
    return Switchboard(controller, recovery)
