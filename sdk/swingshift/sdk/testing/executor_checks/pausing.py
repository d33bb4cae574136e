"""Promises about pausing an engine and letting it go on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from swingshift.sdk.executor import FinishReason, PauseMode
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise, Group, NotOffered, expect
from swingshift.sdk.testing.executor_checks.sets import expect_spared
from swingshift.sdk.testing.executor_checks.stage import Flight, Stage

PAUSE = Group("pause")
RESUME = Group("resume")

_LONGER_THAN_AN_ANSWER = 1.5


@PAUSE.promise("ABORT returns every request with what it has")
async def _abort_returns_all(stage: Stage) -> None:
    replica = await stage.serving()
    flights = await stage.under_way(replica, 2)
    await stage.executor.pause([replica], PauseMode.ABORT)
    for flight in flights:
        await _expect_aborted(flight)


@PAUSE.promise("KEEP holds requests for as long as it lasts, and then they end as they would have")
async def _keep_holds(stage: Stage) -> None:
    need_keep(stage)
    replica = await stage.serving()
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    await stage.executor.generate(replica, stage.request())
    whole_answer_s = loop.time() - started_s
    (flight,) = await stage.under_way(replica)
    await stage.executor.pause([replica], PauseMode.KEEP)
    await asyncio.sleep(_LONGER_THAN_AN_ANSWER * whole_answer_s)
    if flight.answer.done():
        raise BrokenPromise(f"under KEEP a request ended: {await flight.answer}")
    await stage.executor.resume([replica])
    answer = await flight.answer
    expect(
        answer.finish_reason is not FinishReason.ABORT,
        f"a request that was kept came to {answer}",
    )


@PAUSE.promise("DRAIN lets running requests come to their end")
async def _drain_completes(stage: Stage) -> None:
    replica = await stage.serving()
    flights = await stage.under_way(replica, 2)
    await stage.executor.pause([replica], PauseMode.DRAIN)
    for flight in flights:
        answer = await flight.answer
        expect(
            answer.finish_reason is not FinishReason.ABORT,
            f"{flight.request.request_id} was running when the drain began, and came to {answer}",
        )


@PAUSE.promise("ABORT after KEEP returns the requests that were held")
async def _abort_after_keep(stage: Stage) -> None:
    need_keep(stage)
    replica = await stage.serving()
    (flight,) = await stage.under_way(replica)
    await stage.executor.pause([replica], PauseMode.KEEP)
    await stage.executor.pause([replica], PauseMode.ABORT)
    await _expect_aborted(flight)


@PAUSE.promise("ABORT and DRAIN return when the engine itself holds no request")
async def _empties_engine(stage: Stage) -> None:
    replica = await stage.serving()
    for mode in (PauseMode.ABORT, PauseMode.DRAIN):
        await stage.under_way(replica, 2)
        await stage.executor.pause([replica], mode)
        held = await stage.see.in_flight(replica)
        expect(held == 0, f"pause({mode.name}) returned while the engine held {held} requests")
        await stage.executor.resume([replica])


@PAUSE.promise("KEEP returns when the engine itself generates no more")
async def _stops_engine(stage: Stage) -> None:
    need_keep(stage)
    replica = await stage.serving()
    await stage.under_way(replica)
    await stage.executor.pause([replica], PauseMode.KEEP)
    before = await stage.see.token_count(replica)
    await stage.moment()
    after = await stage.see.token_count(replica)
    expect(
        before == after,
        f"pause(KEEP) returned at {before} tokens, and a moment later there were {after}",
    )


@PAUSE.promise("requests that arrive later wait until it is over")
async def _holds_new_requests(stage: Stage) -> None:
    replica = await stage.serving()
    for mode in _modes(stage):
        await stage.executor.pause([replica], mode)
        flight = stage.send(replica, stage.request(max_new_tokens=1))
        await stage.moment()
        if flight.answer.done():
            raise BrokenPromise(
                f"sent after pause({mode.name}), a request came to {await flight.answer}"
            )
        await stage.executor.resume([replica])
        answer = await flight.answer
        expect(
            answer.finish_reason is not FinishReason.ABORT,
            f"sent after pause({mode.name}), a request came to {answer} once it was over",
        )


@PAUSE.promise("a replica that was paused twice goes on after one resume")
async def _idempotent(stage: Stage) -> None:
    replica = await stage.serving()
    for mode in _modes(stage):
        await stage.executor.pause([replica], mode)
        await stage.executor.pause([replica], mode)
        await stage.executor.resume([replica])
        await stage.answers(replica, version=0)


@PAUSE.promise("stops every replica that is named", "reaches_all")
async def _pause_reaches_all(stage: Stage) -> None:
    replicas = await stage.several_serving(2)
    for mode in _modes(stage):
        for replica in replicas:
            await stage.under_way(replica)
        await stage.executor.pause(replicas, mode)
        await _expect_all_wait(stage, replicas, f"pause({mode.name}) of {', '.join(replicas)}")
        for replica in replicas:
            await stage.executor.resume([replica])


@PAUSE.promise("spares replicas that are not named", "spares_others")
async def _pause_spares_others(stage: Stage) -> None:
    named, other = await stage.several_serving(2)

    async def pause() -> None:
        for mode in _modes(stage):
            await stage.executor.pause([named], mode)

    await expect_spared(stage, other, pause)


@RESUME.promise("has no effect on a replica that is not paused")
async def _without_pause(stage: Stage) -> None:
    replica = await stage.serving()
    (flight,) = await stage.under_way(replica)
    await stage.executor.resume([replica])
    await stage.executor.resume([replica])
    answer = await flight.answer
    expect(
        answer.finish_reason is not FinishReason.ABORT,
        f"a request was under way at the resume, and came to {answer}",
    )


@RESUME.promise("lets every replica that is named go on", "reaches_all")
async def _resume_reaches_all(stage: Stage) -> None:
    replicas = await _two_paused(stage)
    await stage.executor.resume(replicas)
    for replica in replicas:
        await stage.answers(replica, version=0)


@RESUME.promise("leaves replicas that are not named paused", "spares_others")
async def _resume_spares_others(stage: Stage) -> None:
    named, other = await _two_paused(stage)
    await stage.executor.resume([named])
    await _expect_all_wait(stage, [other], f"pause(ABORT), and resume of {named} alone,")


def need_keep(stage: Stage) -> None:
    """Do nothing if the executor can hold requests in its engine.

    Raises:
        NotOffered: It cannot.
    """
    if not stage.executor.capabilities.pause_keep:
        raise NotOffered("not offered: the capability 'pause_keep' is not declared")


def _modes(stage: Stage) -> list[PauseMode]:
    keeps = stage.executor.capabilities.pause_keep
    return [mode for mode in PauseMode if keeps or mode is not PauseMode.KEEP]


async def _two_paused(stage: Stage) -> tuple[str, ...]:
    replicas = await stage.several_serving(2)
    for replica in replicas:
        await stage.executor.pause([replica], PauseMode.ABORT)
    return replicas


async def _expect_all_wait(stage: Stage, replicas: Sequence[str], after: str) -> None:
    late = [stage.send(replica, stage.request(max_new_tokens=1)) for replica in replicas]
    await stage.moment()
    for flight in late:
        if flight.answer.done():
            raise BrokenPromise(
                f"sent to {flight.replica} after {after} a request came to {await flight.answer}"
            )


async def _expect_aborted(flight: Flight) -> None:
    answer = await flight.answer
    expect(
        answer.finish_reason is FinishReason.ABORT and answer.new_tokens > 0,
        f"{flight.request.request_id} was under way at pause(ABORT), and came to {answer}",
    )
