"""A controller of the small world with a workload that tests drive by hand."""

from __future__ import annotations

import asyncio

import attrs
from tests.executors.support import (
    ListSink,
    ScriptedExecutor,
    ScriptedPolicy,
    small_config,
    small_executor,
    small_options,
)

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.restarts import Restarts
from swingshift.executors.runtime.switching import Steps
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.config import RunConfig, RuntimeConfig
from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.events import (
    ControllerMoved,
    Event,
    GpuStateChanged,
    MemoryMeasured,
    ReplicaMoved,
    RoutingChanged,
    SwitchStep,
    WeightsSynced,
)
from swingshift.sdk.executor import GenerationRequest, Inventory, Prompt
from swingshift.sdk.guard import GuardedPolicy

RUNTIME = RuntimeConfig(
    switch_step_deadline_s=50.0,
    sync_deadline_s=60.0,
    request_deadline_s=200.0,
    drain_deadline_s=200.0,
    wait_deadline_s=500.0,
)


class HandWorkload:
    """A workload whose queue a test fills.

    Attributes:
        size: Samples buffered.
        attainable: Most samples that can be buffered.
        outcome: How production ended, if it did.
        in_flight: Episodes that `drain` waits for.
        incoming: Requests that are submitted next.
        log: ``drain``, ``drained`` and ``resume`` as they happened.
    """

    def __init__(self, fleet: Fleet, changes: Changes) -> None:
        self.size = 0
        self.attainable = 12
        self.outcome: WaitOutcome | None = None
        self.in_flight = 0
        self.incoming = 0
        self.log: list[str] = []
        self._fleet = fleet
        self._changes = changes

    def put(self, samples: int = 1) -> None:
        """Buffer samples and tell whoever waits."""
        self.size += samples
        self._changes.notify()

    def end(self, outcome: WaitOutcome) -> None:
        """End production."""
        self.outcome = outcome
        self.attainable = self.size
        self._changes.notify()

    def finish_episodes(self) -> None:
        """Let what is in flight end."""
        self.in_flight = 0
        self._changes.notify()

    def snapshot(
        self, *, last_activate_duration_s: float, last_deactivate_duration_s: float
    ) -> DynamicScheduleContext:
        """Return a snapshot of collections of 4 and cycles of 2."""
        return DynamicScheduleContext(
            required_samples=4,
            trigger_parameter_sync_step=2,
            total_generated_samples=self.size,
            expected_samples=0,
            buffer_samples=0,
            step_wait_times=(),
            step_wait_samples=(),
            only_hybrid=self._fleet.only_hybrid,
            last_activate_duration_s=last_activate_duration_s,
            last_deactivate_duration_s=last_deactivate_duration_s,
            attainable_samples=self.attainable,
            telemetry=Telemetry(
                queue_size=self.size,
                samples_in_flight=0,
                tokens_in_flight=0,
                standalone_samples_per_s=None,
                hybrid_samples_per_s=None,
                fit_step_s=(),
                weight_sync_s=None,
                serving_standalone_replicas=0,
                serving_hybrid_replicas=0,
                hybrid_replicas=2,
                loop_time_s=0.0,
            ),
        )

    def queue_size(self) -> int:
        return self.size

    def ended(self) -> WaitOutcome | None:
        return self.outcome

    def incoming_requests(self) -> int:
        return self.incoming

    async def changed(self) -> None:
        await self._changes.wait()

    async def drain(self) -> None:
        self.log.append("drain")
        while self.in_flight:
            await self._changes.wait()
        self.log.append("drained")

    def resume_submission(self) -> None:
        self.log.append("resume")


@attrs.frozen(kw_only=True)
class Plane:
    """Everything a controller has to do with."""

    executor: ScriptedExecutor
    inventory: Inventory
    sink: ListSink
    recorder: Recorder
    changes: Changes
    balancer: LoadBalancer
    fleet: Fleet
    workload: HandWorkload
    policy: ScriptedPolicy
    steps: Steps
    controller: DynamicResourceController

    def mark(self) -> int:
        """Return the number of events so far."""
        return len(self.sink.events)

    def story(self, since: int = 0) -> list[str]:
        """Return the steps of switches and the moves they made, one short line each."""
        return [line for event in self.sink.events[since:] if (line := told(event))]

    async def occupy(self, *requests: str) -> list[asyncio.Task[str]]:
        """Route long requests to replicas; each task returns how its request ended, and where."""

        async def hold(name: str) -> str:
            lease = await self.balancer.acquire(name)
            request = GenerationRequest(name, Prompt(0, 16, "0"), 0, 30_000)
            try:
                answer = await self.executor.generate(lease.replica, request)
            finally:
                self.balancer.release(lease)
            return f"{answer.finish_reason.value} of {lease.replica}"

        tasks = [asyncio.create_task(hold(name)) for name in requests]
        await asyncio.sleep(0)
        return tasks


def told(event: Event) -> str:
    """Return an event of a switch as one short line, or nothing for any other."""
    if isinstance(event, SwitchStep):
        names = ",".join(event.replicas)
        failed = "" if event.outcome == "done" else f" ({event.outcome})"
        return f"{event.switch}: {event.step} {names}".strip() + failed
    if isinstance(event, ControllerMoved):
        return f"controller {event.after}"
    if isinstance(event, ReplicaMoved):
        return f"{event.replica} {event.after}"
    if isinstance(event, RoutingChanged):
        return f"{event.replica} {'in' if event.routed else 'out'}"
    if isinstance(event, WeightsSynced):
        return f"sync {event.group} {event.version}"
    if isinstance(event, MemoryMeasured):
        return f"measured {','.join(event.free_bytes)}"
    return ""


async def plane(
    config: RunConfig | None = None,
    *,
    policy: ScriptedPolicy | None = None,
    options: SimulatedOptions | None = None,
    runtime: RuntimeConfig = RUNTIME,
    partial_rollout: bool = True,
    enable_rebalance: bool = True,
    strict: bool = True,
    guarded: bool = True,
) -> Plane:
    """Start a small executor and build a controller over it.

    Args:
        config: Of the executor's topology.
        policy: Decides; lends always by default.
        options: The modelled world.
        runtime: Deadlines.
        partial_rollout: Whether responses may span versions.
        enable_rebalance: Whether the policy is asked for a rebalance.
        strict: Whether a fault of the policy raises.
        guarded: Whether there is a policy at all.
    """
    executor = small_executor(config or small_config(), options or small_options())
    inventory = await executor.start()
    recorder, sink = Recorder(), ListSink()
    recorder.subscribe(sink)
    changes, balancer = Changes(), LoadBalancer()
    fleet = Fleet(inventory, balancer, recorder, changes)
    workload = HandWorkload(fleet, changes)
    policy = policy or ScriptedPolicy()
    deadlines = Deadlines(expiry_is_fault=False)
    controller = DynamicResourceController(
        executor,
        fleet,
        balancer,
        GuardedPolicy(policy, strict=strict) if guarded else None,
        workload,
        recorder,
        deadlines,
        Restarts(
            executor,
            fleet,
            recorder,
            deadlines,
            deadline_s=runtime.restart_deadline_s,
            attempts=runtime.restart_attempts,
        ),
        config=runtime,
        enable_rebalance=enable_rebalance,
        partial_rollout=partial_rollout,
    )
    return Plane(
        executor=executor,
        inventory=inventory,
        sink=sink,
        recorder=recorder,
        changes=changes,
        balancer=balancer,
        fleet=fleet,
        workload=workload,
        policy=policy,
        steps=Steps(
            executor,
            fleet,
            recorder,
            deadlines,
            step_s=runtime.switch_step_deadline_s,
            sync_s=runtime.sync_deadline_s,
        ),
        controller=controller,
    )


async def opened(p: Plane) -> Plane:
    """Sync version 0 as a run does first; GPUs are lent if the policy says so."""
    await p.controller.at_weight_sync(0)
    p.controller.end_cycle(0)
    return p


async def lent(p: Plane) -> Plane:
    """Open with GPUs lent and enough buffered to get them back at once."""
    await opened(p)
    assert p.controller.is_hybrid_active
    p.workload.put(5)
    return p


def gpu_states(sink: ListSink) -> dict[str, str]:
    """Return the state each GPU is booked under after the events so far."""
    states: dict[str, str] = {}
    for event in sink.of(GpuStateChanged):
        states.update(dict.fromkeys(event.gpus, event.state))
    return states
