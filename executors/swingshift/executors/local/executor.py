"""The executor of one machine: torch in worker processes, one or two on each device.

A trainer device has two processes, the training engine and a hybrid replica, so that one can be
killed without the other; a rollout device has one, a standalone replica. Responses and weights lie
in a directory in memory that every process reads.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from swingshift.executors.local.channel import Message
from swingshift.executors.local.devices import Device, find_devices
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.local.process import WorkerLostError, WorkerProcess, call_all
from swingshift.executors.local.scratch import Scratch
from swingshift.executors.local.settings import rollout_setting, training_setting
from swingshift.executors.local.store import PayloadStore
from swingshift.executors.rl.tokenizers import Tokenizer
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import (
    Capabilities,
    CapacityChange,
    CapacityEvent,
    Executor,
    ExecutorError,
    FinishReason,
    FitBatch,
    FitResult,
    Generation,
    GenerationRequest,
    Inventory,
    MemoryPart,
    PauseMode,
    Progress,
    Replica,
    ReplicaKind,
    ReplicaLostError,
    SyncOutcome,
    TrainerGpu,
    TrainingPart,
    VersionSpan,
)

TokenSource: TypeAlias = Callable[[str], Sequence[int]]
"""Gives the token ids behind the handle of a prompt or of an observation."""

_GIBIBYTE = 2**30


class LocalExecutor(Executor):
    """Trains and generates for real, on this machine."""

    def __init__(
        self,
        config: RunConfig,
        options: LocalOptions,
        scratch: Scratch,
        tokenizer: Tokenizer,
        tokens_of: TokenSource,
    ) -> None:
        """Work out who runs where; nothing starts before `start`.

        Args:
            config: Devices, sizes, seed.
            options: What is trained.
            scratch: The run's directory in memory.
            tokenizer: Its vocabulary and special tokens.
            tokens_of: Called once per attempt.

        Raises:
            ConfigError: This machine has no such devices.
        """
        self._config = config
        self._options = options
        self._scratch = scratch
        self._tokenizer = tokenizer
        self._tokens_of = tokens_of
        self._store = PayloadStore(scratch.payloads)
        trainers, rollouts = find_devices(config, options)
        self._devices = {device.id: device for device in (*trainers, *rollouts)}
        self._trainer_devices = trainers
        is_dynamic = config.async_training.use_dynamic_resource_scheduling
        self._inventory = {
            replica.id: replica
            for replica in (
                *_replicas(ReplicaKind.STANDALONE, rollouts),
                *_replicas(ReplicaKind.HYBRID, trainers if is_dynamic else ()),
            )
        }
        self._workers: dict[str, WorkerProcess] = {}
        self._trainers: list[WorkerProcess] = []
        # (replica, request id) -> number of the call that waits for its tokens
        self._calls: dict[tuple[str, str], int] = {}
        # request id -> payload of an attempt that was aborted; the next attempt's takes its place
        self._aborted: dict[str, str] = {}
        self._payload_numbers = itertools.count()
        self._replica_numbers = itertools.count()
        self._exported: int | None = None
        self._events: asyncio.Queue[CapacityEvent | None] = asyncio.Queue()
        self._is_stopped = False

    @property
    def capabilities(self) -> Capabilities:
        """Requests can be held, replicas can sleep, and time is real."""
        return Capabilities(pause_keep=True, lend=True, virtual_time=False)

    async def start(self) -> Inventory:
        """Start every process, all at once; takes seconds where none was started before.

        Raises:
            ConfigError: The model cannot be built.
            ExecutorError: A process could not be started, or ended.
        """
        self._scratch.create()
        world = len(self._trainer_devices)
        self._trainers = [
            self._worker(
                f"trainer-{rank}",
                training_setting(
                    self._config, self._options, self._tokenizer, self._scratch, device, rank, world
                ),
            )
            for rank, device in enumerate(self._trainer_devices)
        ]
        for name, replica in self._inventory.items():
            self._workers[name] = self._replica_worker(
                replica, asleep=replica.kind is ReplicaKind.HYBRID
            )
        workers = (*self._trainers, *self._workers.values())
        # the first that fails speaks for all; `stop` ends the others
        ready = await asyncio.gather(*(worker.start() for worker in workers))
        reserve = int(self._options.training_reserve_gib * _GIBIBYTE)
        return Inventory(
            replicas=tuple(self._inventory.values()),
            trainer_gpus=tuple(
                TrainerGpu(
                    id=device.id,
                    train_required_bytes=_count(answer, "state_bytes") + reserve,
                )
                for device, answer in zip(self._trainer_devices, ready, strict=False)
            ),
        )

    async def stop(self) -> None:
        """End every process and free the directory in memory."""
        self._is_stopped = True
        self._events.put_nowait(None)
        workers = [*self._workers.values(), *self._trainers]
        try:
            await asyncio.gather(*(worker.kill() for worker in workers))
        finally:
            self._scratch.remove()

    async def events(self) -> AsyncIterator[CapacityEvent]:
        """Report replicas whose process ends by itself."""
        while (event := await self._events.get()) is not None:
            yield event

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        """Send the request to the replica's process.

        Raises:
            ReplicaLostError: The process ended.
            ExecutorError: The replica is not awake or not synced, or knows no such payload.
        """
        worker = self._workers[replica]
        handle = f"{next(self._payload_numbers)}"
        is_canary = request.prompt.position < 0
        observation = request.observation
        with _loss_of(replica):
            number, answer = worker.sent(
                "generate",
                handle=handle,
                prompt=[self._tokenizer.eos_token_id]
                if is_canary
                else list(self._tokens_of(request.prompt.handle)),
                resume_from=request.resume_from,
                observation=[]
                if observation is None
                else list(self._tokens_of(observation.handle)),
                max_new_tokens=request.max_new_tokens,
            )
            key = (replica, request.request_id)
            self._calls[key] = number
            try:
                came = await answer
            except BaseException:
                # it may have been written, and nobody will ask for it
                worker.tell("drop", key=number, handle=handle)
                self._store.discard([handle])
                raise
            finally:
                if self._calls.get(key) == number:
                    del self._calls[key]
        generation = _generation(handle, came)
        self._book(request, generation)
        return generation

    def _book(self, request: GenerationRequest, generation: Generation) -> None:
        """Free what an answer takes the place of."""
        replaced = {request.resume_from, self._aborted.pop(request.request_id, None)}
        if generation.finish_reason is FinishReason.ABORT:
            self._aborted[request.request_id] = generation.handle
        elif request.prompt.position < 0:
            # the answer to a canary is that there is one
            replaced.add(generation.handle)
        self._store.discard(handle for handle in replaced if handle is not None)

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        """Abort in the replica's process, between two of its steps."""
        known = [self._calls.get((replica, request)) for request in request_ids]
        keys = [number for number in known if number is not None]
        with _loss_of(replica):
            await self._workers[replica].call("abort", keys=keys)

    def progress(self, replica: str) -> Progress:
        """Return what the replica's process last reported."""
        return self._workers[replica].progress

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        """Pause between two steps; draining takes as long as it takes."""
        await self._each(replicas, "pause", mode=mode.value)

    async def resume(self, replicas: Sequence[str]) -> None:
        """Generate again."""
        await self._each(replicas, "resume")

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        """Allocate memory again; weights are of unknown content until they are synced."""
        await self._each(replicas, "wake", part=part.value)

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Free weights and KV cache, give the memory back to the system, and measure."""
        await self._each(replicas, "sleep")
        return await self._free_bytes(replicas)

    async def offload_training(self, part: TrainingPart) -> None:
        """Move one part of every trainer device's state to the host's shared memory."""
        await self._every_trainer("offload", part=part.value)

    async def reload_training(self, part: TrainingPart) -> None:
        """Bring one part back to every trainer device."""
        await self._every_trainer("reload", part=part.value)

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Write the weights to shared memory, once per version, and let replicas read them.

        Raises:
            ExecutorError: The parameters are offloaded, or the trainer is gone.
        """
        path = self._scratch.weights(version)
        if self._exported != version:
            self._exported = None
            for old in self._scratch.path.glob("weights-*"):
                # one that an export under way takes its last name from is gone already
                old.unlink(missing_ok=True)
            await self._trainers[0].call("export", path=str(path))
            self._exported = version
        outcomes = await asyncio.gather(
            *(self._load(name, version, path) for name in replicas), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ExecutorError):
                raise outcome
        return {
            name: SyncOutcome.FAILED if isinstance(outcome, BaseException) else SyncOutcome.SYNCED
            for name, outcome in zip(replicas, outcomes, strict=True)
        }

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Kill the processes and measure what that freed."""
        await asyncio.gather(*(self._workers[name].kill() for name in replicas))
        return await self._free_bytes(replicas)

    async def restart(self, replicas: Sequence[str]) -> None:
        """Start new processes in place of the old ones.

        Raises:
            ReplicaLostError: One ended before it was ready.
            ExecutorError: One could not be started or made ready, or the executor was stopped.
        """
        await asyncio.gather(*(self._workers[name].kill() for name in replicas))
        if self._is_stopped:
            raise ExecutorError("no replica can be restarted: the executor has been stopped")
        for name in replicas:
            self._workers[name] = self._replica_worker(self._inventory[name], asleep=False)
        with _loss_of(", ".join(replicas)):
            try:
                await asyncio.gather(*(self._workers[name].start() for name in replicas))
            except ConfigError as error:
                # the same setting was right when the run began
                raise ExecutorError(f"{', '.join(replicas)} did not restart: {error}") from error

    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Train on every trainer device at once, each on its share.

        Raises:
            ExecutorError: A trainer's process ended, or part of its state is offloaded.
        """
        # whatever comes of it, the weights may be others now
        self._exported = None
        sequences = [
            {
                "prompt": list(self._tokens_of(sample.prompt.handle)),
                "handle": episode.handle,
                "reward": reward,
                "group": group,
            }
            for group, sample in enumerate(batch.samples)
            for episode, reward in zip(sample.episodes, sample.rewards, strict=True)
        ]
        answers = await self._every_trainer("fit", batch_id=batch.batch_id, sequences=sequences)
        first = answers[0]
        return FitResult(
            timing_s=cast("dict[str, float]", first["timing_s"]),
            metrics=cast("dict[str, float]", first["metrics"]),
        )

    async def discard(self, handles: Sequence[str]) -> None:
        """Remove payloads from shared memory."""
        self._store.discard(handles)
        gone = set(handles)
        self._aborted = {name: it for name, it in self._aborted.items() if it not in gone}

    async def save(self, directory: Path) -> None:
        """Write model and optimizer into a directory, once a fit step that is under way has ended.

        What is offloaded comes back for it, and hybrid replicas sleep.

        Raises:
            ExecutorError: The trainer's process ended, or could not write.
        """
        hybrid = [name for name, it in self._inventory.items() if it.kind is ReplicaKind.HYBRID]
        await self.sleep([name for name in hybrid if self._workers[name].is_alive])
        for part in TrainingPart:
            await self.reload_training(part)
        await self._trainers[0].call("save", path=_absolute(directory))

    async def free_bytes(self, gpu: str) -> int:
        """Return the free memory of a device, measured now."""
        return await self._devices[gpu].free_bytes(self._pids_on(gpu))

    def payload_tokens(self, handle: str) -> int:
        """Return how many tokens of a payload are trained on, for checks.

        Raises:
            UnknownPayloadError: There is none of this handle.
        """
        return int(self._store.read(handle)["is_trainable"].sum())

    async def look_at_replica(self, replica: str) -> Message:
        """Return what a replica's process says of itself, for checks."""
        return await self._workers[replica].call("look")

    async def look_at_trainer(self) -> Message:
        """Return what the first trainer's process says of itself, for checks."""
        return await self._trainers[0].call("look")

    def pids(self) -> Mapping[str, int]:
        """Return the processes that run, by the name of their engine."""
        workers = {**self._workers, **{worker.name: worker for worker in self._trainers}}
        return {
            name: worker.pid
            for name, worker in workers.items()
            if worker.pid is not None and worker.is_alive
        }

    async def _load(self, replica: str, version: int, path: Path) -> None:
        with _loss_of(replica):
            await self._workers[replica].call("load", version=version, path=str(path))

    async def _each(self, replicas: Sequence[str], verb: str, **arguments: object) -> None:
        async def ask(name: str) -> None:
            with _loss_of(name):
                await self._workers[name].call(verb, **arguments)

        await asyncio.gather(*(ask(name) for name in replicas))

    async def _every_trainer(self, verb: str, **arguments: object) -> list[Message]:
        return await call_all(self._trainers, verb, **arguments)

    async def _free_bytes(self, replicas: Sequence[str]) -> dict[str, int]:
        gpus = [gpu for name in replicas for gpu in self._inventory[name].gpus]
        return {gpu: await self.free_bytes(gpu) for gpu in gpus}

    def _pids_on(self, gpu: str) -> list[int]:
        replicas = [name for name, replica in self._inventory.items() if gpu in replica.gpus]
        trainers = [
            worker.name
            for worker, device in zip(self._trainers, self._trainer_devices, strict=True)
            if device.id == gpu
        ]
        running = self.pids()
        return [running[name] for name in (*replicas, *trainers) if name in running]

    def _replica_worker(self, replica: Replica, *, asleep: bool) -> WorkerProcess:
        device = self._devices[replica.gpus[0]]
        setting = rollout_setting(
            self._config,
            self._options,
            self._tokenizer,
            self._scratch,
            device,
            asleep,
            next(self._replica_numbers),
        )
        return self._worker(replica.id, setting)

    def _worker(self, name: str, setting: Mapping[str, object]) -> WorkerProcess:
        return WorkerProcess(name, setting, self._scratch.log(name), on_lost=self._lost)

    def _lost(self, worker: WorkerProcess) -> None:
        # the end of a trainer shows in its next call: nothing comes back by itself
        if not self._is_stopped and self._workers.get(worker.name) is worker:
            self._events.put_nowait(CapacityEvent(CapacityChange.REPLICA_LOST, worker.name))


class _loss_of:  # noqa: N801 -- read as a phrase: with _loss_of(replica)
    """Turn the end of a process into the loss of its replica."""

    def __init__(self, replica: str) -> None:
        self._replica = replica

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, WorkerLostError):
            raise ReplicaLostError(f"replica {self._replica} is gone: {error}") from error


def _replicas(kind: ReplicaKind, devices: Sequence[Device]) -> tuple[Replica, ...]:
    return tuple(
        Replica(id=f"{kind.value}-{number}", kind=kind, gpus=(device.id,))
        for number, device in enumerate(devices)
    )


def _absolute(path: Path) -> str:
    return str(path.absolute())


def _count(message: Message, key: str) -> int:
    return cast("int", message[key])


def _generation(handle: str, message: Message) -> Generation:
    return Generation(
        handle,
        _count(message, "new_tokens"),
        FinishReason(str(message["finish_reason"])),
        tuple(VersionSpan(*span) for span in cast("list[list[int]]", message["spans"])),
    )
