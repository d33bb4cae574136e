"""Where one promise is judged: an executor just made, and what checks do with it again and again.

What prepares a judgement looks at as little as it can, so that a fault shows in the check that is
about it and not in all others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import attrs

from swingshift.sdk.executor import (
    Episode,
    Executor,
    ExecutorError,
    FinishReason,
    FitBatch,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    Prompt,
    ReplicaKind,
    Sample,
    SyncOutcome,
    TrainingPart,
)
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise, NotOffered, expect
from swingshift.sdk.testing.executor_checks.witness import Witness
from swingshift.sdk.testing.executor_subject import BackDoor

_POLLS_PER_MOMENT = 20
# what is trained or discarded need not be long
_SHORT_TOKENS = 16


@attrs.frozen
class Flight:
    """A request that was sent.

    Attributes:
        replica: Where to.
        request: What was asked.
        answer: What comes of it; it always ends, with the deadline of `Executor.generate`.
    """

    replica: str
    request: GenerationRequest
    answer: asyncio.Task[Generation]


class Stage:
    """One executor under test, and what is around it."""

    def __init__(
        self,
        executor: Executor,
        see: BackDoor,
        *,
        prompts: Sequence[Prompt],
        responses: int,
        max_new_tokens: int,
        moment_s: float,
        deadline_s: float,
        memory_tolerance_bytes: int,
    ) -> None:
        """Bind the parts; nothing is called yet.

        Args:
            executor: The one under test, not started.
            see: Its back door.
            prompts: What to ask.
            responses: Responses of each prompt in a batch.
            max_new_tokens: Budget of a response.
            moment_s: Seconds after which a request is under way.
            deadline_s: Seconds after which a call counts as hanging.
            memory_tolerance_bytes: By how much two measurements of one GPU may differ.
        """
        self.executor = Witness(executor, deadline_s)
        self.see = see
        self.max_new_tokens = max_new_tokens
        self.deadline_s = deadline_s
        self.memory_tolerance_bytes = memory_tolerance_bytes
        self._prompts = tuple(prompts)
        self._responses = responses
        self._moment_s = moment_s
        self._inventory: Inventory | None = None
        self._lent: set[str] = set()
        self._offloaded: set[TrainingPart] = set()
        self._tasks: list[asyncio.Task[object]] = []
        self._requests = 0

    async def moment(self) -> None:
        """Let a request get under way."""
        await asyncio.sleep(self._moment_s)

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait until something holds, and return False if it does not before the deadline."""
        poll_s = self._moment_s / _POLLS_PER_MOMENT
        for _ in range(math.ceil(self.deadline_s / poll_s)):
            if holds():
                return True
            await asyncio.sleep(poll_s)
        return holds()

    async def start(self) -> Inventory:
        """Start the executor, the first time, and return what there is."""
        if self._inventory is None:
            self._inventory = await self.executor.start()
        return self._inventory

    async def standalone(self, count: int = 1) -> tuple[str, ...]:
        """Return standalone replicas, awake and never synced.

        Raises:
            NotOffered: There are not as many.
        """
        replicas = (await self.start()).of_kind(ReplicaKind.STANDALONE)
        return _some(ReplicaKind.STANDALONE, [replica.id for replica in replicas], count)

    async def sleepers(self) -> tuple[str, ...]:
        """Return the hybrid replicas that are asleep; none where the executor does not lend."""
        if not self.executor.capabilities.lend:
            return ()
        hybrid = (await self.start()).of_kind(ReplicaKind.HYBRID)
        return tuple(replica.id for replica in hybrid if replica.id not in self._lent)

    async def asleep(self, count: int = 1) -> tuple[str, ...]:
        """Return hybrid replicas, asleep.

        Raises:
            NotOffered: The executor does not lend, or there are not as many.
        """
        if not self.executor.capabilities.lend:
            raise NotOffered("not offered: the capability 'lend' is not declared")
        return _some(ReplicaKind.HYBRID, await self.sleepers(), count)

    async def serving(self, version: int = 0) -> str:
        """Return a replica that serves: a standalone one, or a hybrid one where there is no other.

        Args:
            version: Of its weights.
        """
        (replica,) = await self.several_serving(1, version)
        return replica

    async def several_serving(self, count: int, version: int = 0) -> tuple[str, ...]:
        """Return replicas that serve, standalone ones first.

        Raises:
            NotOffered: There are not as many.
        """
        standalone, hybrid = await self._standalone_first(count)
        for replica in standalone:
            await self.sync(version, [replica])
        if hybrid:
            await self.lend(hybrid, version)
        return (*standalone, *hybrid)

    async def one_of_each_kind(self) -> tuple[str, ...]:
        """Return one replica of each kind that there is; they serve."""
        replicas = (await self.start()).of_kind(ReplicaKind.STANDALONE)
        standalone = tuple(replica.id for replica in replicas)[:1]
        for replica in standalone:
            await self.sync(0, [replica])
        hybrid = (await self.sleepers())[:1]
        if hybrid:
            await self.lend(hybrid)
        return (*standalone, *hybrid)

    async def two_with_memory(self) -> tuple[str, str]:
        """Return two replicas with memory for weights, and weights of unknown age.

        Raises:
            NotOffered: There are not as many.
        """
        standalone, hybrid = await self._standalone_first(2)
        if hybrid:
            self._lent.update(hybrid)
            await self._offload(TrainingPart.OPTIMIZER_AND_GRADIENTS)
            await self.executor.wake(hybrid, MemoryPart.WEIGHTS)
        one, other = (*standalone, *hybrid)
        return one, other

    async def lend(self, replicas: Sequence[str], version: int = 0) -> None:
        """Take hybrid replicas from sleep to service, in the order of the contract.

        They wake and resume one by one: whether a verb reaches all that it names is judged apart.
        """
        executor = self.executor
        self._lent.update(replicas)
        await self._offload(TrainingPart.OPTIMIZER_AND_GRADIENTS)
        for replica in replicas:
            await executor.wake([replica], MemoryPart.WEIGHTS)
        await self.sync(version, replicas)
        await self._offload(TrainingPart.PARAMETERS)
        for replica in replicas:
            await executor.wake([replica], MemoryPart.KV_CACHE)
            await executor.resume([replica])

    async def sync(self, version: int, replicas: Sequence[str]) -> dict[str, SyncOutcome]:
        """Send weights, from where the trainer has them: on its GPUs."""
        await self._reload(TrainingPart.PARAMETERS)
        return dict(await self.executor.sync_weights(version, replicas))

    async def reload_training(self) -> None:
        """Bring all of the training state back."""
        for part in TrainingPart:
            await self._reload(part)

    async def revive(self, replica: str, version: int = 0) -> None:
        """Kill a replica and bring it back into service."""
        await self.executor.kill([replica])
        await self.executor.restart([replica])
        await self.sync(version, [replica])

    def gpus_of(self, replicas: Sequence[str]) -> set[str]:
        """Return the GPUs of some replicas."""
        known = self._inventory.replicas if self._inventory is not None else ()
        return {gpu for replica in known if replica.id in replicas for gpu in replica.gpus}

    def request(self, number: int = 0, *, max_new_tokens: int | None = None) -> GenerationRequest:
        """Return a request for a response from its start, with an id of its own.

        Args:
            number: Which response: those of one number are alike.
            max_new_tokens: Its budget, by default that of the author.
        """
        self._requests += 1
        prompts, responses = len(self._prompts), self._responses
        return GenerationRequest(
            request_id=f"r{self._requests}",
            prompt=self._prompts[number % prompts],
            response_index=number // prompts % responses,
            max_new_tokens=self.max_new_tokens if max_new_tokens is None else max_new_tokens,
        )

    def send(self, replica: str, request: GenerationRequest) -> Flight:
        """Send a request and do not wait for its end."""
        answer = asyncio.create_task(self.executor.generate(replica, request))
        self._tasks.append(answer)
        return Flight(replica, request, answer)

    async def under_way(self, replica: str, count: int = 1) -> list[Flight]:
        """Send requests and return when they have tokens, and are not at their end.

        Raises:
            BrokenPromise: One has ended by then.
        """
        flights = [self.send(replica, self.request(number)) for number in range(count)]
        await self.moment()
        for flight in flights:
            if flight.answer.done():
                tokens = (await flight.answer).new_tokens
                raise BrokenPromise(
                    f"the answer to {flight.request.request_id} ended after {tokens} tokens, within"
                    f" moment_s ({self._moment_s:g} s): nothing can be done while it is under way;"
                    " choose prompts with longer answers, or a shorter moment_s"
                )
        return flights

    async def part(self, replica: str) -> tuple[GenerationRequest, Generation]:
        """Return a request, and what it came to when it was aborted under way."""
        (flight,) = await self.under_way(replica)
        await self.executor.abort(replica, [flight.request.request_id])
        return flight.request, await flight.answer

    async def short_answers(self, replica: str, count: int) -> list[Generation]:
        """Return responses that were generated one after the other."""
        budget = min(_SHORT_TOKENS, self.max_new_tokens)
        requests = [self.request(number, max_new_tokens=budget) for number in range(count)]
        return [await self.executor.generate(replica, request) for request in requests]

    async def answers(self, replica: str, *, version: int) -> None:
        """Expect that a replica serves, with weights of a version.

        Raises:
            BrokenPromise: It does not.
        """
        answer = await self.executor.generate(replica, self.request(max_new_tokens=2))
        versions = {span.version for span in answer.spans}
        expect(
            answer.finish_reason is not FinishReason.ABORT and versions == {version},
            f"a request to {replica}, which holds version {version}, came to {answer}",
        )

    async def refuses(self, replica: str, state: str) -> None:
        """Expect that a replica refuses a request.

        Args:
            replica: Which.
            state: Why it has to, in words that follow its name.

        Raises:
            BrokenPromise: It answers.
        """
        try:
            answer = await self.executor.generate(replica, self.request(max_new_tokens=2))
        except ExecutorError:
            return
        raise BrokenPromise(
            f"{replica} {state} and answered with {answer}; it must raise ExecutorError"
        )

    async def pause_and_sleep(self, replicas: Sequence[str]) -> dict[str, int]:
        """Return the free bytes that a sleep of serving replicas reports."""
        await self.executor.pause(replicas, PauseMode.ABORT)
        return dict(await self.executor.sleep(replicas))

    async def batch(self, batch_id: int) -> FitBatch:
        """Return a batch with one sample of each prompt, generated for it."""
        replica = await self.serving()
        generations = await self.short_answers(replica, len(self._prompts) * self._responses)
        await self._take_back()
        samples = tuple(
            Sample(
                sample_id=batch_id * len(self._prompts) + index,
                prompt=prompt,
                episodes=tuple(map(_episode, generations[index :: len(self._prompts)])),
                rewards=tuple(float(n % 2) for n in range(self._responses)),
            )
            for index, prompt in enumerate(self._prompts)
        )
        return FitBatch(batch_id=batch_id, samples=samples)

    def watch(self, task: asyncio.Task[object]) -> None:
        """End a task with the judgement, if it has not ended by itself."""
        self._tasks.append(task)

    async def close(self) -> None:
        """End everything; what goes wrong here is the business of the checks of ``stop``."""
        for task in self._tasks:
            task.cancel()
        with suppress(Exception):
            async with asyncio.timeout(self.deadline_s):
                await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(Exception):
            await self.executor.stop()

    async def _take_back(self) -> None:
        """Give the GPUs back to training, where they were lent."""
        if self._lent:
            await self.pause_and_sleep(sorted(self._lent))
            self._lent.clear()
            await self.reload_training()

    async def _offload(self, part: TrainingPart) -> None:
        if part not in self._offloaded:
            self._offloaded.add(part)
            await self.executor.offload_training(part)

    async def _reload(self, part: TrainingPart) -> None:
        if part in self._offloaded:
            await self.executor.reload_training(part)
            self._offloaded.discard(part)

    async def _standalone_first(self, count: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return as many replicas, those that are standalone apart."""
        replicas = (await self.start()).of_kind(ReplicaKind.STANDALONE)
        standalone = tuple(replica.id for replica in replicas)[:count]
        missing = count - len(standalone)
        return standalone, await self.asleep(missing) if missing else ()


def _some(kind: ReplicaKind, names: Sequence[str], count: int) -> tuple[str, ...]:
    if len(names) < count:
        raise NotOffered(
            f"not offered: the check needs {count} {kind.value} replicas of this executor, and"
            f" {len(names)} are left"
        )
    return tuple(names[:count])


def _episode(generation: Generation) -> Episode:
    expect(generation.new_tokens > 0, f"a response without tokens: {generation}")
    return Episode(
        handle=generation.handle, tokens=generation.new_tokens, spans=generation.spans, attempts=1
    )
