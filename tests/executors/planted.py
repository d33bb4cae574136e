"""Faults to plant in a copy of the control plane, and the check that has to find each.

A fault is a change of text, so that it is in the code as a slip would be. Where the text is not
there any more, planting says so: the fault is then to be written anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
_PACKAGE = Path("swingshift") / "executors"


@attrs.frozen(kw_only=True)
class Planted:
    """A fault in the control plane.

    Attributes:
        name: What is wrong.
        changes: File of the runtime, text, and the text in its place; all of them together.
        found_by: The test that must fail, as pytest names it, below ``tests/executors``.
    """

    name: str
    changes: tuple[tuple[str, str, str], ...]
    found_by: str


def copy_of_executors(folder: Path) -> Path:
    """Copy the part of the program that control plane and simulator are in.

    Returns:
        The folder that is to come first on the path.
    """
    part = folder / "executors"
    shutil.copytree(
        ROOT / "executors" / _PACKAGE,
        part / _PACKAGE,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    return part


def plant(part: Path, fault: Planted) -> None:
    """Change the copy.

    Raises:
        LookupError: A text that is to be changed is not there, or more than once.
    """
    for file, old, new in fault.changes:
        path = part / _PACKAGE / "runtime" / file
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise LookupError(
                f"{fault.name!r} cannot be planted: runtime/{file} has this text "
                f"{text.count(old)} times, expected once; write the fault anew:\n{old}"
            )
        path.write_text(text.replace(old, new), encoding="utf-8")


def run_tests(part: Path, *names: str) -> tuple[bool, str]:
    """Run tests in a process of their own, on a copy.

    Returns:
        Whether all passed, and what pytest printed.
    """
    tests = [str(ROOT / "tests" / "executors" / name) for name in names]
    options = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-p", "no:cov"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(part), "HYPOTHESIS_PROFILE": "ci"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


_SINGLE = "test_fault_single.py::test_a_fault_of_any_call_is_survived_or_named[{}]"

FAULTS = (
    Planted(
        name="admits without a canary",
        changes=(
            (
                "switching.py",
                'answered = await self.each(switch, "canary", replicas, self._canary)',
                "answered = tuple(replicas)",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="routes before it resumes",
        changes=(
            (
                "lending.py",
                """        resumed = await steps.each(
            "activate", "resume", cached, lambda name: executor.resume([name])
        )
        return await steps.admit("activate", resumed)
""",
                """        served = await steps.admit("activate", cached)
        return await steps.each(
            "activate", "resume", served, lambda name: executor.resume([name])
        )
""",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="aborts before it removes from routing",
        changes=(
            (
                "lending.py",
                "            await self._restarts.cancel(name)\n",
                "            await self._restarts.cancel(name)\n        awake = []\n",
            ),
            (
                "lending.py",
                "            self._fleet.move(name, ReplicaEvent.DRAIN)\n",
                "            awake.append(name)\n",
            ),
            (
                "lending.py",
                """            self._hybrid(ReplicaState.DRAINING),
            lambda name: self._executor.pause([name], PauseMode.ABORT),
        )
""",
                """            (*awake, *self._hybrid(ReplicaState.DRAINING)),
            lambda name: self._executor.pause([name], PauseMode.ABORT),
        )
        for name in awake:
            if name in stopped:
                self._fleet.move(name, ReplicaEvent.DRAIN)
""",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="reloads before it measures",
        changes=(
            (
                "lending.py",
                "        await self._prove_memory()\n",
                "        for part in reversed(TrainingPart):\n"
                "            await self._reload(part)\n"
                "        await self._prove_memory()\n",
            ),
        ),
        found_by=_SINGLE.format("pause"),
    ),
    Planted(
        name="believes that memory is back",
        changes=(
            (
                "lending.py",
                "            if free.get(gpu, 0) < required:\n",
                "            if free.get(gpu, 0) < 0:\n",
            ),
        ),
        found_by=_SINGLE.format("sleep"),
    ),
    Planted(
        name="trains though its state did not come back",
        changes=(
            (
                "lending.py",
                'raise MemoryWithheldError(f"training state did not come back: {error}") '
                "from error",
                "return",
            ),
        ),
        found_by=_SINGLE.format("sleep"),
    ),
    Planted(
        name="lets a replica live whose wake was given up",
        changes=(
            (
                "lending.py",
                "            lambda name: executor.wake([name], MemoryPart.WEIGHTS),\n",
                "            lambda name: executor.wake([name], MemoryPart.WEIGHTS),\n"
                "            fence=False,\n",
            ),
        ),
        found_by=_SINGLE.format("wake_weights"),
    ),
    Planted(
        name="fences one replica after the other",
        changes=(
            (
                "switching.py",
                "await gather_or_cancel(asyncio.get_running_loop(), doomed)",
                "[await kill for kill in doomed]",
            ),
        ),
        found_by="test_runtime_switching.py::test_replicas_are_fenced_at_once[sync]",
    ),
    Planted(
        name="waits for ever for the executor to stop",
        changes=(
            (
                "lifespan.py",
                '        async with deadlines.step("stop of the executor", '
                "config.stop_deadline_s):\n            await executor.stop()\n",
                "        await executor.stop()\n",
            ),
        ),
        found_by=_SINGLE.format("stop"),
    ),
    Planted(
        name="has no deadline for a step",
        changes=(
            (
                "switching.py",
                '            async with self._deadlines.call(f"{switch}: {step}", self._step_s):\n'
                "                await action()\n",
                "            await action()\n",
            ),
        ),
        found_by=_SINGLE.format("sleep"),
    ),
    Planted(
        name="keeps serving after a sync that failed",
        changes=(
            (
                "switching.py",
                "for name in alive if name not in synced}",
                "for name in alive if name not in synced and not self._fleet.serving()}",
            ),
        ),
        found_by=_SINGLE.format("sync_weights"),
    ),
    Planted(
        name="restarts straight to SERVING",
        changes=(
            (
                "restarts.py",
                "                    self._fleet.move(replica, ReplicaEvent.RESTART)\n",
                "                    self._fleet.move(replica, ReplicaEvent.RESTART)\n"
                "                    self._fleet.move(replica, ReplicaEvent.SYNC, version=0)\n"
                "                    self._fleet.move(replica, ReplicaEvent.ADMIT)\n",
            ),
        ),
        found_by=_SINGLE.format("restart"),
    ),
    Planted(
        name="catches up while training",
        changes=(
            (
                "controller.py",
                """        async with self._gpus:
            if not self.is_behind or self._version is None:
""",
                """        async with asyncio.Lock():
            if not self.is_behind or self._version is None:
""",
            ),
        ),
        found_by=_SINGLE.format("restart"),
    ),
    Planted(
        name="does not tell who waits that GPUs are back",
        changes=(("controller.py", "        self._fleet.notify()\n", ""),),
        found_by=_SINGLE.format("sync_weights"),
    ),
    Planted(
        name="never releases the lock on the trainer's GPUs",
        changes=(
            (
                "controller.py",
                """        async with self._gpus:
            await self._trainer_gpus_back()
            begun_s""",
                """        if await self._gpus.acquire():
            await self._trainer_gpus_back()
            begun_s""",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="leaves what was cancelled half-done",
        changes=(
            (
                "controller.py",
                "            elif self._state is ControllerState.DEACTIVATING:\n"
                "                await self._return_gpus()\n",
                "            elif self._state is ControllerState.DEACTIVATING:\n"
                "                self._move(ControllerEvent.DEACTIVATED)\n",
            ),
        ),
        found_by="test_fault_cancellation.py::test_a_call_that_was_cancelled_is_settled_by_the_next"
        "[before_fit_step-1-True]",
    ),
    Planted(
        name="counts a replica twice",
        changes=(
            (
                "fleet.py",
                "self.on_serving(len(self._balancer.replicas))",
                "self.on_serving(len(self._balancer.replicas) + len(self.serving()))",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="has no staleness budget",
        changes=(
            (
                "rollouter.py",
                "            and self._staleness_samples < self._budget\n",
                "",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="trains the same samples again",
        changes=(
            (
                "message_queue.py",
                "taken = tuple(self._samples.popleft() for _ in range(count))",
                "taken = tuple(self._samples)[:count]",
            ),
        ),
        found_by=_SINGLE.format("abort"),
    ),
    Planted(
        name="drops a sample on a full queue",
        changes=(
            (
                "message_queue.py",
                "        while not self.try_put(sample):\n            await self._changes.wait()\n",
                "        self.try_put(sample)\n",
            ),
        ),
        found_by="test_runtime_message_queue.py::test_put_waits_for_room",
    ),
    Planted(
        name="resumes with the full token budget",
        changes=(("client.py", "        self._room -= generation.new_tokens\n", ""),),
        found_by="test_runtime_client.py::test_an_aborted_request_resumes_with_what_it_has",
    ),
    Planted(
        name="ignores the epoch of a lease",
        changes=(
            (
                "load_balancer.py",
                "        if entry is None or entry.epoch != lease.epoch:\n",
                "        if entry is None:\n",
            ),
            (
                "load_balancer.py",
                "        if entry.leases.get(lease.request_id) is not lease:\n",
                "        if not entry.load:\n",
            ),
            (
                "load_balancer.py",
                "        del entry.leases[lease.request_id]\n",
                "        entry.leases.pop(lease.request_id, None)\n",
            ),
        ),
        found_by="test_runtime_load_balancer.py::"
        "test_every_entry_has_a_new_epoch_and_late_releases_do_not_count",
    ),
)
