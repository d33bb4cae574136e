"""Whole runs of episodes with several turns: what single turns promise holds for them too."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pytest
from tests.executors.episodes import SEVERAL_TURNS, run_episodes, several_turns_options
from tests.executors.support import Ran, ScriptedPolicy, run_training, small_config, small_options

from swingshift.executors.runtime.run import RunOutcome
from swingshift.executors.simulated.costs.episodes import EpisodeModel, EpisodeSource, ToolPauses
from swingshift.sdk.config import RuntimeConfig
from swingshift.sdk.events import (
    Advisory,
    BatchTrained,
    RequestReturned,
    RequestRouted,
    SampleQueued,
    SampleSubmitted,
    WeightsSynced,
)
from swingshift.sdk.executor import FinishReason
from swingshift.sdk.registry import build_policy

SOURCE = EpisodeSource(SEVERAL_TURNS, seed=0)
ONE_VERSION = {"partial_rollout": False}


def attempts(ran: Ran) -> Iterator[tuple[float, RequestRouted, float, RequestReturned]]:
    """Return every attempt with the times of its beginning and its end, in the order of ends."""
    begun: dict[str, tuple[float, RequestRouted]] = {}
    for t_s, event in zip(ran.sink.times_s, ran.sink.events, strict=True):
        if isinstance(event, RequestRouted):
            begun[event.request] = (t_s, event)
        elif isinstance(event, RequestReturned):
            yield (*begun.pop(event.request), t_s, event)


def test_every_sample_is_trained_once_with_lending_and_rebalancing() -> None:
    """Each episode has the turns it should, unless its budget ended it before."""
    config = small_config(training={"dynamic_schedule_enable_rebalance": True})
    ran, episodes = run_episodes(config, build_policy("default", deactivate_ratio=0.6))

    assert ran.report.trained_samples == 48
    turns = [episode.turns for episode in episodes]
    assert (min(turns), max(turns)) == (2, 6)
    for episode in episodes:
        assert len(episode.insertions) == episode.turns - 1
        assert sum(tokens for tokens, trainable in episode.segments if trainable) == episode.tokens


def test_the_budget_holds_for_all_turns_together() -> None:
    """What tools return counts, and a response that is cut off says so."""
    ran, episodes = run_episodes(small_config(dynamic=False, max_response_tokens=2_000))

    assert max(episode.response_tokens for episode in episodes) <= 2_000
    cut = [episode for episode in episodes if episode.finish_reason is FinishReason.LENGTH]
    assert 0 < len(cut) < len(episodes)
    assert ran.report.trained_samples == 48


def test_pauses_are_those_of_the_model_and_hold_no_replica() -> None:
    """An episode is away from its replica for exactly as long as its tools take."""
    ran, _ = run_episodes(small_config(dynamic=False))
    ended: dict[str, tuple[float, int]] = {}
    pauses = 0
    for begun_s, routed, end_s, returned in attempts(ran):
        prompt, response = map(int, routed.request.split("/"))
        ended_s, turn = ended.get(routed.request, (None, 0))
        if ended_s is not None:
            pause_s = SOURCE.pause_s(prompt, response, turn)
            assert begun_s - ended_s == pytest.approx(pause_s)
            pauses += 1
        assert returned.reason in ("stop", "length")
        ended[routed.request] = (end_s, turn + 1)
    assert pauses > 100


def test_while_all_episodes_use_tools_no_replica_has_anything_to_do() -> None:
    """The count of leases over the log is zero at times in the middle of a sample."""
    config = small_config(dynamic=False, prompts=4, batch=4, steps=1, responses=1)
    ran, _ = run_episodes(config)
    load, is_free_within = 0, False
    for event in ran.sink.events:
        if isinstance(event, RequestRouted):
            load += 1
        elif isinstance(event, RequestReturned):
            load -= 1
            is_free_within |= load == 0
        elif isinstance(event, SampleQueued):
            break

    assert is_free_within


def test_a_turn_that_is_aborted_resumes_elsewhere() -> None:
    """Lent replicas leave in the middle of later turns; no token is lost by it."""
    ran, episodes = run_episodes(small_config(), ScriptedPolicy(wait=4))
    moved = 0
    left: dict[str, tuple[str, int, bool]] = {}
    for _, routed, _, returned in attempts(ran):
        if routed.request in left:
            replica, tokens, is_later = left.pop(routed.request)
            assert routed.resumed_tokens == tokens
            moved += is_later and routed.replica != replica
        if returned.reason == "abort":
            tokens = routed.resumed_tokens + returned.new_tokens
            left[routed.request] = (routed.replica, tokens, routed.attempt > 1)
    assert moved > 0
    assert any(episode.is_interrupted for episode in episodes)
    assert not all(episode.is_interrupted for episode in episodes)
    resumed = sum(event.resumed_responses for event in ran.sink.of(SampleQueued))
    assert resumed == sum(episode.is_interrupted for episode in episodes)


def active_at_syncs(ran: Ran) -> list[int]:
    """Return how many samples are active when the first sync of each version is done."""
    active: set[int] = set()
    counts: dict[int, int] = {}
    for event in ran.sink.events:
        if isinstance(event, SampleSubmitted):
            active.add(event.sample)
        elif isinstance(event, SampleQueued):
            active.discard(event.sample)
        elif isinstance(event, WeightsSynced):
            counts.setdefault(event.version, len(active))
    return [*counts.values()]


@pytest.mark.parametrize("rollout_nodes", [0, 1])
def test_without_partial_rollout_a_response_has_one_version(rollout_nodes: int) -> None:
    """All turns and pauses in flight run to their end before a sync, and nothing begins again."""
    config = small_config(rollout_nodes=rollout_nodes, training=ONE_VERSION)
    ran, episodes = run_episodes(config, ScriptedPolicy(wait=4))

    assert ran.report.trained_samples == 48
    assert set(active_at_syncs(ran)) == {0}
    assert {len(episode.spans) for episode in episodes} == {1}
    assert all(event.max_partial_span == 0 for event in ran.sink.of(BatchTrained))
    routed = ran.sink.of(RequestRouted)
    assert all(event.resumed_tokens for event in routed if event.attempt > 1)


@pytest.mark.parametrize("pause_keep", [True, False])
def test_with_partial_rollout_a_sync_waits_for_nobody(pause_keep: bool) -> None:
    """Turns go on under the new weights, and so do episodes that were with their tools."""
    config = small_config(dynamic=False, prompts=64, training={"partial_rollout": True})
    ran, episodes = run_episodes(config, pause_keep=pause_keep)

    assert min(active_at_syncs(ran)[1:-1]) > 0
    assert max(len(episode.spans) for episode in episodes) > 1
    assert any(event.reason == "abort" for event in ran.sink.of(RequestReturned)) != pause_keep


def test_tools_that_outlast_the_drain_make_their_episodes_begin_again() -> None:
    """The sync comes at the deadline, and no response mixes versions for it."""
    slow = attrs.evolve(SEVERAL_TURNS, pause=ToolPauses(mean_s=60.0))
    config = small_config(
        dynamic=False, training=ONE_VERSION, runtime=RuntimeConfig(drain_deadline_s=100.0)
    )
    ran, episodes = run_episodes(config, options=several_turns_options(slow), virtual_time=False)

    assert any("starts again" in event.text for event in ran.sink.of(Advisory))
    routed = ran.sink.of(RequestRouted)
    assert any(event.attempt > 1 and not event.resumed_tokens for event in routed)
    assert {len(episode.spans) for episode in episodes} == {1}
    assert ran.report.trained_samples == 48


def test_failures_cost_no_sample() -> None:
    """Each is tried again from its prompt."""
    ran, episodes = run_episodes(small_config(dynamic=False), faults=[("generate", "*", "fail", 3)])

    assert ran.report.trained_samples == 48
    assert sum(event.reason == "failed" for event in ran.sink.of(RequestReturned)) == 3
    assert all(episode.is_interrupted == (episode.attempts > episode.turns) for episode in episodes)


def test_a_run_that_fails_leaves_no_episode_behind() -> None:
    """Those that are with their tools end too; the log is sound, so every attempt returned."""
    ran, _ = run_episodes(
        small_config(dynamic=False), faults=[("fit_step", "*", "fail", 100)], virtual_time=False
    )

    assert ran.report.outcome is RunOutcome.FAILED


def test_one_seed_gives_one_log() -> None:
    """Turns, pauses and what tools return are drawn from it as all the rest."""

    def log(seed: int) -> tuple[list[float], list[object]]:
        sink = run_episodes(small_config(seed=seed), ScriptedPolicy(wait=4))[0].sink
        return sink.times_s, [*sink.events]

    assert log(3) == log(3)
    assert log(3) != log(4)


def test_a_single_turn_is_what_it_was() -> None:
    """Episodes of one turn make the very same log as a world that knows none."""
    one_turn = attrs.evolve(small_options(), episodes=EpisodeModel(pause=ToolPauses(mean_s=99.0)))
    with_model = run_episodes(small_config(), ScriptedPolicy(), options=one_turn)[0].sink
    without = run_training(small_config(), ScriptedPolicy()).sink

    assert with_model.events == without.events
    assert with_model.times_s == without.times_s
