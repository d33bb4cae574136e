"""The training engine: a GRPO step against one written by hand, and what may not matter."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from statistics import mean, stdev

import attrs
import numpy as np
import pytest
import torch
from tests.executors.local_training import (
    PAD,
    SMALL_MODEL,
    VOCABULARY,
    batch,
    build_engine,
    build_small,
    gradients_of,
    sequence,
    unpadded_log_probs,
    weights_of,
)
from torch import Tensor

from swingshift.executors.local.training import OffloadedError, TrainingEngine
from swingshift.executors.local.weights import digest
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.executor import TrainingPart

LEARNING = LearningOptions(learning_rate=1e-2, max_grad_norm=1e6, temperature=0.8)
WITH_EVERYTHING = attrs.evolve(
    LEARNING, old_log_prob=True, kl_coefficient=0.1, critic=True, critic_learning_rate=1e-2
)
CLOSE = 1e-4
"""Of weights that step by 1e-2."""

ALWAYS = {
    "reward/mean",
    "reward/max",
    "response_length/mean",
    "actor/loss",
    "actor/entropy",
    "actor/clip_fraction",
    "actor/rollout_divergence",
    "actor/grad_norm",
    "actor/skipped_steps",
}


def drawn_batch(temperature: float = LEARNING.temperature) -> list[TrainingSequence]:
    """Return the batch with log-probabilities near those of the model, some beyond the clip."""
    model, offsets = build_small(), np.random.default_rng(2)
    return [
        item._replace(
            log_probs=(
                unpadded_log_probs(model, item, temperature=temperature).detach().double().numpy()
                + offsets.normal(0.0, 0.3, len(item.response))
            ).tolist()
        )
        for item in batch()
    ]


def reference_gradients(sequences: list[TrainingSequence]) -> tuple[list[Tensor], float]:
    """Return gradients and loss of a GRPO step, written token by token over single sequences."""
    model = build_small()
    loss, tokens = torch.zeros(()), 0
    for item in sequences:
        rewards = [other.reward for other in sequences if other.group == item.group]
        advantage = (item.reward - mean(rewards)) / (stdev(rewards) + 1e-6)
        log_probs = unpadded_log_probs(model, item, temperature=LEARNING.temperature)
        for position, is_drawn in enumerate(item.trainable):
            if is_drawn:
                ratio = (log_probs[position] - item.log_probs[position]).exp()
                limited = ratio.clamp(0.8, 1.2)
                loss = loss - torch.minimum(ratio * advantage, limited * advantage)
                tokens += 1
    parameters = list(model.parameters())
    return list(torch.autograd.grad(loss / tokens, parameters)), loss.item() / tokens


def assert_close(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that weights are equal but for the order in which numbers were added."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, atol=CLOSE), name


def close(metrics: Mapping[str, float]) -> object:
    """Return what metrics have to be equal to, but for rounding."""
    return pytest.approx(dict(metrics), rel=1e-3, abs=CLOSE)


def test_the_gradient_of_a_step_is_that_of_the_formula(tmp_path: Path) -> None:
    """Over padded rows as over single sequences, with clipped, free and observed tokens."""
    sequences = drawn_batch()
    engine = build_engine(tmp_path, LEARNING)
    _, metrics = engine.fit(sequences)
    expected, loss = reference_gradients(sequences)

    found = gradients_of(engine, LEARNING)
    assert len(found) == len(expected)
    for mine, gradient in zip(found, expected, strict=True):
        assert torch.allclose(mine, gradient, atol=1e-5)
    assert metrics["actor/loss"] == pytest.approx(loss, abs=1e-5)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm().item()
    assert metrics["actor/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert 0.0 < metrics["actor/clip_fraction"] < 1.0


def test_metrics_of_the_batch_and_of_the_policy(tmp_path: Path) -> None:
    """By hand: rewards 1, 0, 0.25, 1, -1, 0.5; 15 of 17 tokens were drawn."""
    sequences = [item._replace(reward=0.0) for item in drawn_batch()]
    model = build_small()
    entropy = divergence = 0.0
    for item in sequences:
        ids = torch.tensor([[*item.prompt, *item.response]])
        rows = (model(input_ids=ids).logits[0] / LEARNING.temperature).log_softmax(-1).detach()
        for position, is_drawn in enumerate(item.trainable):
            if is_drawn:
                row = rows[len(item.prompt) + position - 1]
                entropy -= (row.exp() * row).sum().item()
                log_ratio = row[item.response[position]].item() - item.log_probs[position]
                divergence += np.exp(log_ratio) - log_ratio - 1.0

    _, metrics = build_engine(tmp_path, LEARNING).fit(sequences)
    _, rewarded = build_engine(tmp_path, LEARNING).fit(batch())

    assert metrics["actor/entropy"] == pytest.approx(entropy / 15, rel=1e-4)
    assert metrics["actor/rollout_divergence"] == pytest.approx(divergence / 15, rel=1e-3)
    assert metrics["actor/loss"] == metrics["actor/grad_norm"] == 0.0
    assert rewarded["reward/mean"] == pytest.approx(1.75 / 6)
    assert rewarded["reward/max"] == 1.0
    assert rewarded["response_length/mean"] == pytest.approx(15 / 6)


@pytest.mark.parametrize("learning", [LEARNING, WITH_EVERYTHING])
def test_how_a_batch_is_cut_into_passes_does_not_matter(
    tmp_path: Path, learning: LearningOptions
) -> None:
    """All sequences in one padded pass, or each alone: the same weights and the same metrics."""
    whole = build_engine(tmp_path, learning)
    single = build_engine(tmp_path, attrs.evolve(learning, micro_batch_tokens=1))
    for _ in range(2):
        _, metrics = whole.fit(drawn_batch())
        _, other_metrics = single.fit(drawn_batch())
        assert other_metrics == close(metrics)

    assert_close(single.weights(), whole.weights())


def test_the_order_of_sequences_does_not_matter(tmp_path: Path) -> None:
    """Groups are told by their number, not by their place."""
    first, second = build_engine(tmp_path, LEARNING), build_engine(tmp_path, LEARNING)
    _, metrics = first.fit(drawn_batch())
    _, other_metrics = second.fit(drawn_batch()[::-1])

    assert other_metrics == close(metrics)
    assert_close(second.weights(), first.weights())


def test_mini_batches_are_steps_one_after_the_other(tmp_path: Path) -> None:
    """Two of them do what two batches do, one of the groups 0 and 1, one of group 4."""
    whole = build_engine(tmp_path, LEARNING, optimizer_steps=2)
    parts = build_engine(tmp_path, LEARNING)
    sequences = drawn_batch()
    _, metrics = whole.fit(sequences)
    _, first = parts.fit(sequences[:4])
    _, second = parts.fit(sequences[4:])

    assert_close(whole.weights(), parts.weights())
    assert whole._optimizer.steps == 2
    # a mean over tokens: 9 in the first, 6 in the second
    loss = (9 * first["actor/loss"] + 6 * second["actor/loss"]) / 15
    assert metrics["actor/loss"] == pytest.approx(loss, abs=CLOSE)
    norms = (first["actor/grad_norm"] + second["actor/grad_norm"]) / 2
    assert metrics["actor/grad_norm"] == pytest.approx(norms, rel=1e-4)


def test_epochs_go_over_the_batch_again(tmp_path: Path) -> None:
    """Two of them do what the same batch given twice does."""
    twice = build_engine(tmp_path, attrs.evolve(LEARNING, epochs=2))
    again = build_engine(tmp_path, LEARNING)
    twice.fit(drawn_batch())
    again.fit(drawn_batch())
    again.fit(drawn_batch())

    assert_close(twice.weights(), again.weights())


def test_steps_make_good_responses_likelier(tmp_path: Path) -> None:
    """And bad ones less likely: the sign of it all."""
    good, bad = sequence([1, 2], [3, 4], reward=1.0), sequence([1, 2], [5, 6], reward=0.0)
    engine = build_engine(tmp_path, LearningOptions(learning_rate=1e-2))
    model = engine._model
    before = [unpadded_log_probs(model, item).sum().item() for item in (good, bad)]
    for _ in range(3):
        log_probs = [unpadded_log_probs(model, item).tolist() for item in (good, bad)]
        engine.fit(
            [item._replace(log_probs=its) for item, its in zip((good, bad), log_probs, strict=True)]
        )
    after = [unpadded_log_probs(model, item).sum().item() for item in (good, bad)]

    assert after[0] > before[0] + 0.1
    assert after[1] < before[1] - 0.1


@pytest.mark.parametrize(
    ("changes", "keys", "names"),
    [
        ({}, [], set()),
        ({"old_log_prob": True}, ["old_log_prob"], {"actor/rollout_log_prob_difference"}),
        ({"kl_coefficient": 0.1}, ["ref"], {"actor/reference_divergence"}),
        (
            {"critic": True},
            ["values", "update_critic"],
            {"critic/loss", "critic/grad_norm", "critic/skipped_steps"},
        ),
    ],
)
def test_what_is_timed_and_told(
    tmp_path: Path, changes: dict[str, bool], keys: list[str], names: set[str]
) -> None:
    """Each option brings its timing keys and its metrics, which its documentation names."""
    engine = build_engine(tmp_path, attrs.evolve(LEARNING, **changes))
    timing_s, metrics = engine.fit(drawn_batch())

    assert timing_s.keys() == {"adv", "update_actor", *keys}
    assert all(seconds > 0.0 for seconds in timing_s.values())
    assert metrics.keys() == ALWAYS | names
    assert all(isfinite(value) for value in metrics.values())
    for name in metrics:
        assert f"``{name}``" in str(TrainingEngine.fit.__doc__)


def test_every_documented_metric_is_told(tmp_path: Path) -> None:
    """With everything switched on, in the order in which it happens."""
    timing_s, metrics = build_engine(tmp_path, WITH_EVERYTHING).fit(drawn_batch())

    documented = str(TrainingEngine.fit.__doc__).split("``")[1::2]
    assert set(documented) == metrics.keys()
    assert list(timing_s) == [
        "old_log_prob",
        "ref",
        "values",
        "adv",
        "update_critic",
        "update_actor",
    ]


def test_log_probabilities_before_the_update_are_compared_with_the_rollout_engines(
    tmp_path: Path,
) -> None:
    """By hand: each drawn token differs by 0.25 to one side or the other.

    What is trained is as without the comparison: the ratio is to the rollout engine's.
    """
    signs = np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    sequences = [
        item._replace(
            log_probs=(
                unpadded_log_probs(build_small(), item, temperature=0.8).detach().numpy()
                + 0.25 * signs[: len(item.response)]
            ).tolist()
        )
        for item in batch()
    ]
    compared = build_engine(tmp_path, attrs.evolve(LEARNING, old_log_prob=True, epochs=2))
    plain = build_engine(tmp_path, attrs.evolve(LEARNING, epochs=2))
    _, metrics = compared.fit(sequences)
    plain.fit(sequences)

    assert metrics["actor/rollout_log_prob_difference"] == pytest.approx(0.25, abs=1e-5)
    assert digest(compared.weights()) == digest(plain.weights())


def test_a_reference_holds_the_policy_back(tmp_path: Path) -> None:
    """At first there is nothing between them; then the penalty is in loss and gradient."""
    free = build_engine(tmp_path, LEARNING)
    held = build_engine(tmp_path, attrs.evolve(LEARNING, kl_coefficient=10.0))
    sequences = drawn_batch()
    _, metrics = free.fit(sequences)
    _, first = held.fit(sequences)
    assert first["actor/reference_divergence"] == pytest.approx(0.0, abs=1e-6)
    assert first["actor/loss"] == pytest.approx(metrics["actor/loss"], abs=1e-4)
    for _ in range(8):
        free.fit(sequences)
        held.fit(sequences)
    _, last = held.fit(sequences)
    free.fit(sequences)

    begun = build_small().state_dict()
    drift = [
        sum((weight - begun[name]).norm().item() for name, weight in engine.weights().items())
        for engine in (free, held)
    ]
    assert last["actor/reference_divergence"] > 0.0
    assert drift[1] < drift[0]


def test_the_reference_divergence_is_that_of_the_formula(tmp_path: Path) -> None:
    """Estimator k3 between the weights after one step and those before any, and its gradient."""
    learning = attrs.evolve(LEARNING, kl_coefficient=0.5)
    engine = build_engine(tmp_path, learning)
    engine.fit(drawn_batch())
    trained, first = engine._model, build_small()
    expected = 0.0
    for item in batch():
        now = unpadded_log_probs(trained, item, temperature=0.8).detach()
        log_ratio = unpadded_log_probs(first, item, temperature=0.8).detach() - now
        k3 = log_ratio.exp() - log_ratio - 1.0
        expected += (k3 * torch.tensor(item.trainable)).sum().item()
    # with equal rewards nothing but the penalty is left
    _, metrics = engine.fit([item._replace(reward=0.0) for item in drawn_batch()])

    assert metrics["actor/reference_divergence"] == pytest.approx(expected / 15, rel=1e-3)
    assert metrics["actor/loss"] == pytest.approx(0.5 * expected / 15, rel=1e-3)
    assert metrics["actor/grad_norm"] > 0.0


def test_a_critic_takes_the_place_of_the_comparison(tmp_path: Path) -> None:
    """It begins by expecting nothing, so every drawn token is first worth the reward.

    Its first loss is half the squared reward; then it comes to expect what comes.
    """
    learning = attrs.evolve(LEARNING, critic=True, critic_learning_rate=1e-2)
    engine = build_engine(tmp_path, learning)
    sequences = drawn_batch()
    _, first = engine.fit(sequences)
    for _ in range(29):
        engine.fit(sequences)
    _, last = engine.fit(sequences)

    squares = sum(item.reward**2 * sum(item.trainable) for item in batch())
    assert first["critic/loss"] == pytest.approx(0.5 * squares / 15, rel=1e-5)
    assert last["critic/loss"] < 0.5 * first["critic/loss"]


def test_the_advantages_of_a_critic_skip_what_was_observed(tmp_path: Path) -> None:
    """By hand, with values 0.5 everywhere, gamma 0.5 and lambda 1: discounts count drawn tokens."""
    learning = attrs.evolve(LEARNING, critic=True, gamma=0.5)
    engine = build_engine(tmp_path, learning)
    item = sequence([7], [8, 9, 10], reward=1.0, observed=(1,))

    advantages, returns = engine._beyond_expected([item], {0: np.array([0.5, 0.5, 0.5])})

    assert returns[0].tolist() == [0.5, 0.0, 1.0]
    assert advantages[0].tolist() == [0.0, 0.0, 0.5]


def test_a_step_that_is_not_finite_is_skipped_and_told(tmp_path: Path) -> None:
    """Weights and optimizer stay as they were, to the bit, and metrics are finite."""
    engine = build_engine(tmp_path, LEARNING)
    engine.fit(drawn_batch())
    before = digest(engine.weights()), digest(engine._optimizer.state())
    broken = [item._replace(log_probs=[nan] * len(item.response)) for item in batch()]
    _, metrics = engine.fit(broken)

    assert (digest(engine.weights()), digest(engine._optimizer.state())) == before
    assert engine._optimizer.steps == 1
    assert metrics["actor/skipped_steps"] == 1.0
    assert metrics.keys() == ALWAYS
    assert all(isfinite(value) for value in metrics.values())


def test_one_bad_mini_batch_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    """The good one is trained on, and the metrics are its own."""
    engine = build_engine(tmp_path, LEARNING, optimizer_steps=2)
    alone = build_engine(tmp_path, LEARNING)
    sequences = drawn_batch()
    bad = sequences[-1]._replace(log_probs=[nan] * 4)
    _, metrics = engine.fit([*sequences[:-1], bad])
    _, expected = alone.fit(sequences[:4])

    assert_close(engine.weights(), alone.weights())
    assert metrics["actor/skipped_steps"] == 1.0
    assert metrics["actor/entropy"] == pytest.approx(expected["actor/entropy"], rel=1e-4)


def test_a_critic_can_skip_a_step_too(tmp_path: Path) -> None:
    """The actor goes on, and the critic is what it was."""
    engine = build_engine(tmp_path, attrs.evolve(LEARNING, critic=True))
    assert engine._critic is not None
    engine._critic._head.bias.register_hook(  # type: ignore[no-untyped-call]
        lambda gradient: gradient * nan
    )
    before = digest(engine._critic.weights())
    _, metrics = engine.fit(drawn_batch())

    assert digest(engine._critic.weights()) == before
    assert (metrics["critic/skipped_steps"], metrics["critic/loss"]) == (1.0, 0.0)
    assert metrics["actor/skipped_steps"] == 0.0
    assert metrics["actor/grad_norm"] > 0.0


def test_nothing_is_drawn_nothing_is_learned(tmp_path: Path) -> None:
    """A batch of observed tokens alone does not divide by zero."""
    engine = build_engine(tmp_path, attrs.evolve(WITH_EVERYTHING, weight_decay=0.0))
    before = digest(engine.weights())
    _, metrics = engine.fit([sequence([1], [2, 3], reward=1.0, observed=(0, 1))])

    assert digest(engine.weights()) == before
    assert metrics["reward/mean"] == 1.0
    assert {value for name, value in metrics.items() if not name.startswith("reward")} == {0.0}


@pytest.mark.parametrize("learning", [LEARNING, WITH_EVERYTHING])
def test_training_goes_on_after_offloading_as_if_it_had_not_been(
    tmp_path: Path, learning: LearningOptions
) -> None:
    """Both parts, between two steps, with whatever else the engine holds."""
    moved = build_engine(tmp_path / "moved", learning)
    stayed = build_engine(tmp_path / "stayed", learning)
    for engine in (moved, stayed):
        engine.fit(drawn_batch())
    for part in TrainingPart:
        moved.offload(part)
    for part in TrainingPart:
        moved.reload(part)
    for engine in (moved, stayed):
        engine.fit(drawn_batch())

    assert digest(moved.weights()) == digest(stayed.weights())
    for group, tensors in stayed._beside.items():
        assert digest(moved._beside[group]) == digest(tensors), group


def test_tied_weights_are_held_and_moved_once(tmp_path: Path) -> None:
    """Their memory is counted once, and they are still one after it was away."""
    tied = ModelOptions(config={**SMALL_MODEL.config, "tie_word_embeddings": True})
    engine, stayed = (build_engine(tmp_path, LEARNING, model=tied) for _ in range(2))
    embeddings = VOCABULARY * 16 * 4
    free = build_engine(tmp_path, LEARNING).state_bytes(TrainingPart.PARAMETERS)
    engine.offload(TrainingPart.PARAMETERS)
    engine.reload(TrainingPart.PARAMETERS)
    for each in (engine, stayed):
        each.fit(drawn_batch())

    assert engine.state_bytes(TrainingPart.PARAMETERS) == free - embeddings
    assert "lm_head.weight" not in engine.weights()
    assert digest(engine.weights()) == digest(stayed.weights())


@pytest.mark.parametrize("part", TrainingPart)
def test_what_is_away_cannot_be_used(tmp_path: Path, part: TrainingPart) -> None:
    """Each refusal names the part; weights can be had without the optimizer."""
    engine = build_engine(tmp_path, LEARNING)
    engine.offload(part)

    with pytest.raises(OffloadedError, match=f"no fit step while {part.value} are offloaded"):
        engine.fit(batch())
    with pytest.raises(OffloadedError, match=f"no checkpoint while {part.value}"):
        engine.save(tmp_path / "saved")
    with pytest.raises(OffloadedError, match=f"no checkpoint while {part.value}"):
        engine.load(tmp_path / "saved")
    if part is TrainingPart.PARAMETERS:
        with pytest.raises(OffloadedError, match="no weights while parameters are offloaded"):
            engine.weights()
    else:
        assert engine.weights().keys()


def test_the_memory_of_each_part_is_known(tmp_path: Path) -> None:
    """Weights; for what is trained two moments and a gradient; a reference has weights alone."""
    engine = build_engine(tmp_path, LEARNING)
    weights = sum(weight.nbytes for weight in engine.weights().values())
    full = build_engine(tmp_path, WITH_EVERYTHING)
    assert full._critic is not None
    critic = sum(weight.nbytes for weight in full._critic.weights().values())

    assert engine.state_bytes(TrainingPart.PARAMETERS) == weights
    assert engine.state_bytes(TrainingPart.OPTIMIZER_AND_GRADIENTS) == 3 * weights
    assert full.state_bytes(TrainingPart.PARAMETERS) == 2 * weights + critic
    assert full.state_bytes(TrainingPart.OPTIMIZER_AND_GRADIENTS) == 3 * (weights + critic)


def test_weights_are_those_of_a_replica(tmp_path: Path) -> None:
    """By the names that a model of the same options has, before and after training."""
    engine = build_engine(tmp_path, LEARNING)
    assert digest(engine.weights()) == digest(build_small().state_dict())
    before = weights_of(engine)
    engine.fit(drawn_batch())

    assert engine.weights().keys() == before.keys()
    assert not any(torch.equal(weight, before[name]) for name, weight in engine.weights().items())


def test_padding_is_told_apart_from_the_same_token(tmp_path: Path) -> None:
    """What fills up rows may be a token that is in use."""
    sequences = [item._replace(prompt=[PAD, *item.prompt]) for item in drawn_batch()]
    together = build_engine(tmp_path, LEARNING)
    single = build_engine(tmp_path, attrs.evolve(LEARNING, micro_batch_tokens=1))
    _, metrics = together.fit(sequences)
    _, other_metrics = single.fit(sequences)

    assert other_metrics == close(metrics)
    assert PAD < VOCABULARY


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_what_a_cpu_does(tmp_path: Path) -> None:
    """And its state moves away and back between two steps."""
    engines = [
        build_engine(tmp_path / name, WITH_EVERYTHING, device=torch.device(name))
        for name in ("cpu", "cuda")
    ]
    for engine in engines:
        engine.fit(drawn_batch())
        for part in TrainingPart:
            engine.offload(part)
            engine.reload(part)
    metrics = [engine.fit(drawn_batch())[1] for engine in engines]

    assert metrics[1] == pytest.approx(metrics[0], rel=1e-2, abs=1e-3)
