"""The embedded controller for a training loop without asyncio.

The control plane lives on an event loop in a thread of its own; the training loop calls in and
waits for the answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TypeVar

from swingshift.executors.runtime.embedded import EmbeddedController
from swingshift.executors.runtime.harvest import LentWait

_T = TypeVar("_T")


class BlockingController:
    """`EmbeddedController` with plain methods; also a context manager.

    ``RolloutSide`` is asked from the control plane's thread, so its `counts` must be safe to call
    while the training loop runs.
    """

    def __init__(self, make: Callable[[], EmbeddedController]) -> None:
        """Start the thread, the controller and its executor.

        Args:
            make: Builds the controller; called once, on the control plane's loop.
        """
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="swingshift control plane", daemon=True
        )
        self._thread.start()
        try:
            self._controller = self.run(self._start(make))
        except BaseException:
            self._end_thread()
            raise

    def run(self, work: Coroutine[object, object, _T]) -> _T:
        """Run a coroutine on the control plane's loop and return its result.

        For a loop's own requests: acquire from the balancer, generate, release.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def controller(self) -> EmbeddedController:
        """The controller itself, for coroutines given to `run`."""
        return self._controller

    def notify(self) -> None:
        """Say that the loop's counts changed."""
        self._loop.call_soon_threadsafe(self._controller.notify)

    def before_fit_step(self, global_steps: int) -> LentWait:
        """Block until the trainer's GPUs belong to training; see `EmbeddedController`."""
        return self.run(self._controller.before_fit_step(global_steps))

    def at_weight_sync(self, version: int) -> None:
        """Block until the new weights are where they belong; see `EmbeddedController`."""
        self.run(self._controller.at_weight_sync(version))

    def close(self) -> None:
        """Stop the controller, its executor and the thread; idempotent."""
        if self._thread.is_alive():
            try:
                self.run(self._controller.stop())
            finally:
                self._end_thread()

    def __enter__(self) -> BlockingController:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @staticmethod
    async def _start(make: Callable[[], EmbeddedController]) -> EmbeddedController:
        controller = make()
        try:
            await controller.start()
        except BaseException:
            await controller.stop()
            raise
        return controller

    def _end_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
