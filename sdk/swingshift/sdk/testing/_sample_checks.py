"""Checks of samples: where each goes, how many are anywhere, and how stale they may be."""

from __future__ import annotations

from typing import ClassVar

from swingshift.sdk.events import (
    BatchCollected,
    BatchTrained,
    CapacityChanged,
    FitStepEnded,
    LentWaitEnded,
    RunEnded,
    SampleGivenUp,
    SampleQueued,
    SampleSubmitted,
    StalenessReset,
)
from swingshift.sdk.metrics import concurrency_capacity
from swingshift.sdk.testing._run_view import Check, Report, RunView


class Samples(Check):
    """Each sample is submitted, queued and trained at most once, in this order; none is lost."""

    name: ClassVar[str] = "samples"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin without samples."""
        super().__init__(view, report)
        self._submitted: set[int] = set()
        self._collected: int | None = None

    def on_sample_submitted(self, event: SampleSubmitted) -> None:
        """A sample is new."""
        if event.sample in self._submitted:
            self.fail(f"sample {event.sample} was submitted twice")
        self._submitted.add(event.sample)

    def on_sample_queued(self, event: SampleQueued) -> None:
        """A queued sample was being generated."""
        if event.sample not in self.view.active:
            self.fail(f"sample {event.sample} was queued and not active")

    def on_sample_given_up(self, event: SampleGivenUp) -> None:
        """A sample given up was being generated."""
        if event.sample not in self.view.active:
            self.fail(f"sample {event.sample} was given up and not active")

    def on_batch_collected(self, event: BatchCollected) -> None:
        """A batch is made of queued samples, each once."""
        strange = [sample for sample in event.samples if sample not in self.view.queued]
        if strange or len(set(event.samples)) != len(event.samples):
            self.fail(f"batch {event.batch} holds what is not queued: {strange or event.samples}")
        self._collected = event.batch

    def on_batch_trained(self, event: BatchTrained) -> None:
        """A batch is trained once, after it was collected."""
        if event.batch != self._collected:
            self.fail(f"batch {event.batch} was trained; collected was {self._collected}")
        self._collected = None

    def on_run_ended(self, event: RunEnded) -> None:
        """The run's account of its samples agrees with its events."""
        view, total = self.view, self.view.started.total_samples
        if event.trained_samples != view.trained:
            self.fail(f"{event.trained_samples} trained samples reported, {view.trained} seen")
        if event.trained_samples + event.unused_samples != total:
            self.fail(
                f"{event.trained_samples} trained and {event.unused_samples} unused samples are "
                f"not the {total} of the run"
            )
        if event.given_up_samples != view.given_up:
            self.fail(f"{event.given_up_samples} given-up samples reported, {view.given_up} seen")
        kept = view.trained + len(view.queued) + view.given_up
        if event.outcome == "exhausted" and (view.active or kept != total):
            self.fail(
                f"the data is exhausted with {len(view.active)} samples active, "
                f"{len(view.queued)} queued, {view.trained} trained and {view.given_up} given up "
                f"of {total}"
            )


class Counts(Check):
    """Every count of active and queued samples in an event is the true one."""

    name: ClassVar[str] = "counts"

    def after_sample_submitted(self, event: SampleSubmitted) -> None:
        """Compare."""
        self._expect_active(event.active)

    def after_sample_queued(self, event: SampleQueued) -> None:
        """Compare."""
        self._expect_active(event.active)
        self._expect_queued(event.queue_size)

    def after_sample_given_up(self, event: SampleGivenUp) -> None:
        """Compare."""
        self._expect_active(event.active)

    def after_staleness_reset(self, event: StalenessReset) -> None:
        """Compare."""
        self._expect_active(event.active)
        self._expect_queued(event.queued)

    def after_lent_wait_ended(self, event: LentWaitEnded) -> None:
        """Compare."""
        self._expect_queued(event.queue_size)

    def after_fit_step_ended(self, event: FitStepEnded) -> None:
        """Compare."""
        self._expect_queued(event.mq_size)

    def _expect_active(self, active: int) -> None:
        if active != len(self.view.active):
            self.fail(f"{active} active samples reported, {len(self.view.active)} counted")

    def _expect_queued(self, queued: int) -> None:
        if queued != len(self.view.queued):
            self.fail(f"{queued} queued samples reported, {len(self.view.queued)} counted")


class QueueBound(Check):
    """The queue never holds more than it may."""

    name: ClassVar[str] = "queue_bound"

    def after_sample_queued(self, event: SampleQueued) -> None:
        """Compare with the bound."""
        most = self.view.started.max_required_samples
        if len(self.view.queued) > most:
            self.fail(f"{len(self.view.queued)} samples are queued; {most} may be")


class Staleness(Check):
    """Submissions keep to the staleness budget, and the count against it is the true one."""

    name: ClassVar[str] = "staleness"

    def __init__(self, view: RunView, report: Report) -> None:
        """Begin with nothing counted."""
        super().__init__(view, report)
        self._counted = 0

    def on_staleness_reset(self, event: StalenessReset) -> None:
        """Begin a version with what is in stock."""
        self._counted = len(self.view.active) + len(self.view.queued)
        self._compare(event.staleness_samples)

    def on_sample_submitted(self, event: SampleSubmitted) -> None:
        """Count one; beyond the budget only what a collection cannot do without is allowed."""
        self._counted += 1
        self._compare(event.staleness_samples)
        started = self.view.started
        stock = len(self.view.active) + len(self.view.queued)
        if self._counted > started.max_required_samples and stock >= started.required_samples:
            self.fail(
                f"sample {event.sample} is number {self._counted} since the sync; the budget is "
                f"{started.max_required_samples} and {stock} in stock fill a collection"
            )

    def on_sample_given_up(self, event: SampleGivenUp) -> None:
        """Give its place back."""
        self._counted -= 1

    def _compare(self, reported: int) -> None:
        if reported != self._counted:
            self.fail(f"{reported} samples count against the budget, it says; {self._counted} do")
            self._counted = reported


class Capacity(Check):
    """The concurrency cap follows the replicas in routing, and nothing is submitted above it."""

    name: ClassVar[str] = "capacity"

    _capacity = 0

    def on_capacity_changed(self, event: CapacityChanged) -> None:
        """Work the cap out again."""
        started = self.view.started
        servers = len(self.view.routing)
        capacity = concurrency_capacity(
            servers, started.concurrent_samples_per_replica, started.max_required_samples
        )
        if (event.servers, event.capacity) != (servers, capacity):
            self.fail(
                f"{event.servers} servers give a cap of {event.capacity}, it says; {servers} are "
                f"in routing and give {capacity}"
            )
        self._capacity = event.capacity

    def after_sample_submitted(self, event: SampleSubmitted) -> None:
        """Compare with the cap."""
        if len(self.view.active) > self._capacity:
            self.fail(f"{len(self.view.active)} samples are active; the cap is {self._capacity}")
