"""The checks find what they are for: each of some faults, planted in a copy of the control plane,
is found by a test of this suite in seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.executors.planted import FAULTS, Planted, copy_of_executors, plant, run_tests

pytestmark = pytest.mark.slow

Verdict = tuple[bool, str]


@pytest.fixture(scope="module")
def verdicts(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Mapping[str, Future[Verdict]]]:
    """Return what the tests say about each copy, and about one without a fault, as they end."""

    def judge(fault: Planted) -> Verdict:
        part = copy_of_executors(tmp_path_factory.mktemp("planted"))
        plant(part, fault)
        return run_tests(part, fault.found_by)

    def judge_sound() -> Verdict:
        part = copy_of_executors(tmp_path_factory.mktemp("sound"))
        return run_tests(part, *dict.fromkeys(fault.found_by for fault in FAULTS))

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        yield {
            "": pool.submit(judge_sound),
            **{fault.name: pool.submit(judge, fault) for fault in FAULTS},
        }


def test_a_copy_without_a_fault_passes(verdicts: Mapping[str, Future[Verdict]]) -> None:
    """So what fails elsewhere fails for its fault."""
    passed, printed = verdicts[""].result()
    assert passed, printed


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(fault: Planted, verdicts: Mapping[str, Future[Verdict]]) -> None:
    """By a test that fails, and not by one that cannot be run."""
    passed, printed = verdicts[fault.name].result()
    assert not passed, f"{fault.found_by} does not find it"
    assert "1 failed" in printed, printed


def test_a_fault_that_cannot_be_planted_says_so(tmp_path: Path) -> None:
    """With the file and the text that is not there any more."""
    lost = Planted(name="stale", changes=(("fleet.py", "no such text", ""),), found_by="")
    with pytest.raises(LookupError, match=r"'stale' cannot be planted: runtime/fleet\.py has"):
        plant(copy_of_executors(tmp_path), lost)
