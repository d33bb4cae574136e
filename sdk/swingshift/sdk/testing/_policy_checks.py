"""Checks of the decision log and of the GPU-second ledger."""

from __future__ import annotations

from typing import ClassVar

from swingshift.sdk.events import (
    BatchTrained,
    ControllerMoved,
    GpuStateChanged,
    PolicyDecided,
    ValidationEnded,
    ValidationStarted,
    WeightsSynced,
)
from swingshift.sdk.lifecycle import ControllerState
from swingshift.sdk.metrics import GpuSecondLedger, GpuState, LedgerError
from swingshift.sdk.testing._run_view import Check, Report, RunView


class PolicyOrder(Check):
    """The policy is asked every question in its turn, and switches follow its answers."""

    name: ClassVar[str] = "policy_order"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin before the first sync."""
        super().__init__(view, report)
        self._version = -1
        self._fit_steps = view.started.trigger_parameter_sync_step
        self._may_lend = self._may_rebalance = self._lent_by_policy = False
        self._asked_to_deactivate = self._may_deactivate = False
        self._validating = False

    def on_validation_started(self, _event: ValidationStarted) -> None:
        """GPUs may be lent for it on request, without the policy."""
        self._validating = True

    def on_validation_ended(self, _event: ValidationEnded) -> None:
        """From here on the policy decides again."""
        self._validating = False

    def on_policy_decided(self, event: PolicyDecided) -> None:
        """Look whether it is this question's turn."""
        if not self.view.is_dynamic:
            self.fail("a decision in a run without a policy")
        if event.question == "should_activate_after_step":
            self._activate_asked(event)
        elif event.question == "request_rebalance":
            self._rebalance_asked(event)
        elif event.question == "should_deactivate":
            self._deactivate_asked(event)
        elif event.question == "deactivate_wait_samples":
            self._wait_asked(event)
        elif event.question != "update_after_step":
            self.fail(f"unknown question {event.question!r}")

    def on_weights_synced(self, event: WeightsSynced) -> None:
        """The policy is asked before any sync."""
        if self.view.is_dynamic and event.version > self._version:
            self.fail(f"version {event.version} was sent before the policy was asked about it")

    def on_controller_moved(self, event: ControllerMoved) -> None:
        """Lending follows a True; so does returning, where the policy lent."""
        if event.after == ControllerState.ACTIVATING:
            if not self._may_lend and self.view.routing and not self._validating:
                self.fail("lending begins though the policy did not ask for it and replicas serve")
            self._lent_by_policy = self._may_lend and not self._validating
            self._may_lend = self._may_lend and self._validating
        elif event.before == ControllerState.HYBRID_ACTIVE and self._lent_by_policy:
            if not self._may_deactivate:
                self.fail("GPUs go back though should_deactivate has not become true")
            self._lent_by_policy = False
        elif event.after != ControllerState.HYBRID_ACTIVE:
            # rolled back: whoever lends next answers for itself
            self._lent_by_policy = False

    def on_batch_trained(self, event: BatchTrained) -> None:
        """Every fit step begins with the question whether to deactivate."""
        if self.view.is_dynamic and not self._asked_to_deactivate:
            self.fail(f"batch {event.batch} was trained before should_deactivate was asked")
        self._fit_steps += 1
        self._asked_to_deactivate = self._may_deactivate = False

    def _activate_asked(self, event: PolicyDecided) -> None:
        cycle = self.view.started.trigger_parameter_sync_step
        if event.global_steps != self._version + 1 or self._fit_steps != cycle:
            self.fail(
                f"should_activate_after_step for version {event.global_steps} after version "
                f"{self._version} and {self._fit_steps} of {cycle} fit steps"
            )
        self._version, self._fit_steps = event.global_steps, 0
        self._may_lend = self._may_rebalance = event.effective is True

    def _rebalance_asked(self, event: PolicyDecided) -> None:
        is_active = self.view.controller == ControllerState.HYBRID_ACTIVE
        if not (self._may_rebalance and is_active and event.global_steps == self._version):
            self.fail(f"request_rebalance for version {event.global_steps} without an activation")
        self._may_rebalance = False

    def _deactivate_asked(self, event: PolicyDecided) -> None:
        if event.global_steps != self._version or self.view.version != self._version:
            self.fail(
                f"should_deactivate at version {event.global_steps}; in use is {self.view.version}"
            )
        # a True that nothing could be lent for does not outlive its sync
        self._may_lend = False
        self._asked_to_deactivate = True
        self._may_deactivate = event.effective is True

    def _wait_asked(self, event: PolicyDecided) -> None:
        most = self.view.started.max_required_samples
        if not self._may_deactivate:
            self.fail("deactivate_wait_samples before should_deactivate became true")
        if type(event.effective) is not int or not 0 <= event.effective <= most:
            self.fail(f"a wait for {event.effective!r} samples; expected 0 to {most}")


class GpuLedger(Check):
    """Every second of every GPU belongs to one state; all states sum to wall clock x GPUs."""

    name: ClassVar[str] = "gpu_ledger"

    def __init__(self, view: RunView, report: Report) -> None:
        """Open the ledger when the run begins."""
        super().__init__(view, report)
        gpus = dict.fromkeys((*view.started.hybrid_gpus, *view.started.standalone_gpus))
        self._ledger = GpuSecondLedger(gpus, view.now_s)

    def on_gpu_state_changed(self, event: GpuStateChanged) -> None:
        """Book the change."""
        try:
            self._ledger.set_state(event.gpus, GpuState(event.state), self.view.now_s)
        except (LedgerError, ValueError) as error:
            self.fail(str(error))

    def end(self) -> None:
        """Balance the books."""
        try:
            self._ledger.check(self.view.now_s)
        except LedgerError as error:
            self.fail(str(error))
