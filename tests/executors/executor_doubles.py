"""An executor that can be seen through, and keeps the contract: what doubles are made of.

It is the simulated executor of a small world. `ObservedExecutor` keeps payloads, as an adapter with
tokens would, and `EveryDoor` sees through it. The doubles are in ``doubles_of_*``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from tests.executors.support import lengths_of, small_config, small_options

from swingshift.executors.simulated.executor import SimulatedExecutor
from swingshift.executors.simulated.loop import VirtualLoop
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.task import SimulatedTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import (
    Capabilities,
    ExecutorError,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    MemoryPart,
    PauseMode,
    Prompt,
    TrainingPart,
)
from swingshift.sdk.testing import BackDoor, ExecutorUnderTest

BUDGET = 2_000
MOMENT_S = 0.5
_CONFIG = small_config()
_OPTIONS = small_options()
PART_BYTES = 10**9


class ObservedExecutor(SimulatedExecutor):
    """The simulated executor with payloads, and a count of what really trained.

    Attributes:
        payloads: Tokens by handle.
        trained: How often a batch was trained, by its id.
        occupied_bytes: What is held of a GPU past all verbs.
    """

    def __init__(self, config: RunConfig = _CONFIG, options: SimulatedOptions = _OPTIONS) -> None:
        super().__init__(config, options, lengths_of(config, options))
        self.payloads: dict[str, int] = {}
        self.trained: Counter[int] = Counter()
        self.occupied_bytes: Counter[str] = Counter()

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        answer = await super().generate(replica, request)
        before = self.payloads.get(request.resume_from, 0) if request.resume_from else 0
        self.payloads[answer.handle] = before + answer.new_tokens
        return answer

    async def fit_step(self, batch: FitBatch) -> FitResult:
        started_s = asyncio.get_running_loop().time()
        result = await super().fit_step(batch)
        # training takes time, and a repeated answer none
        self.trained[batch.batch_id] += asyncio.get_running_loop().time() > started_s
        return result

    async def discard(self, handles: Sequence[str]) -> None:
        for handle in handles:
            self.payloads.pop(handle, None)


class EveryDoor(BackDoor):
    """Sees all there is to see."""

    def __init__(self, executor: ObservedExecutor) -> None:
        self._executor = executor

    async def in_flight(self, replica: str) -> int:
        seen = self._executor._engines[replica].progress
        return seen.running + seen.waiting

    async def token_count(self, replica: str) -> int:
        return self._executor._engines[replica].progress.tokens

    async def free_bytes(self, gpu: str) -> int:
        executor = self._executor
        free = int(executor._machine.gpu_bytes) - executor.occupied_bytes[gpu]
        if gpu.startswith("trainer"):
            free -= sum(
                int(executor._machine.state_bytes[part])
                for part in TrainingPart
                if part not in executor._offloaded
            )
        for name, replica in executor._replicas.items():
            if gpu in replica.gpus:
                free -= PART_BYTES * len(executor._awake[name])
        return free

    async def weight_version(self, replica: str) -> int | None:
        version = self._executor._engines[replica]._version
        return None if version < 0 else version

    async def times_trained(self, batch_id: int) -> int:
        return self._executor.trained[batch_id]

    async def payload_tokens(self, handle: str) -> int | None:
        return self._executor.payloads.get(handle)


def long_prompts(count: int) -> tuple[Prompt, ...]:
    """Return prompts both of whose responses are longer than the budget."""
    lengths = lengths_of(_CONFIG, _OPTIONS)
    task = SimulatedTask(lengths, 48)
    found = [i for i in range(len(task)) if min(lengths.lengths(i)) > 2 * BUDGET]
    return tuple(task.prompt(index) for index in found[:count])


def under_test(
    make: Callable[[], ObservedExecutor] = ObservedExecutor,
    observe: Callable[[ObservedExecutor], BackDoor] = EveryDoor,
) -> ExecutorUnderTest[ObservedExecutor]:
    """Return what the kit needs of an observed executor."""
    return ExecutorUnderTest(
        make=make,
        observe=observe,
        loop_factory=VirtualLoop,
        prompts=long_prompts(3),
        max_new_tokens=BUDGET,
        moment_s=MOMENT_S,
    )


class Modest(ObservedExecutor):
    """Offers no more than every executor must, and keeps that."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(pause_keep=False, lend=False, virtual_time=True)

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        if mode is PauseMode.KEEP:
            raise ExecutorError("the engine cannot hold requests")
        await super().pause(replicas, mode)

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        raise ExecutorError("the engine cannot wake")
