"""Faults by name: which verb goes wrong, how, at which of its calls, and what a run makes of it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

import attrs
from tests.executors.faultworld import BEYOND, SOON, WITHIN, Judged, World, judge

from swingshift.executors.simulated.faults import Fault, FaultKind, FaultPlan, Verb

KINDS: dict[str, tuple[FaultKind, float]] = {
    "fail": (FaultKind.FAIL, 0.0),
    "hang": (FaultKind.HANG, 0.0),
    "slow": (FaultKind.SLOW, WITHIN),
    "slow-beyond": (FaultKind.SLOW, BEYOND),
    "late": (FaultKind.LATE, WITHIN),
    "late-beyond": (FaultKind.LATE, BEYOND),
    "zombie": (FaultKind.ZOMBIE, BEYOND),
    "zombie-soon": (FaultKind.ZOMBIE, SOON),
    "die": (FaultKind.DIE, 0.0),
    "die-unreported": (FaultKind.DIE, BEYOND),
    "short-memory": (FaultKind.SHORT_MEMORY, 0.0),
    "false-memory": (FaultKind.FALSE_MEMORY, 0.0),
    "partial": (FaultKind.PARTIAL, 0.0),
}
REPLICAS = (None, "standalone-0", "standalone-1", "hybrid-0", "hybrid-1")
PLACES = ("first", "middle", "last")
EVER = 1_000_000
TIMES = (1, 2, EVER)
"""One call; those of a step, since each world has two replicas of a kind; all from there on."""

# steps without which training cannot go on: a run may end where one of them fails
_VITAL = (
    Verb.START,
    Verb.FIT_STEP,
    Verb.RELOAD_PARAMETERS,
    Verb.RELOAD_OPTIMIZER_AND_GRADIENTS,
    Verb.KILL,
)
_FAILING = ("fail", "hang", "slow-beyond", "late-beyond", "short-memory")


def kinds_of(verb: Verb) -> tuple[str, ...]:
    """Return the names of the kinds that make sense for a verb."""
    return tuple(name for name, (kind, _) in KINDS.items() if verb.can(kind))


def is_possible(row: Mapping[str, object], suffix: str = "") -> bool:
    """Return whether a verb can go wrong in this way, in a world that has the replica.

    Args:
        row: Values of ``verb``, ``kind``, ``replica`` and ``world``; those missing forbid nothing.
        suffix: Follows the names of the first three, where a row is about several faults.
    """
    verb, kind, replica = (row.get(f"{name}{suffix}") for name in ("verb", "kind", "replica"))
    if isinstance(verb, Verb) and isinstance(kind, str) and kind not in kinds_of(verb):
        return False
    world = row.get("world")
    return not isinstance(world, World) or replica is None or replica in world.replicas


@functools.cache
def _calls(world: World, *, troubled: bool) -> dict[tuple[Verb, str | None], int]:
    return judge(FaultPlan(script=_trouble(world) if troubled else ()), world).calls


def _trouble(world: World) -> tuple[Fault, ...]:
    """Return faults after which replicas are killed and restarted."""
    died = Fault(
        verb=Verb.GENERATE, kind=FaultKind.DIE, call=5, replica=world.replicas[0], seconds=0.0
    )
    stayed = Fault(verb=Verb.SLEEP, kind=FaultKind.FAIL, times=2, replica="hybrid-1")
    return (died, stayed) if "hybrid-1" in world.replicas else (died,)


@attrs.frozen(kw_only=True)
class Strike:
    """A fault by name.

    Attributes:
        verb: Which call.
        kind: One of `KINDS`.
        place: Which of its calls, as a run without faults has them: one of `PLACES`.
        times: How many in a row.
        replica: Among the calls for this replica; any where it is None, or the verb names none.
    """

    verb: Verb
    kind: str
    place: str = "first"
    times: int = 1
    replica: str | None = None

    def __str__(self) -> str:
        where = f" of {self.replica}" if self.replica else ""
        again = f" x {self.times}" if self.times > 1 else ""
        return f"{self.verb.value}{where}: {self.kind} at the {self.place} call{again}"

    def faults(self, world: World) -> tuple[Fault, ...]:
        """Return the fault in a world, and before it what makes the call happen at all."""
        kind, seconds = KINDS[self.kind]
        is_troubled = self.verb in (Verb.KILL, Verb.RESTART)
        calls = _calls(world, troubled=is_troubled)
        counted = None if self.verb.is_of_trainer else self.replica
        count = calls.get((self.verb, counted), 0)
        if not count:
            counted, count = None, calls.get((self.verb, None), 0)
        who = counted
        if self.verb.is_of_trainer and kind is FaultKind.DIE:
            who = self.replica or world.replicas[-1]
        call = {"first": 1, "middle": (count + 1) // 2, "last": count}[self.place]
        fault = Fault(
            verb=self.verb,
            kind=kind,
            call=max(1, call),
            times=self.times,
            replica=who,
            seconds=seconds,
        )
        return (*_trouble(world), fault) if is_troubled else (fault,)

    @classmethod
    def of_row(cls, row: Mapping[str, object], suffix: str = "") -> Strike:
        """Return the fault that a row of a covering array is about."""
        values = {field.name: row[f"{field.name}{suffix}"] for field in attrs.fields(cls)}
        return cls(**values)  # type: ignore[arg-type]

    @property
    def is_survived(self) -> bool:
        """Whether a run trains everything all the same."""
        is_vital = self.verb in _VITAL and self.kind in _FAILING
        return self.times == 1 and not is_vital and self.kind != "false-memory"


@attrs.frozen(kw_only=True)
class Verdict:
    """What became of a case.

    Attributes:
        problems: The promises that the run broke.
        all_struck: Whether every fault of the case struck, and not only those before it.
    """

    problems: tuple[str, ...]
    all_struck: bool


@attrs.frozen(kw_only=True)
class Case:
    """A world and what strikes it."""

    world: World
    strikes: tuple[Strike, ...]

    @classmethod
    def of_row(cls, row: Mapping[str, object], *suffixes: str) -> Case:
        """Return what a row of a covering array is about: one fault, or one for each suffix."""
        world = row["world"]
        assert isinstance(world, World)
        strikes = tuple(Strike.of_row(row, suffix) for suffix in suffixes or ("",))
        return cls(world=world, strikes=strikes)

    def __str__(self) -> str:
        return f"{self.world.name}: {'; '.join(map(str, self.strikes))}"

    @property
    def plan(self) -> FaultPlan:
        """The plan of what strikes it."""
        faults = (fault for strike in self.strikes for fault in strike.faults(self.world))
        return FaultPlan(script=tuple(faults))

    @functools.cached_property
    def verdict(self) -> Verdict:
        """What became of it; run once."""
        judged = judge(self.plan, self.world)
        ours = {strike.faults(self.world)[-1] for strike in self.strikes}
        return Verdict(
            problems=tuple(self._problems(judged)),
            all_struck=len(ours) == len(self.strikes) and ours <= set(judged.struck),
        )

    def _problems(self, judged: Judged) -> Iterator[str]:
        yield from (f"{self}: {problem}" for problem in judged.problems)
        total = self.world.config.rollout.total_rollout_steps
        is_survived = len(self.strikes) == 1 and self.strikes[0].is_survived
        report = judged.report
        if is_survived and report is not None and report.trained_samples < total:
            reason = report.reason or f"{report.given_up_samples} given up"
            yield f"{self}: trained {report.trained_samples} of {total} samples: {reason}"


def problems_of(cases: Iterable[Case]) -> list[str]:
    """Run all cases and return the promises that they broke."""
    return [problem for case in cases for problem in case.verdict.problems]
