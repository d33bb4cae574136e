"""Checks of the switches: lending, returning, and training only in between."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar

from swingshift.sdk.events import (
    BatchTrained,
    ControllerMoved,
    GpuStateChanged,
    MemoryMeasured,
    Rebalanced,
    ReplicaMoved,
    RoutingChanged,
    SwitchStep,
    WeightsSynced,
)
from swingshift.sdk.executor import SyncOutcome
from swingshift.sdk.lifecycle import ControllerState, ReplicaState
from swingshift.sdk.metrics import GpuState
from swingshift.sdk.testing._run_view import Check, Report, RunView

_ADMISSION = "add_to_balancer"
_ACTIVATION = (
    "offload_optimizer_and_gradients",
    "wake_weights",
    "sync",
    "offload_parameters",
    "wake_kv_cache",
    "resume",
    "canary",
    _ADMISSION,
)
_RELOADS = ("reload_parameters", "reload_optimizer_and_gradients")
# the parameters are still to be offloaded when an activation is rolled back before that step:
# else what is measured would not show what the replicas hold
_DEACTIVATION = ("offload_parameters", "abort", "sleep", "measure", *_RELOADS)
_TRAINER_STEPS = frozenset(step for step in _ACTIVATION if step.startswith("offload"))
_FIT, _SYNC, _TRAINER_STEP, _REPLICA_STEP = (
    "fit step",
    "weight sync",
    "switch step of the trainer",
    "switch step of a replica",
)
_EXCLUDES = {
    _FIT: (_FIT, _SYNC, _TRAINER_STEP, _REPLICA_STEP),
    _SYNC: (_FIT, _SYNC, _TRAINER_STEP),
    _TRAINER_STEP: (_FIT, _SYNC, _TRAINER_STEP),
    _REPLICA_STEP: (_FIT,),
}
# beginnings are worked out from durations
_TICK_S = 1e-6
# memory that is still short is slept for and measured again
_STEPS_BACK = frozenset({("measure", "sleep")})


class ActivationOrder(Check):
    """Lending goes step by step, for each replica; only then are requests spread anew."""

    name: ClassVar[str] = "activation_order"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin without an activation."""
        super().__init__(view, report)
        self._latest = 0
        self._done: set[tuple[str, str]] = set()

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Begin an activation, or see it end."""
        if event.after == ControllerState.ACTIVATING:
            self._latest, self._done = 0, set()
        elif event.after == ControllerState.HYBRID_ACTIVE and not self._is_done(_ADMISSION, ""):
            self.fail("the activation ended without a replica in routing")

    def on_switch_step(self, event: SwitchStep) -> None:
        """Take a step of the trainer or of one replica."""
        if event.switch == "activate":
            self._take(event.step, event.replicas or ("",), event.outcome)
        elif event.switch == "rebalance":
            self._expect_active("a rebalance")

    def on_weights_synced(self, event: WeightsSynced) -> None:
        """Take the sync of hybrid replicas as the step it is."""
        for replica, outcome in event.outcomes.items():
            if self.view.is_hybrid(replica) and outcome == SyncOutcome.SYNCED:
                self._take_or_rejoin("sync", replica)

    def on_routing_changed(self, event: RoutingChanged) -> None:
        """Take a hybrid replica's entry into routing as the last step."""
        if event.routed and self.view.is_hybrid(event.replica):
            self._take_or_rejoin(_ADMISSION, event.replica)

    def on_rebalanced(self, event: Rebalanced) -> None:
        """Requests are spread over replicas that are there already."""
        self._expect_active("a rebalance")

    def _take_or_rejoin(self, step: str, replica: str) -> None:
        # a replica that was lost while lent may come back as long as the others are lent
        if self.view.controller != ControllerState.HYBRID_ACTIVE:
            self._take(step, (replica,), "done")

    def _take(self, step: str, replicas: Iterable[str], outcome: str) -> None:
        if self.view.controller != ControllerState.ACTIVATING:
            self.fail(f"{step} while the controller is {self.view.controller!r}")
            return
        if step not in _ACTIVATION:
            self.fail(f"unknown step {step!r}; the steps are {', '.join(_ACTIVATION)}")
            return
        rank = _ACTIVATION.index(step)
        if rank < self._latest:
            self.fail(f"{step} came after {_ACTIVATION[self._latest]}")
        self._latest = max(rank, self._latest)
        for replica in replicas:
            missing = [name for name in _ACTIVATION[:rank] if not self._is_done(name, replica)]
            if missing:
                self.fail(f"{step} of {replica or 'the trainer'} without {', '.join(missing)}")
            if outcome == "done":
                self._done.add((step, replica))

    def _is_done(self, step: str, replica: str) -> bool:
        if step in _TRAINER_STEPS:
            return (step, "") in self._done
        if replica:
            return (step, replica) in self._done
        return any(done == step for done, _ in self._done)

    def _expect_active(self, what: str) -> None:
        if self.view.controller != ControllerState.HYBRID_ACTIVE:
            self.fail(f"{what} while the controller is {self.view.controller!r}")


class DeactivationOrder(Check):
    """Returning goes step by step: out of routing, aborted, asleep, measured, reloaded."""

    name: ClassVar[str] = "deactivation_order"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin without a deactivation."""
        super().__init__(view, report)
        self._latest = ""
        self._done: set[tuple[str, str]] = set()

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Begin a deactivation, or see it end."""
        if event.after == ControllerState.DEACTIVATING:
            self._latest, self._done = "", set()
        elif event.after == ControllerState.STANDALONE_ONLY:
            missing = [step for step in _RELOADS if (step, "") not in self._done]
            if missing:
                self.fail(f"the deactivation ended without {', '.join(missing)}")
            for replica, state in self.view.states.items():
                is_away = state in (ReplicaState.ASLEEP, ReplicaState.DEAD)
                if self.view.is_hybrid(replica) and not is_away:
                    self.fail(f"the deactivation ended with {replica} {state!r}")

    def on_switch_step(self, event: SwitchStep) -> None:
        """Take a step of the trainer or of one replica."""
        if event.switch != "deactivate":
            return
        self._take(event.step)
        for replica in event.replicas or ("",):
            if event.step == "abort" and replica in self.view.routing:
                self.fail(f"{replica} was aborted while in routing")
            if event.step == "sleep" and ("abort", replica) not in self._done:
                self.fail(f"{replica} was put to sleep without an abort")
            if event.outcome == "done":
                self._done.add((event.step, replica))

    def on_memory_measured(self, event: MemoryMeasured) -> None:
        """Take the measurement as the step it is."""
        self._take("measure")

    def _take(self, step: str) -> None:
        if self.view.controller != ControllerState.DEACTIVATING:
            self.fail(f"{step} while the controller is {self.view.controller!r}")
            return
        if step not in _DEACTIVATION:
            self.fail(f"unknown step {step!r}; the steps are {', '.join(_DEACTIVATION)}")
            return
        latest, self._latest = self._latest, step
        is_back = latest and _DEACTIVATION.index(step) < _DEACTIVATION.index(latest)
        # training state that did not all come back is reloaded from the first part on
        is_retry = step in _RELOADS and (latest, "") not in self._done
        if is_back and (latest, step) not in _STEPS_BACK and not is_retry:
            self.fail(f"{step} came after {latest}")


class MemoryReturned(Check):
    """Before training takes lent GPUs over, each was measured and has what training needs."""

    name: ClassVar[str] = "memory_returned"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin with all GPUs at the trainer."""
        super().__init__(view, report)
        # GPU -> free bytes measured since it was lent, None before
        self._lent: dict[str, int | None] = {}

    def on_replica_moved(self, event: ReplicaMoved) -> None:
        """A hybrid replica that wakes, or was restarted, takes its GPUs."""
        is_back = event.before == ReplicaState.DEAD and event.after == ReplicaState.STALE
        if self.view.is_hybrid(event.replica) and (is_back or event.after == ReplicaState.WAKING):
            self._lent.update(dict.fromkeys(self.view.started.replicas.get(event.replica, ())))

    def on_memory_measured(self, event: MemoryMeasured) -> None:
        """Note what was measured; the latest holds."""
        self._lent.update(event.free_bytes)

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Compare with what training needs, once it may train."""
        if event.after == ControllerState.ACTIVATING:
            self._lent.clear()
        elif event.after == ControllerState.STANDALONE_ONLY:
            for gpu, free in self._lent.items():
                required = self.view.started.train_required_bytes.get(gpu, 0)
                if free is None:
                    self.fail(f"GPU {gpu} was not measured before training")
                elif free < required:
                    self.fail(f"GPU {gpu} has {free} bytes free; training needs {required}")


class Exclusion(Check):
    """Fit steps, weight syncs and switches do not overlap on the trainer's GPUs."""

    name: ClassVar[str] = "exclusion"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin with idle GPUs."""
        super().__init__(view, report)
        self._fit_began_s = math.inf
        # when the latest of each kind ended
        self._ended_s = dict.fromkeys(_EXCLUDES, -math.inf)

    def on_gpu_state_changed(self, event: GpuStateChanged) -> None:
        """Follow when fit steps begin and end."""
        if event.state == GpuState.TRAIN:
            self._fit_began_s = min(self._fit_began_s, self.view.now_s)
        elif self.view.training and self.view.training <= set(event.gpus):
            began_s, self._fit_began_s = self._fit_began_s, math.inf
            self._take(_FIT, began_s)

    def on_weights_synced(self, event: WeightsSynced) -> None:
        """A sync has the trainer's GPUs for itself."""
        self._take(_SYNC, self.view.now_s - event.duration_s)

    def on_switch_step(self, event: SwitchStep) -> None:
        """So has a step of a switch, but steps of replicas may go beside each other."""
        if event.switch in ("activate", "deactivate"):
            kind = _REPLICA_STEP if event.replicas else _TRAINER_STEP
            self._take(kind, self.view.now_s - event.duration_s)

    def _take(self, kind: str, began_s: float) -> None:
        now_s = self.view.now_s
        overlaps = [other for other in _EXCLUDES[kind] if self._ended_s[other] > began_s + _TICK_S]
        if kind != _FIT and now_s > self._fit_began_s + _TICK_S:
            overlaps.append(_FIT)
        self._ended_s[kind] = now_s
        if overlaps:
            self.fail(f"a {kind} since {began_s:g} s overlaps with a {', a '.join(overlaps)}")


class TrainingPlace(Check):
    """Trainer GPUs compute only while none of them is lent."""

    name: ClassVar[str] = "training_place"

    def on_gpu_state_changed(self, event: GpuStateChanged) -> None:
        """Look where the controller is when trainer GPUs begin to compute."""
        if event.state == GpuState.TRAIN:
            self._expect_home("GPUs began to train")

    def on_batch_trained(self, event: BatchTrained) -> None:
        """Look where the controller is when a batch was trained."""
        self._expect_home(f"batch {event.batch} was trained")

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Look whether trainer GPUs compute when lending begins."""
        if self.view.training:
            self.fail(f"the controller became {event.after!r} while GPUs train")

    def _expect_home(self, what: str) -> None:
        if self.view.controller != ControllerState.STANDALONE_ONLY:
            self.fail(f"{what} while the controller is {self.view.controller!r}")
