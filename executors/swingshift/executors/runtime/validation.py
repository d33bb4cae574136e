"""Validation between cycles, on all serving replicas, outside staleness and utilization."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from swingshift.executors.rl.task import EpisodeRequest, EpisodeRunner, Task
from swingshift.executors.runtime.client import RequestFailedError
from swingshift.executors.runtime.controller import DynamicResourceController
from swingshift.executors.runtime.deadlines import (
    DeadlineExpiredError,
    Deadlines,
    UnexpectedDeadlineError,
)
from swingshift.executors.runtime.fleet import Fleet
from swingshift.executors.runtime.gathering import gather_or_cancel
from swingshift.executors.runtime.recorder import Recorder
from swingshift.executors.runtime.rollouter import Rollouter
from swingshift.sdk.events import Advisory, ValidationEnded, ValidationStarted
from swingshift.sdk.executor import Prompt
from swingshift.sdk.metrics import GpuState

_log = logging.getLogger(__name__)


class Validation:
    """Answers the validation prompts with fresh weights and reports their mean reward.

    Meanwhile no new sample is submitted; those in flight go on beside it.
    """

    def __init__(
        self,
        task: Task,
        run_episode: EpisodeRunner,
        rollouter: Rollouter,
        controller: DynamicResourceController,
        fleet: Fleet,
        recorder: Recorder,
        deadlines: Deadlines,
        *,
        every: int,
        lends: bool,
        deadline_s: float,
        prompts: Sequence[Prompt],
    ) -> None:
        """Bind the parts.

        Args:
            task: Episodes and scores.
            run_episode: Runs one episode of the task.
            rollouter: Holds submission meanwhile.
            controller: Lends GPUs for it, if asked to.
            fleet: Knows who serves.
            recorder: Hears of the result.
            deadlines: Rule for a validation that does not end.
            every: Cycles between validations; 0 or less never validates.
            lends: Lend the trainer's GPUs for it where the policy does not.
            deadline_s: Seconds for one validation.
            prompts: What to answer, once each.
        """
        self._task = task
        self._run_episode = run_episode
        self._rollouter = rollouter
        self._controller = controller
        self._fleet = fleet
        self._recorder = recorder
        self._deadlines = deadlines
        self._every = every
        self._lends = lends
        self._deadline_s = deadline_s
        self._prompts = prompts

    async def after_sync(self, version: int) -> None:
        """Validate if it is due; called once after each cycle, before the next one's first step.

        A validation that fails or does not end is reported and does not end the run.

        Raises:
            MemoryWithheldError: GPUs were lent for it and their memory did not come back.
        """
        if self._every <= 0 or version % self._every:
            return
        begun_s = asyncio.get_running_loop().time()
        self._rollouter.hold()
        try:
            async with self._lent(version):
                rewards = await self._validate(version)
            elapsed_s = asyncio.get_running_loop().time() - begun_s
            mean = sum(rewards) / len(rewards) if rewards else None
            self._recorder.emit(
                ValidationEnded(version, len(rewards), len(self._prompts), mean, elapsed_s)
            )
        finally:
            self._rollouter.resume_submission()

    @asynccontextmanager
    async def _lent(self, version: int) -> AsyncIterator[None]:
        self._recorder.emit(ValidationStarted(version))
        if not self._lends or not self._controller.can_lend:
            yield
            return
        async with self._controller.lent_outside_cycle(version):
            yield

    async def _validate(self, version: int) -> list[float]:
        serving = self._fleet.serving()
        self._fleet.set_replicas(serving, GpuState.VALIDATION)
        try:
            async with self._deadlines.step(f"validation of version {version}", self._deadline_s):
                return await self._answer_all(version)
        except DeadlineExpiredError as error:
            self._recorder.emit(Advisory(str(error)))
            return []
        finally:
            self._fleet.set_rollout(name for name in serving if name in self._fleet.serving())

    async def _answer_all(self, version: int) -> list[float]:
        answers = await gather_or_cancel(
            asyncio.get_running_loop(),
            [self._answer(version, number, prompt) for number, prompt in enumerate(self._prompts)],
        )
        return [reward for reward in answers if reward is not None]

    async def _answer(self, version: int, number: int, prompt: Prompt) -> float | None:
        """Return a reward, or None where there is none; called in a task of its own."""
        request = EpisodeRequest(f"validation/{version}/{number}", prompt, 0)
        try:
            episode = await self._run_episode(self._task, request)
            (reward,) = await self._task.score(prompt, (episode,))
        except RequestFailedError as error:
            self._recorder.emit(Advisory(f"validation prompt {number} has no answer: {error}"))
            return None
        except UnexpectedDeadlineError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # of the task's own code, whatever it is
            words = f"{type(error).__name__}: {error}"
            self._recorder.emit(Advisory(f"validation prompt {number} has no reward: {words}"))
            _log.warning("validation prompt %d has no reward", number, exc_info=error)
            return None
        return reward
