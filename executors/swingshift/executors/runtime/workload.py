"""What the controller needs to know of the training loop around it, ours or somebody else's."""

from __future__ import annotations

from typing import Protocol

from swingshift.executors.runtime.message_queue import WaitOutcome
from swingshift.sdk.context import DynamicScheduleContext


class Workload(Protocol):
    """The observations that make a snapshot, and what a switch asks of the rollout side."""

    def snapshot(
        self, *, last_activate_duration_s: float, last_deactivate_duration_s: float
    ) -> DynamicScheduleContext:
        """Return what a policy may know now. Called at each question; must be cheap.

        Args:
            last_activate_duration_s: Seconds spent activating in this cycle, from the controller.
            last_deactivate_duration_s: Seconds spent deactivating in this cycle.
        """
        ...

    def queue_size(self) -> int:
        """Return how many samples are buffered."""
        ...

    def ended(self) -> WaitOutcome | None:
        """Return EXHAUSTED or FAILED when no sample will come any more, else None."""
        ...

    def incoming_requests(self) -> int:
        """Return how many requests begin as soon as the window of a new version opens."""
        ...

    async def changed(self) -> None:
        """Return after the next event that can change any of the answers above."""
        ...

    async def drain(self) -> None:
        """Begin no new episode and return when none is in flight; `resume_submission` undoes it."""
        ...

    def resume_submission(self) -> None:
        """Begin episodes again."""
        ...
