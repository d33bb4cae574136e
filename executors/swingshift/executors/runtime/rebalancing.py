"""Routes requests in flight anew: all of them, or only the excess over the fair share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.switching import Steps
from swingshift.sdk.events import Rebalanced
from swingshift.sdk.executor import Executor
from swingshift.sdk.policy import Rebalance, RebalanceScope

# in which requests that are submitted already reach routing
_A_MOMENT_S = 0.001


class Rebalancing:
    """Carries out a `Rebalance`: sessions forgotten, requests aborted, routed by load again."""

    def __init__(
        self,
        executor: Executor,
        balancer: LoadBalancer,
        recorder: Recorder,
        steps: Steps,
        *,
        incoming: Callable[[], int],
    ) -> None:
        """Bind the parts.

        Args:
            executor: Aborts.
            balancer: Knows the loads and routes again.
            recorder: Hears what was moved.
            steps: Runs the aborts under their deadline.
            incoming: Tells how many requests begin next. They count in the fair share, so that
                nobody moves for a place that they fill.
        """
        self._executor = executor
        self._balancer = balancer
        self._recorder = recorder
        self._steps = steps
        self._incoming = incoming

    async def carry_out(self, decision: Rebalance) -> None:
        """Route requests in flight anew.

        Args:
            decision: Whether all of them, or only what replicas hold above their fair share.
        """
        if decision.scope is RebalanceScope.ALL:
            moves = {name: self._balancer.requests_on(name) for name in self._balancer.replicas}
            self._balancer.forget_all()
        else:
            await asyncio.sleep(_A_MOMENT_S)
            moves = self._balancer.excess(self._incoming())
            for request in (request for requests in moves.values() for request in requests):
                self._balancer.forget(request)
        moves = {name: requests for name, requests in moves.items() if requests}

        async def let_go(name: str) -> None:
            await self._executor.abort(name, moves[name])
            await self._balancer.released(name, moves[name])

        self._balancer.hold()
        try:
            aborted = await self._steps.each("rebalance", "abort", tuple(moves), let_go)
        finally:
            self._balancer.open()
        self._recorder.emit(
            Rebalanced(decision.scope.value, {name: len(moves[name]) for name in aborted})
        )
