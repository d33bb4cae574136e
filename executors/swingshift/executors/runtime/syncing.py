"""Weight sync to standalone replicas: all of them at a version, or those that are behind."""

from __future__ import annotations

from collections.abc import Sequence

from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.switching import Steps
from swingshift.sdk.executor import Executor, PauseMode, ReplicaKind
from swingshift.sdk.lifecycle import ReplicaState
from swingshift.sdk.metrics import GpuState


class Syncing:
    """Pauses, syncs, resumes and admits; the caller holds the trainer's GPUs meanwhile."""

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        balancer: LoadBalancer,
        steps: Steps,
        *,
        partial_rollout: bool,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Acts.
            fleet: Book of replicas and GPUs.
            balancer: Held while requests are aborted.
            steps: Runs each step under its deadline.
            partial_rollout: Responses may hold tokens of several versions.
        """
        self._executor = executor
        self._fleet = fleet
        self._balancer = balancer
        self._steps = steps
        self._partial_rollout = partial_rollout

    async def catch_up(self, version: int) -> None:
        """Sync and admit the standalone replicas that are STALE; the others go on serving."""
        stale = self._fleet.in_state(ReplicaState.STALE, kind=ReplicaKind.STANDALONE)
        self._fleet.set_trainer(GpuState.SYNC)
        self._fleet.set_replicas(stale, GpuState.SYNC)
        await self._sync_and_admit("catch_up", version, stale)
        self._fleet.set_rollout(self._fleet.serving(ReplicaKind.STANDALONE))
        self._fleet.set_trainer(GpuState.TRAIN_WAIT)

    async def standalone(self, version: int) -> None:
        """Sync every standalone replica that is alive; those that were STALE begin to serve."""
        replicas = self._fleet.in_state(
            ReplicaState.SERVING, ReplicaState.STALE, kind=ReplicaKind.STANDALONE
        )
        self._fleet.set_trainer(GpuState.SYNC)
        self._fleet.set_replicas(replicas, GpuState.SYNC)
        if self._partial_rollout and self._executor.capabilities.pause_keep:
            await self._sync_paused(version, replicas, PauseMode.KEEP)
        else:
            # what is aborted must not come back before it can see which weights it comes back to
            self._balancer.hold()
            try:
                await self._sync_paused(version, replicas, PauseMode.ABORT)
            finally:
                self._balancer.open()
        self._fleet.set_rollout(self._fleet.serving(ReplicaKind.STANDALONE))
        self._fleet.set_trainer(GpuState.TRAIN_WAIT)

    async def _sync_paused(self, version: int, replicas: Sequence[str], mode: PauseMode) -> None:
        serving = self._fleet.serving(ReplicaKind.STANDALONE)
        paused = await self._steps.each(
            "sync", "pause", serving, lambda name: self._executor.pause([name], mode)
        )
        alive = [name for name in replicas if name in paused or name not in serving]
        await self._sync_and_admit(ReplicaKind.STANDALONE.value, version, alive)

    async def _sync_and_admit(self, group: str, version: int, replicas: Sequence[str]) -> None:
        """Sync replicas in one call, resume them, and let those in that did not serve before."""
        synced = await self._steps.sync(version, group, replicas)
        resumed = await self._steps.each(
            "sync", "resume", synced, lambda name: self._executor.resume([name])
        )
        serving = self._fleet.serving()
        await self._steps.admit("sync", [name for name in resumed if name not in serving])
