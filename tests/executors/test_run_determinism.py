"""One seed, one trace: in one process and in several, whatever the hash seed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import attrs
from tests.executors.support import run_training, small_config, small_options

from swingshift.executors.app.run_log_lines import LineEncoder
from swingshift.executors.simulated.costs.variation import Variation
from swingshift.sdk.registry import build_policy

ROOT = Path(__file__).parents[2]


def log_of(seed: int) -> str:
    """Return the whole log of a run in which everything random is in use."""
    noisy = Variation(noise_sigma=0.2, outlier_probability=0.1, outlier_factor=3.0)
    ran = run_training(
        small_config(seed=seed),
        build_policy("default", deactivate_ratio=0.5),
        options=attrs.evolve(small_options(), variation=noisy),
    )
    stamped = zip(ran.sink.times_s, ran.sink.events, strict=True)
    return "".join(LineEncoder().encode(number, *entry) for number, entry in enumerate(stamped))


def digest_of(seed: int) -> str:
    return hashlib.sha256(log_of(seed).encode()).hexdigest()


def test_a_seed_gives_the_same_log_every_time() -> None:
    """To the last digit of every time."""
    assert log_of(3) == log_of(3)


def test_another_seed_gives_another_log() -> None:
    """Lengths and durations depend on it."""
    assert log_of(3) != log_of(4)


def test_other_processes_give_the_same_log() -> None:
    """Nothing depends on hashing, addresses or the wall clock."""
    program = "from tests.executors.test_run_determinism import digest_of; print(digest_of(3))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for hash_seed in ("1", "4242")
    }

    assert digests == {digest_of(3)}
