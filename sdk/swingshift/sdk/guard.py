"""The guard every policy runs in: it keeps the order of calls and bounds every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.decision import (
    ACTIVATE,
    DEACTIVATE,
    DEACTIVATE_NOTHING,
    REBALANCE,
    UPDATE,
    WAIT,
    Answer,
    Decision,
    Interviewer,
    Reply,
)
from swingshift.sdk.errors import CallOrderError
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance

__all__ = ["Decision", "GuardedPolicy", "Reclaim"]


class Reclaim:
    """The guard's part in one fit step: when do lent GPUs go back to training?

    `GuardedPolicy.before_fit_step` makes one for each fit step. Its caller evaluates it before
    the fit step and, as long as it has to wait, again at every event that changes the snapshot:
    a sample queued or given up, the data ended, a replica lost or back. It is void once the guard
    is asked anything else.
    """

    def __init__(self, interviewer: Interviewer, global_steps: int, lent: bool) -> None:
        self._interviewer = interviewer
        self._global_steps = global_steps
        self._lent = lent
        self._deactivate: Reply[bool] | None = None
        self._wait: Reply[int] | None = None
        self._told: dict[str, tuple[Answer, Answer, str]] = {}
        self._void = False

    def evaluate(
        self,
        ctx: DynamicScheduleContext,
        *,
        queue_size: int | None = None,
        deadline_reached: bool = False,
    ) -> int | None:
        """Return how many samples must be buffered before the fit step may begin.

        ``should_deactivate`` is asked again for as long as the policy says ``False``;
        ``deactivate_wait_samples`` is asked once, and its answer bounded by each new snapshot.

        Args:
            ctx: A new snapshot.
            queue_size: Samples buffered; read from the snapshot's telemetry where it is None.
            deadline_reached: Whether the caller has waited as long as it may.

        Returns:
            ``None`` for "not yet", wait for the next event; else the number of samples at which
            the caller goes on, at once if the queue holds them: 0 or more, and never more than
            ``ctx.attainable_samples``, a full cycle where that is unknown.

        Raises:
            CallOrderError: The guard has been asked something else since.
            PolicyError: The policy failed, and the guard is strict.
        """
        if self._void:
            raise CallOrderError(
                "this fit step is over: evaluate what before_fit_step returned last"
            )
        reply = self._ask_deactivate(ctx)
        if not self._lent:
            self._tell(reply.decision(False, ctx))
            return 0
        if reply.value or ctx.only_hybrid:
            self._tell(reply.decision(True, ctx, "only_hybrid"))
            return self._bounded_wait(ctx, deadline_reached)
        overruled = _why_now(ctx, _queued(ctx, queue_size), deadline_reached)
        self._tell(reply.decision(bool(overruled), ctx, overruled))
        return 0 if overruled else None

    def end(self) -> None:
        """Make it void; the guard calls this when it is asked something else."""
        self._void = True

    def _ask_deactivate(self, ctx: DynamicScheduleContext) -> Reply[bool]:
        if self._deactivate is None or (self._lent and not self._deactivate.value):
            policy = self._interviewer.policy
            self._deactivate = self._interviewer.ask(
                DEACTIVATE if self._lent else DEACTIVATE_NOTHING,
                lambda: policy.should_deactivate(self._global_steps, self._lent, ctx),
                self._global_steps,
                ctx,
            )
        return self._deactivate

    def _bounded_wait(self, ctx: DynamicScheduleContext, deadline_reached: bool) -> int:
        if self._wait is None:
            policy = self._interviewer.policy
            self._wait = self._interviewer.ask(
                WAIT, lambda: policy.deactivate_wait_samples(ctx), self._global_steps, ctx
            )
        cycle = ctx.step_required_samples
        most = cycle if ctx.attainable_samples is None else ctx.attainable_samples
        if deadline_reached:
            samples, rule = 0, "deadline"
        elif ctx.only_hybrid:
            samples, rule = min(cycle, most), "only_hybrid"
        else:
            samples, rule = max(0, min(self._wait.value, most)), f"clamped to [0, {most}]"
        self._tell(self._wait.decision(samples, ctx, rule))
        return samples

    def _tell(self, decision: Decision) -> None:
        # Evaluated at every event: only what differs from the last time is news.
        content = (decision.answer, decision.effective, decision.reason)
        if self._told.get(decision.question) != content:
            self._told[decision.question] = content
            self._interviewer.tell(decision)


class GuardedPolicy:
    """Ask a policy in the order of its contract, and never pass on an answer that does harm.

    The control plane holds one per run and calls, at every weight sync (at start-up first),
    `should_activate_after_step`, then `request_rebalance` if that led to an activation, then
    `update_after_step`; and before every fit step in between `before_fit_step`.

    A policy that raises, or answers with a value of the wrong type, is logged with its snapshot
    and the safe answer holds: take GPUs back, wait for nothing, lend nothing, rebalance nothing,
    learn nothing. While there is no standalone replica, GPUs are lent at every sync and wait for
    the full cycle, whatever the policy says.
    """

    def __init__(
        self,
        policy: DynamicSchedulePolicyBase,
        *,
        strict: bool = False,
        on_decision: Callable[[Decision], None] | None = None,
    ) -> None:
        """Wrap a policy that has just been built.

        Args:
            policy: The bare policy.
            strict: Raise `PolicyError` where the guard would otherwise use the safe answer; for
                tests and simulations.
            on_decision: Called with each decision as it is made, and again only when it changes;
                with ``update_after_step`` only when it failed.
        """
        self._interviewer = Interviewer(policy, strict, on_decision)
        self._next: frozenset[str] = frozenset({"should_activate_after_step"})
        self._reclaim: Reclaim | None = None

    @property
    def policy(self) -> DynamicSchedulePolicyBase:
        """The policy that is asked."""
        return self._interviewer.policy

    def before_fit_step(self, global_steps: int, is_hybrid_active: bool) -> Reclaim:
        """Begin a fit step; the returned `Reclaim` says when it may run.

        Args:
            global_steps: The current parameter version.
            is_hybrid_active: Whether hybrid replicas are lent at this moment.

        Raises:
            CallOrderError: The cycle has not been opened by `update_after_step`.
        """
        self._take_turn("before_fit_step", {"before_fit_step", "should_activate_after_step"})
        self._reclaim = Reclaim(self._interviewer, global_steps, is_hybrid_active)
        return self._reclaim

    def should_activate_after_step(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
        *,
        has_ended: bool = False,
    ) -> bool:
        """Return whether to lend at this weight sync.

        Always ``True`` without standalone replicas, always ``False`` when no sample will come any
        more. That the queue is as full as this cycle's budget allows is no reason: the sync opens
        the budget of the next one.

        Args:
            global_steps: The parameter version about to be synced.
            is_hybrid_active: Whether hybrid replicas are lent at this moment.
            ctx: A new snapshot.
            has_ended: Whether production has ended, so that a lent GPU would have nothing to do.

        Raises:
            CallOrderError: Asked before any fit step of the cycle, or a second time.
            PolicyError: The policy failed, and the guard is strict.
        """
        self._take_turn("should_activate_after_step", {"update_after_step"})
        reply = self._interviewer.ask(
            ACTIVATE,
            lambda: self.policy.should_activate_after_step(global_steps, is_hybrid_active, ctx),
            global_steps,
            ctx,
        )
        lends = (reply.value or ctx.only_hybrid) and not has_ended
        if lends:
            self._next |= {"request_rebalance"}
        rule = "nothing can come" if has_ended else "only_hybrid"
        self._interviewer.tell(reply.decision(lends, ctx, rule))
        return lends

    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> Rebalance | None:
        """Return how to spread requests over the replicas that were just activated.

        Args:
            global_steps: The parameter version just synced.
            ctx: A new snapshot.

        Raises:
            CallOrderError: This cycle's `should_activate_after_step` did not say ``True``.
            PolicyError: The policy failed, and the guard is strict.
        """
        self._take_turn("request_rebalance", {"update_after_step"})
        reply = self._interviewer.ask(
            REBALANCE,
            lambda: self.policy.request_rebalance(global_steps, ctx),
            global_steps,
            ctx,
        )
        self._interviewer.tell(reply.decision(reply.value, ctx))
        return reply.value

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        """Let the policy learn from the cycle that ended, and open the next one.

        Args:
            global_steps: The parameter version just synced.
            ctx: The snapshot of this cycle's `should_activate_after_step`, with the durations of
                the switches since.

        Raises:
            CallOrderError: This cycle's `should_activate_after_step` has not been asked.
            PolicyError: The policy failed, and the guard is strict.
        """
        self._take_turn("update_after_step", {"before_fit_step"})

        def learn() -> None:
            self.policy.update_after_step(global_steps, ctx)

        reply = self._interviewer.ask(UPDATE, learn, global_steps, ctx)
        if reply.fault:
            self._interviewer.tell(reply.decision(None, ctx))

    def state_dict(self) -> dict[str, object]:
        """Return the policy's state; see `DynamicSchedulePolicyBase.state_dict`."""
        return self.policy.state_dict()

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the policy's state; see `DynamicSchedulePolicyBase.load_state_dict`."""
        self.policy.load_state_dict(state)

    def _take_turn(self, call: str, then: set[str]) -> None:
        if call not in self._next:
            raise CallOrderError(
                f"{call} out of turn; what may come now: {', '.join(sorted(self._next))}"
            )
        self._next = frozenset(then)
        if self._reclaim is not None:
            self._reclaim.end()


def _queued(ctx: DynamicScheduleContext, queue_size: int | None) -> int:
    if queue_size is not None:
        return queue_size
    return ctx.telemetry.queue_size if ctx.telemetry is not None else 0


def _why_now(ctx: DynamicScheduleContext, queued: int, deadline_reached: bool) -> str:
    if deadline_reached:
        return "deadline"
    if ctx.attainable_samples is not None and queued >= ctx.attainable_samples:
        return "attainable reached"
    return ""
