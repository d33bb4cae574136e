"""The book of replicas and GPUs: who is in which state, who is in routing, and what every GPU does.

Nothing else moves a replica or changes routing, so the event log tells the whole truth about both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from swingshift.executors.runtime.changes import Changes
from swingshift.executors.runtime.load_balancer import LoadBalancer
from swingshift.executors.runtime.recorder import Recorder
from swingshift.sdk.events import Advisory, GpuStateChanged, ReplicaMoved, RoutingChanged
from swingshift.sdk.executor import Inventory, ReplicaKind
from swingshift.sdk.lifecycle import ReplicaEvent, ReplicaState, ReplicaStatus, advance_replica
from swingshift.sdk.metrics import GpuState

_ROLLOUT_STATES = frozenset({GpuState.ROLLOUT, GpuState.ROLLOUT_IDLE})


def _ignore(_what: int | str) -> None:
    """Serve as a callback where nobody listens."""


class Fleet:
    """Applies lifecycle steps to replicas, keeps routing in line, and books GPU states.

    Attributes:
        inventory: What there is.
        on_serving: Called with the number of serving replicas whenever it changed.
        on_dead: Called with a replica that has just died.
    """

    def __init__(
        self, inventory: Inventory, balancer: LoadBalancer, recorder: Recorder, changes: Changes
    ) -> None:
        """Take the inventory: hybrid replicas asleep, standalone ones stale.

        Args:
            inventory: What the executor brought up.
            balancer: Routing, changed only from here.
            recorder: Hears of every step.
            changes: Notified whenever a replica's state changed.
        """
        self.inventory = inventory
        self._balancer = balancer
        self._recorder = recorder
        self._changes = changes
        self._replicas = {replica.id: replica for replica in inventory.replicas}
        self._trainer_gpus = tuple(gpu.id for gpu in inventory.trainer_gpus)
        self._gpu_states: dict[str, GpuState] = {}
        self._status = {
            replica.id: ReplicaStatus(
                state=ReplicaState.STALE
                if replica.kind is ReplicaKind.STANDALONE
                else ReplicaState.ASLEEP
            )
            for replica in inventory.replicas
        }
        self._lost_gpus: dict[str, None] = {}
        self._expected: dict[str, None] = {}
        self._deaths = dict.fromkeys(self._replicas, 0)
        self.on_serving: Callable[[int], None] = _ignore
        self.on_dead: Callable[[str], None] = _ignore
        balancer.on_busy = self._set_busy

    @property
    def only_hybrid(self) -> bool:
        """Whether no standalone replica is alive."""
        return all(
            self._status[replica.id].state is ReplicaState.DEAD
            for replica in self.inventory.of_kind(ReplicaKind.STANDALONE)
        )

    @property
    def has_prospects(self) -> bool:
        """Whether a standalone replica is on its way to serving: behind, or being restarted."""
        return bool(self._expected) or bool(
            self.in_state(ReplicaState.STALE, kind=ReplicaKind.STANDALONE)
        )

    @property
    def lost_trainer_gpus(self) -> tuple[str, ...]:
        """Trainer GPUs that are lost at this moment."""
        return tuple(gpu for gpu in self._trainer_gpus if gpu in self._lost_gpus)

    def status(self, replica: str) -> ReplicaStatus:
        """Return a replica's status."""
        return self._status[replica]

    def in_state(self, *states: ReplicaState, kind: ReplicaKind | None = None) -> tuple[str, ...]:
        """Return the replicas in any of the states, in inventory order; of one kind if named."""
        return tuple(
            name
            for name, replica in self._replicas.items()
            if self._status[name].state in states and (kind is None or replica.kind is kind)
        )

    def serving(self, kind: ReplicaKind | None = None) -> tuple[str, ...]:
        """Return the replicas that receive requests."""
        return self.in_state(ReplicaState.SERVING, kind=kind)

    def kind(self, replica: str) -> ReplicaKind:
        """Return a replica's kind."""
        return self._replicas[replica].kind

    def gpus(self, replica: str) -> tuple[str, ...]:
        """Return the GPUs a replica runs on."""
        return self._replicas[replica].gpus

    def move(self, replica: str, event: ReplicaEvent, *, version: int | None = None) -> None:
        """Apply one lifecycle step and report it.

        Raises:
            IllegalTransitionError: The step is not allowed; nothing changed.
        """
        before = self._status[replica]
        after = advance_replica(before, event, version=version)
        if before.state is ReplicaState.SERVING and after.state is not ReplicaState.SERVING:
            self._leave_routing(replica)
        self._status[replica] = after
        self._recorder.emit(
            ReplicaMoved(replica, before.state.value, after.state.value, after.version)
        )
        if after.state is ReplicaState.SERVING and before.state is not ReplicaState.SERVING:
            self._enter_routing(replica)
        elif after.state is ReplicaState.DEAD and before.state is not ReplicaState.DEAD:
            self._deaths[replica] += 1
            if before.state is not ReplicaState.ASLEEP:
                self.set_replicas([replica], GpuState.DOWN)
            self.on_dead(replica)
        elif after.state is ReplicaState.STALE and before.state is ReplicaState.DEAD:
            self.set_replicas([replica], GpuState.IDLE)
        self._changes.notify()

    def lose(self, replica: str, reason: str) -> None:
        """Book a replica DEAD and report why; nothing to do for one that is."""
        if self._status[replica].state is not ReplicaState.DEAD:
            self._recorder.emit(Advisory(f"replica {replica} was lost: {reason}"))
            self.move(replica, ReplicaEvent.LOSE)

    def deaths(self, replica: str) -> int:
        """Return how often a replica has died: what was begun before has not reached it since."""
        return self._deaths[replica]

    def notify(self) -> None:
        """Wake whoever waits for a change; the controller calls this when its own state changed."""
        self._changes.notify()

    def is_expected(self, replica: str) -> bool:
        """Return whether a dead replica is being restarted."""
        return replica in self._expected

    def expect(self, replica: str) -> None:
        """Note that a dead replica is being restarted."""
        self._expected[replica] = None

    def unexpect(self, replica: str) -> None:
        """Note that its restart ended, whichever way."""
        self._expected.pop(replica, None)
        self._changes.notify()

    def lose_gpu(self, gpu: str) -> None:
        """Note that a GPU is gone; what runs on it is moved by the caller."""
        self._lost_gpus[gpu] = None
        self.set_gpus([gpu], GpuState.DOWN)
        self._changes.notify()

    def return_gpu(self, gpu: str) -> None:
        """Note that a GPU is back, with nothing on it."""
        if self._lost_gpus.pop(gpu, gpu) is None:
            self.set_gpus([gpu], GpuState.IDLE)
            self._changes.notify()

    def has_gpus(self, replica: str) -> bool:
        """Return whether none of a replica's GPUs is lost."""
        return not any(gpu in self._lost_gpus for gpu in self._replicas[replica].gpus)

    def on_gpu(self, gpu: str) -> tuple[str, ...]:
        """Return the replicas that run on a GPU."""
        return tuple(name for name, replica in self._replicas.items() if gpu in replica.gpus)

    def set_gpus(self, gpus: Iterable[str], state: GpuState) -> None:
        """Book GPUs under a state of the ledger; only changes are reported."""
        changed = tuple(
            gpu
            for gpu in gpus
            if self._gpu_states.get(gpu) is not state
            and (state is GpuState.DOWN or gpu not in self._lost_gpus)
        )
        if changed:
            self._gpu_states.update(dict.fromkeys(changed, state))
            self._recorder.emit(GpuStateChanged(changed, state.value))

    def set_trainer(self, state: GpuState) -> None:
        """Book the trainer's GPUs under a state."""
        self.set_gpus(self._trainer_gpus, state)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Book the trainer's GPUs as computing while the context lasts."""
        self.set_trainer(GpuState.TRAIN)
        try:
            yield
        finally:
            self.set_trainer(GpuState.TRAIN_WAIT)

    def set_replicas(self, replicas: Iterable[str], state: GpuState) -> None:
        """Book the GPUs of replicas under a state."""
        self.set_gpus([gpu for name in replicas for gpu in self._replicas[name].gpus], state)

    def set_rollout(self, replicas: Iterable[str]) -> None:
        """Book the GPUs of serving replicas by whether they have requests."""
        for name in replicas:
            busy = self._balancer.load(name) > 0
            self.set_replicas([name], GpuState.ROLLOUT if busy else GpuState.ROLLOUT_IDLE)

    def set_lent(self, served: Iterable[str]) -> None:
        """Book the trainer's GPUs while they are lent: to replicas that serve, or to nobody."""
        served = tuple(served)
        used = {gpu for name in served for gpu in self._replicas[name].gpus}
        unused = [
            gpu
            for gpu in self._trainer_gpus
            if gpu not in used and self._gpu_states.get(gpu) is not GpuState.DOWN
        ]
        self.set_gpus(unused, GpuState.IDLE)
        self.set_rollout(served)

    def _enter_routing(self, replica: str) -> None:
        self.set_replicas([replica], GpuState.ROLLOUT_IDLE)
        epoch = self._balancer.add(replica)
        self._recorder.emit(RoutingChanged(replica, True, epoch))
        self._tell_serving()

    def _leave_routing(self, replica: str) -> None:
        epoch = self._balancer.remove(replica)
        if epoch is not None:
            self._recorder.emit(RoutingChanged(replica, False, epoch))
            self._tell_serving()

    def _tell_serving(self) -> None:
        self.on_serving(len(self._balancer.replicas))

    def _set_busy(self, replica: str, busy: bool) -> None:
        gpus = self._replicas[replica].gpus
        if self._gpu_states.get(gpus[0]) in _ROLLOUT_STATES:
            self.set_gpus(gpus, GpuState.ROLLOUT if busy else GpuState.ROLLOUT_IDLE)
