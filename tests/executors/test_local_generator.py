"""The generator of a replica, against the model itself run over each whole sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from swingshift.executors.local import generator as generator_module
from swingshift.executors.local.generator import Answer, Ask, Generator
from swingshift.executors.local.models import build_model
from swingshift.executors.local.store import PayloadStore, generated
from swingshift.executors.rl.options import ModelOptions
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import FinishReason, Progress, VersionSpan

VOCABULARY = 13
NEVER = VOCABULARY
"""An end-of-sequence token that is never drawn."""
LOG_PROB_ERROR = 1e-5


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Compute as a worker on one core does; threads only get in each other's way here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def model(**changes: object) -> PreTrainedModel:
    """Return a model whose next token depends on all tokens before it."""
    config = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        **changes,
    }
    built = build_model(
        ModelOptions(config=config), vocab_size=VOCABULARY, seed=3, device=torch.device("cpu")
    )
    built.train(False)
    return built


def make(
    *, temperature: float = 0.0, running: int = 8, eos: int = NEVER, seed: int = 0
) -> Generator:
    return Generator(
        model(), eos_token_id=eos, temperature=temperature, max_running=running, seed=seed
    )


def ask(key: int, context: Sequence[int], budget: int) -> Ask:
    return Ask(key=key, context=context, max_new_tokens=budget)


def prompt(length: int, start: int = 1) -> tuple[int, ...]:
    return tuple((start + 5 * i * i) % VOCABULARY for i in range(length))


def finish(generator: Generator) -> dict[int, Answer]:
    """Step until nothing is left."""
    answers: dict[int, Answer] = {}
    while generator.has_work:
        answers.update({answer.key: answer for answer in generator.step()})
    return answers


@torch.no_grad()
@torch.no_grad()
def plain_log_probs(context: Sequence[int], tokens: Sequence[int], temperature: float) -> Tensor:
    """Return, for each token, the log-probs of all that could stand there, without any cache."""
    logits: Tensor = model()(input_ids=torch.tensor([[*context, *tokens]])).logits[0]
    return (logits[len(context) - 1 : -1] / temperature).log_softmax(dim=-1)


def expect_greedy(context: Sequence[int], answer: Answer) -> None:
    """Expect what a plain forward finds likeliest, with its log-probs."""
    if not answer.tokens:
        return
    plain = plain_log_probs(context, answer.tokens, 1.0)
    drawn = plain.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert torch.all(drawn >= plain.max(-1).values - LOG_PROB_ERROR)
    assert drawn.numpy() == pytest.approx(np.array(answer.log_probs), abs=LOG_PROB_ERROR)


def test_one_request_is_what_the_model_says() -> None:
    """Alone, greedy decoding is the likeliest token after each prefix, up to the budget."""
    generator = make()
    generator.add(ask(0, prompt(6), 20))
    answer = finish(generator)[0]
    assert (len(answer.tokens), answer.finish_reason) == (20, FinishReason.LENGTH)
    expect_greedy(prompt(6), answer)
    assert len(set(answer.tokens)) > 1


def test_requests_of_different_ages_do_not_see_one_another() -> None:
    """Requests that join, leave and differ in length come to what they come to alone."""
    generator = make(running=3)
    answers: dict[int, Answer] = {}
    for key, (length, budget) in enumerate([(9, 4), (1, 12), (5, 7), (14, 3), (2, 9), (7, 1)]):
        generator.add(ask(key, prompt(length, key), budget))
        for _ in range(2):
            answers.update({answer.key: answer for answer in generator.step()})
    answers.update(finish(generator))
    assert sorted(answers) == list(range(6))
    for key, length in enumerate([9, 1, 5, 14, 2, 7]):
        expect_greedy(prompt(length, key), answers[key])


class Arrival(NamedTuple):
    """A request comes."""

    length: int
    start: int
    budget: int


class Abort(NamedTuple):
    """A request is aborted, if it is there."""

    key: int


ARRIVALS = st.builds(
    Arrival, st.integers(1, 12), st.integers(0, VOCABULARY - 1), st.integers(1, 10)
)
MOVES = st.lists(
    st.one_of(
        ARRIVALS, st.just("step"), st.just("drop_cache"), st.builds(Abort, st.integers(0, 5))
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(moves=MOVES, running=st.integers(1, 4))
def test_whatever_happens_each_request_is_answered_once_and_right(
    moves: list[Arrival | Abort | str], running: int
) -> None:
    """Arrivals, aborts and dropped caches in any order change no token and lose no request."""
    generator = make(running=running)
    asks: list[Ask] = []
    answers: list[Answer] = []
    for move in moves:
        match move:
            case Arrival(length, start, budget):
                asks.append(ask(len(asks), prompt(length, start), budget))
                generator.add(asks[-1])
            case Abort(key):
                answers += generator.abort([key])
            case "drop_cache":
                generator.drop_cache()
            case _:
                answers += generator.step()
        assert generator.progress.running <= running
    answers += finish(generator).values()
    assert sorted(answer.key for answer in answers) == list(range(len(asks)))
    assert generator.generated_tokens == sum(len(answer.tokens) for answer in answers)
    for answer in answers:
        is_whole = answer.finish_reason is FinishReason.LENGTH
        assert (len(answer.tokens) == asks[answer.key].max_new_tokens) is is_whole
        expect_greedy(asks[answer.key].context, answer)


def test_a_resumed_request_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    """Aborted, stored, and gone on with by another generator, it has the same log-probs."""
    whole = make()
    whole.add(ask(0, prompt(8), 30))
    expected = finish(whole)[0]
    first, store = make(), PayloadStore(tmp_path)
    first.add(ask(0, prompt(8), 30))
    for _ in range(11):
        first.step()
    (part,) = first.abort()
    store.write("part", generated(part.tokens, part.log_probs))
    before = store.read("part")
    second = make()
    second.add(ask(0, (*prompt(3, 7),), 5))
    second.step()
    second.add(ask(1, (*prompt(8), *store.response_tokens("part")), 30 - len(before)))
    rest = finish(second)[1]
    assert (*before["token"].tolist(), *rest.tokens) == expected.tokens
    resumed = [*before["log_prob"].tolist(), *rest.log_probs]
    assert resumed == pytest.approx(expected.log_probs, abs=LOG_PROB_ERROR)


def test_abort_returns_what_there_is_and_spares_the_others() -> None:
    """A running request returns its tokens, a waiting one none; an unknown one is no matter."""
    generator = make(running=2)
    for key in range(4):
        generator.add(ask(key, prompt(4, key), 6))
    for _ in range(3):
        generator.step()
    aborted = {answer.key: answer for answer in generator.abort([0, 3, 17])}
    assert {key: len(answer.tokens) for key, answer in aborted.items()} == {0: 3, 3: 0}
    assert {answer.finish_reason for answer in aborted.values()} == {FinishReason.ABORT}
    assert aborted[3].spans == ()
    rest = finish(generator)
    assert {key: len(answer.tokens) for key, answer in rest.items()} == {1: 6, 2: 6}
    assert generator.abort() == []
    for key, answer in {**aborted, **rest}.items():
        expect_greedy(prompt(4, key), answer)


def test_a_dropped_cache_is_computed_anew() -> None:
    """Without its cache a request waits, goes on before later ones, and comes to the same."""
    generator = make(running=1)
    generator.add(ask(0, prompt(5), 9))
    generator.add(ask(1, prompt(2), 2))
    for _ in range(4):
        generator.step()
    generator.drop_cache()
    assert generator.progress == Progress(0, 2, 0)
    generator.step()
    assert generator.progress == Progress(1, 1, 5 + 5)
    answers = finish(generator)
    assert list(answers) == [0, 1]
    expect_greedy(prompt(5), answers[0])


def test_tokens_are_booked_under_the_version_that_drew_them() -> None:
    """Spans split where the version changed, and nowhere else."""
    generator = make()
    generator.version = 3
    generator.add(ask(0, prompt(4), 7))
    generator.step()
    generator.step()
    generator.drop_cache()
    generator.step()
    generator.version = 4
    answer = finish(generator)[0]
    assert answer.spans == (VersionSpan(3, 3), VersionSpan(4, 4))


def test_no_more_requests_run_than_may() -> None:
    """Those beyond the limit wait in the order they came, and none begins while it must not."""
    generator = make(running=2)
    for key in range(4):
        generator.add(ask(key, prompt(3), 2 + key))
    generator.step(admits=False)
    assert generator.progress == Progress(0, 4, 0)
    generator.step()
    assert generator.progress == Progress(2, 2, 2 * (3 + 1))
    (first,) = generator.step(admits=False)
    assert first.key == 0
    assert generator.progress[:2] == (1, 2)
    assert list(finish(generator)) == [1, 2, 3]


def test_a_prefill_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts that are too many for one prefill make several, a too long one its own."""
    monkeypatch.setattr(generator_module, "_PREFILL_TOKENS", 10)
    generator = make()
    for key, length in enumerate([5, 5, 5, 14, 2]):
        generator.add(ask(key, prompt(length, key), 4))
    generator.step()
    assert generator.progress == Progress(5, 0, 5 + 5 + 5 + 14 + 2 + 5)
    for key, answer in finish(generator).items():
        expect_greedy(prompt([5, 5, 5, 14, 2][key], key), answer)


def test_the_cache_is_as_wide_as_its_longest_request() -> None:
    """When the longest request leaves, the columns that only it had go with it."""
    generator = make()
    generator.add(ask(0, prompt(40), 3))
    generator.add(ask(1, prompt(4), 9))
    generator.step()
    assert _columns(generator) == 40
    generator.step()
    generator.step()
    # its prompt, and all that it drew but the newest
    assert _columns(generator) == 4 + 2
    finish(generator)
    assert generator._cache is None


def _columns(generator: Generator) -> int:
    assert generator._cache is not None
    layer = generator._cache.layers[0]
    assert isinstance(layer, DynamicLayer)
    keys = layer.keys
    assert keys is not None
    assert keys.shape[2] == generator._mask.shape[1]
    return keys.shape[2]


def test_the_end_token_ends_a_response() -> None:
    """It is the last token; whoever ignores it gets the whole budget; at the budget it is STOP."""
    plain = make()
    plain.add(ask(0, prompt(6), 12))
    tokens = finish(plain)[0].tokens
    eos = tokens[4]
    length = tokens.index(eos) + 1
    for budget, ignores in ((12, False), (length, False), (12, True)):
        generator = Generator(
            model(), eos_token_id=eos, temperature=0.0, max_running=1, seed=0, ignore_eos=ignores
        )
        generator.add(ask(0, prompt(6), budget))
        answer = finish(generator)[0]
        assert answer.tokens == (tokens if ignores else tokens[:length])
        expected = FinishReason.LENGTH if ignores else FinishReason.STOP
        assert answer.finish_reason is expected


def test_a_budget_of_one_token_ends_with_the_prefill() -> None:
    """It never joins the batch."""
    generator = make()
    generator.add(ask(0, prompt(6), 1))
    (answer,) = generator.step()
    assert len(answer.tokens) == 1
    assert not generator.has_work


def test_log_probs_are_of_the_distribution_that_was_drawn_from() -> None:
    """At a temperature they are those of the logits divided by it."""
    generator = make(temperature=0.7)
    generator.add(ask(0, prompt(6), 25))
    answer = finish(generator)[0]
    plain = plain_log_probs(prompt(6), answer.tokens, 0.7)
    drawn = plain.gather(-1, torch.tensor(answer.tokens)[:, None])[:, 0]
    assert list(answer.log_probs) == pytest.approx(drawn.tolist(), abs=LOG_PROB_ERROR)


def test_draws_follow_the_distribution() -> None:
    """Over many draws each first token comes as often as its probability says."""
    generator = make(temperature=1.0, running=2000)
    for key in range(2000):
        generator.add(ask(key, prompt(4), 1))
    drawn = [answer.tokens[0] for answer in generator.step()]
    expected = plain_log_probs(prompt(4), [0], 1.0)[0].exp().numpy()
    found = np.bincount(drawn, minlength=VOCABULARY) / len(drawn)
    # four standard deviations of a share of 2,000 draws
    assert np.all(np.abs(found - expected) < 4 * np.sqrt(expected / 2000) + 1e-3)


def test_the_seed_decides_the_draws() -> None:
    """One seed gives the same responses again, another one others."""

    def draw(seed: int) -> tuple[int, ...]:
        generator = make(temperature=1.0, seed=seed)
        generator.add(ask(0, prompt(6), 30))
        return finish(generator)[0].tokens

    assert draw(1) == draw(1) != draw(2)


def test_a_model_without_full_attention_is_refused() -> None:
    """Rows of different age cannot share a layer that forgets; the error names the model."""
    sliding = model(use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(ConfigError, match=r"executor\.model: qwen2 is not supported"):
        Generator(sliding, eos_token_id=0, temperature=1.0, max_running=1, seed=0)
