"""The local executor by the kit that every executor goes through."""

from __future__ import annotations

import pytest
from tests.executors.local_runs import under_test

from swingshift.sdk.testing import ExecutorPromise, executor_contract

pytestmark = pytest.mark.slow


@executor_contract(under_test())
def test_local_executor(executor_promise: ExecutorPromise) -> None:
    """With a back door to everything, each promise is judged and kept."""
    executor_promise.check()
