"""The queue model: a run that ends wherever its data does."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.sdk.policy_doubles import Lends, SaysFalseForEver, WaitsForWhatComes

from swingshift.sdk import guard as guarding
from swingshift.sdk.context import DynamicScheduleContext
from swingshift.sdk.guard import GuardedPolicy
from swingshift.sdk.testing import check_policy
from swingshift.sdk.testing.queue_model import EndlessWaitError, Pace, QueueModel, Workload
from swingshift.sdk.testing.strategies import workloads


class Watched(Lends):
    """Waits for full cycles and notes what it sees."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.syncs: list[DynamicScheduleContext] = []
        self.waits: list[DynamicScheduleContext] = []

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        self.waits.append(ctx)
        return super().deactivate_wait_samples(ctx)

    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        self.syncs.append(ctx)


@given(workloads())
def test_the_run_ends_with_less_than_a_collection_left(workload: Workload) -> None:
    """Every sample is trained once, given up, or left in the queue at the end."""
    model = QueueModel(workload, GuardedPolicy(WaitsForWhatComes(), strict=True))

    model.run()

    assert model.data_ended
    assert model.queued < workload.required_samples
    trained = model.fit_steps * workload.required_samples
    every = workload.give_up_every
    given_up = workload.data_samples // every if every else 0
    assert trained + model.queued + given_up == workload.data_samples


def test_a_run_by_hand() -> None:
    """8 samples a cycle, lent until 8 are queued; 3 more arrive in each fit step, 20 in all."""
    policy = Watched()
    workload = Workload(
        data_samples=20, concurrency=4, staleness_threshold=1.0, paces=(Pace(arrivals=3, times=1),)
    )
    model = QueueModel(workload, GuardedPolicy(policy, strict=True))

    model.run()

    assert (model.fit_steps, model.queued, model.data_ended) == (5, 0, True)
    assert [ctx.expected_samples for ctx in policy.syncs] == [0, 8, 16]
    assert [ctx.total_generated_samples for ctx in policy.syncs] == [0, 14, 20]
    assert [ctx.step_wait_samples for ctx in policy.syncs] == [(), (0, 0), (0, 0)]
    # at the last sync the queue holds all there is: nothing is lent any more
    assert [ctx.last_activate_duration_s for ctx in policy.syncs] == [5.0, 5.0, 0.0]
    assert [ctx.last_deactivate_duration_s for ctx in policy.syncs] == [0.0, 5.0, 5.0]
    assert [ctx.attainable_samples for ctx in policy.waits] == [16, 12]


def test_paces_follow_each_other_and_the_last_one_stays() -> None:
    """Counted in fit steps."""
    workload = Workload(
        data_samples=1, paces=(Pace(arrivals=5, times=2), Pace(arrivals=1, times=1))
    )

    assert [workload.arrivals(step) for step in range(5)] == [5, 5, 1, 1, 1]
    assert Workload(data_samples=1).arrivals(3) == 0
    assert "5 samples arriving in each of 2 fit steps, then 1" in str(workload)


def test_a_workload_tells_what_it_gives_up() -> None:
    """And what it has to do."""
    assert str(Workload(data_samples=9, give_up_every=3)) == (
        "4 samples x 2 collections per cycle, data of 9 samples, 4 in flight,"
        " none arriving in fit steps, one sample of 3 given up"
    )


def test_a_guard_that_never_decides_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run does not end then, and the law says so."""
    monkeypatch.setattr(guarding, "_why_now", lambda *_: "")
    model = QueueModel(Workload(data_samples=3), GuardedPolicy(SaysFalseForEver(), strict=True))

    with pytest.raises(EndlessWaitError):
        model.run()
    (result,) = check_policy(SaysFalseForEver, laws=["liveness"], max_examples=3).results
    assert "before fit step 1 the run does not end: " in result.message
