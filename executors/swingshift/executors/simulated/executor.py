"""The executor whose verbs take modelled time on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from swingshift.executors.simulated.costs.episodes import EpisodeSource
from swingshift.executors.simulated.costs.lengths import LengthSource
from swingshift.executors.simulated.costs.training import FitWork
from swingshift.executors.simulated.costs.variation import VariationSource
from swingshift.executors.simulated.engine import SimulatedEngine
from swingshift.executors.simulated.machine import build_machine
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.executors.simulated.prefix_cache import PrefixCache
from swingshift.executors.simulated.sizes import replica_count
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.executor import (
    Capabilities,
    CapacityEvent,
    Executor,
    ExecutorError,
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
)

_CANARY_TOKENS = 1
# counted once: asking an enumeration for its length runs Python code, here for every attempt
_MEMORY_PARTS = len(MemoryPart)


class UnsafeCallError(SwingshiftError):
    """The control plane asked for what would crash a real trainer or spoil its weights.

    No `ExecutorError`: nothing recovers from it, so that the fault in the control plane is seen.
    """


class SimulatedExecutor(Executor):
    """A cluster that exists as numbers: engines, trainer, memory and links of one scenario."""

    def __init__(self, config: RunConfig, options: SimulatedOptions, lengths: LengthSource) -> None:
        """Work out the world; nothing runs before `start`.

        Args:
            config: Topology, parallel sizes, memory shares.
            options: The modelled or measured machine.
            lengths: Where response lengths come from.

        Raises:
            ConfigError: The model does not fit the GPUs or the parallel sizes.
        """
        self._config = config
        self._options = options
        self._lengths = lengths
        self._episodes = EpisodeSource(options.episodes, seed=config.seed)
        self._is_single_turn = options.episodes.is_single_turn
        self._replica_gpus = config.replica_gpus
        self._machine = build_machine(config, options)
        self._variation = VariationSource(options.variation, seed=config.seed)
        self._replicas: dict[str, Replica] = {}
        self._engines: dict[str, SimulatedEngine] = {}
        self._awake: dict[str, set[MemoryPart]] = {}
        # hybrid replicas that hold, or may hold, memory of the trainer's GPUs
        self._on_trainer_gpus: dict[str, None] = {}
        self._offloaded: set[TrainingPart] = set()
        self._fitted: dict[int, FitResult] = {}
        self._stopped = asyncio.Event()

    @property
    def capabilities(self) -> Capabilities:
        """Everything there is to model."""
        return Capabilities(pause_keep=True, lend=True, virtual_time=True)

    async def start(self) -> Inventory:
        """Make the engines; takes no time."""
        trainer_gpus = tuple(f"trainer-{i}" for i in range(self._config.hybrid_gpus))
        rollout_gpus = tuple(f"rollout-{i}" for i in range(self._config.standalone_gpus))
        hybrid = trainer_gpus if replica_count(self._config, ReplicaKind.HYBRID) else ()
        replicas = (
            *self._cut(ReplicaKind.STANDALONE, rollout_gpus),
            *self._cut(ReplicaKind.HYBRID, hybrid),
        )
        for replica in replicas:
            self._replicas[replica.id] = replica
            self._engines[replica.id] = self._engine(replica)
            awake = replica.kind is ReplicaKind.STANDALONE
            self._awake[replica.id] = set(MemoryPart) if awake else set()
            if awake:
                self._engines[replica.id].resume()
        required = self._machine.train_required_bytes
        return Inventory(
            replicas=replicas,
            trainer_gpus=tuple(
                TrainerGpu(id=gpu, train_required_bytes=required) for gpu in trainer_gpus
            ),
        )

    async def stop(self) -> None:
        """End the engines."""
        for engine in self._engines.values():
            engine.lose()
        self._stopped.set()

    async def events(self) -> AsyncIterator[CapacityEvent]:
        """Report nothing: capacity does not change by itself."""
        await self._stopped.wait()
        return
        yield

    async def generate(self, replica: str, request: GenerationRequest) -> Generation:
        """Hold the request in the replica's engine until it ends.

        Raises:
            ReplicaLostError: The replica was killed.
            ExecutorError: Weights or KV cache are not awake, or no weights were synced.
        """
        engine = self._engines[replica]
        if len(self._awake[replica]) < _MEMORY_PARTS and not engine.is_lost:
            raise ExecutorError(f"replica {replica} is not awake; wake weights and KV cache first")
        return await engine.generate(request)

    async def abort(self, replica: str, request_ids: Sequence[str]) -> None:
        """Abort in the engine, at once."""
        self._engines[replica].abort(request_ids)

    def progress(self, replica: str) -> Progress:
        """Return the engine's counts."""
        return self._engines[replica].progress

    async def pause(self, replicas: Sequence[str], mode: PauseMode) -> None:
        """Pause engines; aborting and keeping take no time, draining takes as long as it takes."""
        self._expect_alive(replicas)
        engines = [self._engines[name] for name in replicas]
        if mode is PauseMode.DRAIN:
            await asyncio.gather(*(engine.drain() for engine in engines))
            return
        for engine in engines:
            engine.pause()
            if mode is PauseMode.ABORT:
                engine.abort_all()

    async def resume(self, replicas: Sequence[str]) -> None:
        """Let engines decode."""
        self._expect_alive(replicas)
        for name in replicas:
            self._engines[name].resume()

    async def wake(self, replicas: Sequence[str], part: MemoryPart) -> None:
        """Map memory again."""
        self._expect_alive(replicas)
        self._occupy(replicas)
        await self._take(f"wake_{part.value}", replicas, self._machine.wake_s[part])
        for name in replicas:
            self._awake[name].add(part)

    async def sleep(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Drop weights and KV cache."""
        self._expect_alive(replicas)
        await self._take("sleep", replicas, self._machine.sleep_s)
        self._vacate(replicas)
        return self._free_bytes(replicas)

    async def offload_training(self, part: TrainingPart) -> None:
        """Copy one part of the training state to host memory."""
        if part not in self._offloaded:
            await self._take(f"offload_{part.value}", (), self._machine.offload_s[part])
            self._offloaded.add(part)

    async def reload_training(self, part: TrainingPart) -> None:
        """Copy one part of the training state back."""
        if part in self._offloaded:
            await self._take(f"reload_{part.value}", (), self._machine.reload_s[part])
            self._offloaded.discard(part)

    async def sync_weights(
        self, version: int, replicas: Sequence[str]
    ) -> Mapping[str, SyncOutcome]:
        """Take the time of the slowest kind of link among the replicas.

        Raises:
            UnsafeCallError: The parameters to send are not on the trainer's GPUs.
        """
        if TrainingPart.PARAMETERS in self._offloaded:
            raise UnsafeCallError(f"version {version} was to be sent while it is offloaded")
        kinds = {self._replicas[name].kind for name in replicas}
        seconds = max((self._machine.sync_s[kind] for kind in kinds), default=0.0)
        await self._take("sync_weights", (), seconds)
        alive = [name for name in replicas if not self._engines[name].is_lost]
        for name in alive:
            self._engines[name].set_version(version)
        return {
            name: SyncOutcome.SYNCED if name in alive else SyncOutcome.FAILED for name in replicas
        }

    async def kill(self, replicas: Sequence[str]) -> Mapping[str, int]:
        """Lose the engines and free their memory, at once."""
        for name in replicas:
            self._engines[name].lose()
        self._vacate(replicas)
        return self._free_bytes(replicas)

    async def restart(self, replicas: Sequence[str]) -> None:
        """Start engines afresh."""
        self._occupy(replicas)
        await self._take("restart", replicas, self._options.cold_start_s)
        for name in replicas:
            self._engines[name] = self._engine(self._replicas[name])
            self._engines[name].resume()
            self._awake[name] = set(MemoryPart)

    async def fit_step(self, batch: FitBatch) -> FitResult:
        """Take the modelled seconds of every timing key, one after the other.

        Raises:
            UnsafeCallError: GPUs of the trainer are not free, or its state is not on them.
        """
        self._expect_trainer_ready()
        known = self._fitted.get(batch.batch_id)
        if known is not None:
            return known
        work = FitWork.of(
            (
                sample.prompt.tokens + episode.response_tokens
                for sample in batch.samples
                for episode in sample.episodes
            ),
            optimizer_steps=self._config.async_training.require_batches,
        )
        seconds = self._machine.fit_seconds(work)
        factor = self._variation.factor("fit_step")
        timing_s = {key: value * factor for key, value in seconds.items()}
        await asyncio.sleep(sum(timing_s.values()))
        self._expect_trainer_ready()
        result = self._fitted[batch.batch_id] = FitResult(timing_s=timing_s)
        return result

    async def discard(self, handles: Sequence[str]) -> None:
        """Do nothing: there are no payloads."""

    def _expect_alive(self, replicas: Sequence[str]) -> None:
        for name in replicas:
            if self._engines[name].is_lost:
                raise ReplicaLostError(f"replica {name} is gone; restart it first")

    def _expect_trainer_ready(self) -> None:
        if self._on_trainer_gpus:
            raise UnsafeCallError(
                "a fit step on GPUs whose memory is not free: "
                f"{', '.join(self._on_trainer_gpus)} may hold some"
            )
        if self._offloaded:
            away = ", ".join(sorted(part.value for part in self._offloaded))
            raise UnsafeCallError(f"a fit step while {away} are offloaded")

    def _occupy(self, replicas: Sequence[str]) -> None:
        for name in replicas:
            if self._replicas[name].kind is ReplicaKind.HYBRID:
                self._on_trainer_gpus[name] = None

    def _vacate(self, replicas: Sequence[str]) -> None:
        for name in replicas:
            self._awake[name].clear()
            self._on_trainer_gpus.pop(name, None)

    def _cut(self, kind: ReplicaKind, gpus: tuple[str, ...]) -> tuple[Replica, ...]:
        size = self._replica_gpus
        return tuple(
            Replica(id=f"{kind.value}-{i}", kind=kind, gpus=gpus[i * size : (i + 1) * size])
            for i in range(len(gpus) // size)
        )

    def _engine(self, replica: Replica) -> SimulatedEngine:
        return SimulatedEngine(
            replica.id,
            self._machine.engines[replica.kind],
            kv_capacity_tokens=self._machine.kv_capacity_tokens[replica.kind],
            max_running=self._config.actor_rollout_ref.rollout.max_num_seqs,
            response_tokens=self._response_tokens,
            # a single turn that resumes where it was pays its prefill again: published runs were
            # fitted so
            prefixes=None if self._is_single_turn else PrefixCache(),
        )

    def _response_tokens(self, request: GenerationRequest) -> int:
        if request.prompt.position < 0:
            return _CANARY_TOKENS
        position, index = request.prompt.position, request.response_index
        tokens = self._lengths.lengths(position)[index]
        if self._is_single_turn:
            return tokens
        return self._episodes.turn_end(tokens, position, index, request.turn)

    def _free_bytes(self, replicas: Sequence[str]) -> dict[str, int]:
        """Return free bytes by GPU of replicas that hold nothing any more."""
        gpu_bytes, state_bytes = self._machine.gpu_bytes, self._machine.state_bytes
        resident = sum(state_bytes[part] for part in TrainingPart if part not in self._offloaded)
        free: dict[str, int] = {}
        for replica in [self._replicas[name] for name in replicas]:
            held = resident if replica.kind is ReplicaKind.HYBRID else 0.0
            free.update(dict.fromkeys(replica.gpus, int(gpu_bytes - held)))
        return free

    async def _take(self, verb: str, replicas: Sequence[str], seconds: float) -> None:
        """Let modelled time pass; a call for several replicas ends with the slowest."""
        streams = [f"{verb}/{name}" for name in replicas] or [verb]
        await asyncio.sleep(seconds * max(self._variation.factor(stream) for stream in streams))
