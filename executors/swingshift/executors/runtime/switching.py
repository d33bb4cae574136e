"""The steps of a switch, each with its deadline and its event, and the replicas that survive it.

Every verb is called once per replica and concurrently, so that a replica that fails alone leaves
alone: it is fenced (killed), booked DEAD and reported, and the step goes on with the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import chain

from swingshift.executors.runtime.deadlines import DeadlineExpiredError, Deadlines
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.gathering import gather_or_cancel
from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.events import Advisory, SwitchStep, WeightsSynced
from swingshift.sdk.executor import (
    Executor,
    ExecutorError,
    FinishReason,
    GenerationRequest,
    Prompt,
    SyncOutcome,
)
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState

_log = logging.getLogger(__name__)
_CANARY_TOKENS = 1
RECOVERABLE = (ExecutorError, DeadlineExpiredError)


class Steps:
    """Runs verbs of an executor as steps of a named switch."""

    def __init__(
        self,
        executor: Executor,
        fleet: Fleet,
        recorder: Recorder,
        deadlines: Deadlines,
        *,
        step_s: float,
        sync_s: float,
    ) -> None:
        """Bind the parts.

        Args:
            executor: Acts.
            fleet: Books what came of it.
            recorder: Hears of every step.
            deadlines: Rule for a step that does not end.
            step_s: Deadline of one step, seconds.
            sync_s: Deadline of one weight sync, seconds.
        """
        self._executor = executor
        self._fleet = fleet
        self._recorder = recorder
        self._deadlines = deadlines
        self._step_s = step_s
        self._sync_s = sync_s

    async def once(self, switch: str, step: str, action: Callable[[], Awaitable[object]]) -> None:
        """Do one step that concerns the trainer.

        Raises:
            ExecutorError: The verb failed.
            DeadlineExpiredError: It did not end.
        """
        await self._timed(switch, step, (), action)

    async def each(
        self,
        switch: str,
        step: str,
        replicas: Sequence[str],
        verb: Callable[[str], Awaitable[object]],
        *,
        fence: bool = True,
    ) -> tuple[str, ...]:
        """Do one step for each replica, concurrently.

        Args:
            switch: Name of the switch, for the event log.
            step: Name of the step, for the event log.
            replicas: Whom it concerns.
            verb: Acts on one replica.
            fence: Kill replicas that fail; without it they are only left out of the result.

        Returns:
            The replicas for which it succeeded, in the given order.
        """
        deaths = {name: self._fleet.deaths(name) for name in replicas}
        outcomes = await asyncio.gather(
            *(self._timed(switch, step, (name,), partial(verb, name)) for name in replicas),
            return_exceptions=True,
        )
        survivors: list[str] = []
        failed: dict[str, str] = {}
        for replica, outcome in zip(replicas, outcomes, strict=True):
            if outcome is None:
                survivors.append(replica)
            elif not isinstance(outcome, RECOVERABLE):
                raise outcome
            else:
                failed[replica] = f"{switch}: {step}: {outcome}"
        if fence:
            await self.fence(failed)
        return self._unharmed(survivors, deaths)

    async def sync(self, version: int, group: str, replicas: Sequence[str]) -> tuple[str, ...]:
        """Send the trainer's weights to replicas in one call and book the outcome of each.

        Returns:
            The replicas that hold ``version`` now. The others were fenced.
        """
        if not replicas:
            return ()
        started_s = asyncio.get_running_loop().time()
        deaths = {name: self._fleet.deaths(name) for name in replicas}
        try:
            async with self._deadlines.call(f"weight sync of {', '.join(replicas)}", self._sync_s):
                outcomes = await self._executor.sync_weights(version, replicas)
        except asyncio.CancelledError:
            # what the call left behind is not known; a restart kills before it goes on
            for name in replicas:
                self._fleet.lose(name, f"weight sync {version} was cancelled")
            raise
        except RECOVERABLE as error:
            _log.warning("weight sync %d of %s: %s", version, group, error)
            outcomes = {}
        alive = self._unharmed(replicas, deaths)
        synced = tuple(name for name in alive if outcomes.get(name) is SyncOutcome.SYNCED)
        for name in synced:
            self._fleet.move(name, ReplicaEvent.SYNC, version=version)
        reason = f"weight sync {version} left its weights indeterminate"
        await self.fence({name: reason for name in alive if name not in synced})
        self._recorder.emit(
            WeightsSynced(
                version,
                group,
                {
                    name: (SyncOutcome.SYNCED if name in synced else SyncOutcome.FAILED).value
                    for name in replicas
                },
                asyncio.get_running_loop().time() - started_s,
            )
        )
        return self._unharmed(synced, deaths)

    async def admit(self, switch: str, replicas: Sequence[str]) -> tuple[str, ...]:
        """Let synced replicas answer a canary and put those that do into routing."""
        answered = await self.each(switch, "canary", replicas, self._canary)
        for replica in answered:
            self._fleet.move(replica, ReplicaEvent.ADMIT)
        return answered

    def _unharmed(self, replicas: Sequence[str], deaths: Mapping[str, int]) -> tuple[str, ...]:
        """Leave out who died meanwhile, also if it is back: nothing that was done reached it."""
        return tuple(
            name
            for name in replicas
            if self._fleet.status(name).state is not ReplicaState.DEAD
            and self._fleet.deaths(name) == deaths[name]
        )

    async def fence(self, reasons: Mapping[str, str]) -> Mapping[str, int]:
        """Book replicas whose state is not known DEAD, report why, and kill them concurrently.

        Routing forgets them first, so that requests that die with one do not come back to it.
        Idempotent: a replica that is DEAD is killed and measured again. One that is being restarted
        is left to that: a second kill would come too late and end the new one.

        Args:
            reasons: Why, for each replica.

        Returns:
            Free bytes per GPU of the replicas, measured after their end. What could not be killed
            is missing, and so is what is being restarted.
        """
        for replica, reason in reasons.items():
            if self._fleet.status(replica).state is not ReplicaState.DEAD:
                self._recorder.emit(Advisory(f"replica {replica} was taken out: {reason}"))
                self._fleet.move(replica, ReplicaEvent.LOSE)
        doomed = [self._kill(name) for name in reasons if not self._fleet.is_expected(name)]
        measured = await gather_or_cancel(asyncio.get_running_loop(), doomed)
        return dict(chain.from_iterable(free.items() for free in measured))

    async def _kill(self, replica: str) -> Mapping[str, int]:
        try:
            async with self._deadlines.call(f"kill of {replica}", self._step_s):
                return await self._executor.kill([replica])
        except RECOVERABLE as error:
            self._recorder.emit(Advisory(f"replica {replica} could not be killed: {error}"))
            return {}

    async def _canary(self, replica: str) -> None:
        prompt = Prompt(position=-1, tokens=1, handle="canary")
        request = GenerationRequest(f"canary/{replica}", prompt, 0, _CANARY_TOKENS)
        answer = await self._executor.generate(replica, request)
        if answer.finish_reason is FinishReason.ABORT or answer.new_tokens < 1:
            raise ExecutorError(f"{replica} did not answer its canary: {answer}")

    async def _timed(
        self,
        switch: str,
        step: str,
        replicas: tuple[str, ...],
        action: Callable[[], Awaitable[object]],
    ) -> None:
        started_s = asyncio.get_running_loop().time()
        outcome = "cancelled"
        try:
            async with self._deadlines.call(f"{switch}: {step}", self._step_s):
                await action()
            outcome = "done"
        except Exception as error:
            outcome = str(error)
            raise
        finally:
            elapsed_s = asyncio.get_running_loop().time() - started_s
            self._recorder.emit(SwitchStep(switch, step, replicas, elapsed_s, outcome))
