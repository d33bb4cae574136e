"""Promises about what the trainer does with samples, and about their payloads."""

from __future__ import annotations

import math

from swingshift.sdk.testing.executor_checks.promise import Group, expect
from swingshift.sdk.testing.executor_checks.stage import Stage

FIT = Group("fit")
DISCARD = Group("discard")


@FIT.promise("a fit step says how many seconds it took, by timing key")
async def _timings(stage: Stage) -> None:
    timing_s = dict((await stage.executor.fit_step(await stage.batch(0))).timing_s)
    expect(
        bool(timing_s) and all(0.0 <= value < math.inf for value in timing_s.values()),
        f"the seconds of a fit step are {timing_s}; allowed: one or more, finite, from 0",
    )


@FIT.promise("a repeated batch returns the first result")
async def _repeats_result(stage: Stage) -> None:
    batch = await stage.batch(0)
    first = await stage.executor.fit_step(batch)
    again = await stage.executor.fit_step(batch)
    expect(first == again, f"batch 0 came to {first}, and when it was repeated to {again}")


@FIT.promise("a batch is trained once, however often it is sent")
async def _trains_once(stage: Stage) -> None:
    for batch_id in (0, 1):
        batch = await stage.batch(batch_id)
        for _ in range(2):
            await stage.executor.fit_step(batch)
        times = await stage.see.times_trained(batch_id)
        expect(times == 1, f"batch {batch_id} was sent twice and trained {times} times")


@DISCARD.promise("a handle that is unknown, or discarded already, is ignored")
async def _ignores_unknown(stage: Stage) -> None:
    answer = await stage.executor.generate(await stage.serving(), stage.request())
    await stage.executor.discard(["nobody"])
    await stage.executor.discard([answer.handle])
    await stage.executor.discard([answer.handle])


@DISCARD.promise("frees the payloads that are named, and keeps the others")
async def _frees(stage: Stage) -> None:
    replica = await stage.serving()
    answers = [await stage.executor.generate(replica, stage.request(n)) for n in range(2)]
    await stage.executor.discard([answers[0].handle])
    held = [await stage.see.payload_tokens(answer.handle) for answer in answers]
    expect(
        held[0] is None and held[1] is not None,
        f"of two payloads the first was discarded; of the two there are {held} tokens",
    )
