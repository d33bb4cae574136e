"""The values an executor exchanges with the control plane."""

from __future__ import annotations

import attrs
import pytest

from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.executor import (
    Episode,
    ExecutorError,
    FitResult,
    GenerationRequest,
    Insertion,
    Inventory,
    Observation,
    Prompt,
    Replica,
    ReplicaKind,
    ReplicaLostError,
    Sample,
    Segment,
    TrainerGpu,
    VersionSpan,
)
from swingshift.sdk.validators import InvalidValueError

PROMPT = Prompt(position=7, tokens=100, handle="7")


def episode(*spans: tuple[int, int], attempts: int = 1) -> Episode:
    """Return an episode whose spans are given as version and tokens."""
    return Episode(
        handle="h",
        tokens=sum(tokens for _, tokens in spans),
        spans=tuple(VersionSpan(*span) for span in spans),
        attempts=attempts,
    )


SAMPLE = Sample(
    sample_id=3,
    prompt=PROMPT,
    episodes=(episode((2, 10), (3, 5)), episode((1, 4))),
    rewards=(1.0, 0.0),
)


def test_a_sample_sums_up_its_episodes() -> None:
    """Tokens add up over responses; versions are the extremes over all spans."""
    assert SAMPLE.generated_tokens == 19
    assert SAMPLE.first_version == 1
    assert SAMPLE.last_version == 3


def test_a_trainer_computes_on_prompts_and_observations_too() -> None:
    """Each response has the prompt before it; what tools returned is context, and not generated."""
    observed = attrs.evolve(SAMPLE.episodes[0], insertions=(Insertion(10, 6), Insertion(12, 2)))
    sample = attrs.evolve(SAMPLE, episodes=(observed, SAMPLE.episodes[1]))

    assert sample.generated_tokens == 19
    assert sample.total_tokens == 2 * 100 + 19 + 8
    assert (observed.observed_tokens, observed.response_tokens) == (8, 23)


@pytest.mark.parametrize(
    ("insertions", "segments"),
    [
        ((), [(15, True)]),
        ((Insertion(10, 6),), [(10, True), (6, False), (5, True)]),
        ((Insertion(10, 6), Insertion(15, 2)), [(10, True), (6, False), (5, True), (2, False)]),
        ((Insertion(10, 0), Insertion(12, 1)), [(10, True), (2, True), (1, False), (3, True)]),
    ],
)
def test_segments_mark_what_is_trained_on(
    insertions: tuple[Insertion, ...], segments: list[tuple[int, bool]]
) -> None:
    """In the order of the tokens; none is empty."""
    marked = attrs.evolve(episode((2, 10), (3, 5)), insertions=insertions)

    assert marked.segments == tuple(Segment(*segment) for segment in segments)


def test_an_episode_is_interrupted_where_it_took_more_attempts_than_turns() -> None:
    """Several turns alone are no interruption."""
    assert not attrs.evolve(episode((0, 1), attempts=3), turns=3).is_interrupted
    assert attrs.evolve(episode((0, 1), attempts=4), turns=3).is_interrupted


def test_an_observation_has_a_number_of_tokens() -> None:
    """It counts against the budget, so it has to be a real one."""
    with pytest.raises(InvalidValueError, match="tokens"):
        Observation(handle="tool", tokens=-1)


@pytest.mark.parametrize("episodes", [(), (episode((0, 3)), episode())])
def test_a_sample_needs_responses_with_tokens(episodes: tuple[Episode, ...]) -> None:
    """No response, or one without a token, cannot be trained on; the error names the sample."""
    with pytest.raises(InvalidValueError, match="sample 3"):
        attrs.evolve(SAMPLE, episodes=episodes, rewards=(0.0,) * len(episodes))


def test_a_sample_has_one_reward_for_each_response() -> None:
    """Fewer rewards would be paired with the wrong responses."""
    with pytest.raises(InvalidValueError, match="one for each of the 2 responses"):
        attrs.evolve(SAMPLE, rewards=(1.0,))


def test_an_inventory_counts_each_gpu_once() -> None:
    """Hybrid replicas share the trainer's GPUs, which come first and once."""
    inventory = Inventory(
        replicas=(
            Replica(id="s", kind=ReplicaKind.STANDALONE, gpus=("r0", "r1")),
            Replica(id="h", kind=ReplicaKind.HYBRID, gpus=("t0",)),
        ),
        trainer_gpus=(
            TrainerGpu(id="t0", train_required_bytes=10),
            TrainerGpu(id="t1", train_required_bytes=10),
        ),
    )
    assert inventory.gpus == ("t0", "t1", "r0", "r1")
    assert [replica.id for replica in inventory.of_kind(ReplicaKind.HYBRID)] == ["h"]
    assert [replica.id for replica in inventory.of_kind(ReplicaKind.STANDALONE)] == ["s"]


def test_a_request_starts_from_the_prompt_by_default() -> None:
    """Without earlier attempts there is nothing to resume."""
    request = GenerationRequest("7/0", PROMPT, 0, 64)
    assert (request.generated_tokens, request.resume_from) == (0, None)
    assert (request.turn, request.observed_tokens, request.observation) == (0, 0, None)


def test_a_fit_result_has_metrics_of_its_own() -> None:
    """Two results do not share the default mapping."""
    assert FitResult(timing_s={}).metrics == {}
    assert FitResult(timing_s={}).metrics is not FitResult(timing_s={}).metrics


def test_a_lost_replica_is_a_failed_verb() -> None:
    """Whoever recovers from a failed verb recovers from a loss too."""
    assert issubclass(ReplicaLostError, ExecutorError)
    assert issubclass(ExecutorError, SwingshiftError)
