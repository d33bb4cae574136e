"""Models: from a directory or new, the same in every process, or a word on what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.executors.local_training import CPU, SMALL_MODEL, VOCABULARY, build_small

from swingshift.executors.local.models import build_model, expect_context
from swingshift.executors.rl.options import ModelOptions
from swingshift.sdk.errors import ConfigError

GPT2 = ModelOptions(
    type="gpt2",
    config={"hidden_size": 16, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.5, "embd_pdrop": 0.5},
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the small model."""
    path = tmp_path_factory.mktemp("model")
    build_small().save_pretrained(path)
    return path


def refusal(options: ModelOptions, *, vocab_size: int = VOCABULARY) -> str:
    """Return what the user is told."""
    with pytest.raises(ConfigError) as caught:
        build_model(options, vocab_size=vocab_size, seed=0, device=CPU)
    return str(caught.value)


def test_one_seed_gives_one_model_and_no_other_draw_notices() -> None:
    """Another seed gives another; random numbers elsewhere come as if nothing had been built."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second, other = build_small(), build_small(), build_small(seed=6)

    assert torch.equal(torch.rand(3), expected)
    for name, weight in first.state_dict().items():
        assert torch.equal(weight, second.state_dict()[name]), name
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_a_new_model_knows_the_tokens_of_the_tokenizer() -> None:
    """Unless its configuration asks for more, as whoever pads the vocabulary does."""
    padded = ModelOptions(config={**SMALL_MODEL.config, "vocab_size": 16})

    assert build_small().config.vocab_size == VOCABULARY
    assert build_small(padded).config.vocab_size == 16


def test_a_model_computes_without_dropout() -> None:
    """What a trainer scores has to be what a replica drew from."""
    model = build_small(GPT2)
    ids = torch.tensor([[1, 2, 3]])

    assert not model.training
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


def test_keys_may_be_written_as_the_architecture_or_as_the_library_calls_them() -> None:
    """GPT-2 says ``n_embd`` where others say ``hidden_size``; some read keys they do not name."""
    options = ModelOptions(config={**SMALL_MODEL.config, "head_dim": 4, "rope_theta": 1e4})

    assert build_small(GPT2).config.n_embd == 16
    assert build_small(options).config.head_dim == 4


def test_a_model_comes_back_from_its_directory(directory: Path) -> None:
    """Bit for bit, whatever the seed."""
    loaded = build_small(ModelOptions(path=str(directory)), seed=99)

    assert not loaded.training
    expected = build_small().state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    for name, weight in loaded.state_dict().items():
        assert torch.equal(weight, expected[name]), name


@pytest.mark.parametrize("is_loaded", [False, True])
def test_each_weight_has_memory_that_can_be_given_back(directory: Path, is_loaded: bool) -> None:
    """Its own alone: taking that of all other weights leaves it as it was."""
    model = build_small(ModelOptions(path=str(directory)) if is_loaded else SMALL_MODEL)
    kept, *others = model.parameters()
    before = kept.clone()

    for parameter in others:
        assert parameter.untyped_storage().nbytes() == parameter.nbytes
        parameter.untyped_storage().resize_(0)

    assert torch.equal(kept, before)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    """Also when they were loaded: what is learned of the one is learned of the other."""
    tied = ModelOptions(config={**SMALL_MODEL.config, "tie_word_embeddings": True})
    build_small(tied).save_pretrained(tmp_path)

    loaded = cast("Any", build_small(ModelOptions(path=str(tmp_path))))

    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight


def test_weights_have_the_precision_asked_for(directory: Path) -> None:
    """New ones and loaded ones."""
    for options in (SMALL_MODEL, ModelOptions(path=str(directory))):
        model = build_model(
            options, vocab_size=VOCABULARY, seed=0, device=CPU, dtype=torch.bfloat16
        )
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (ModelOptions(type="qwen3x"), "executor.model.type: 'qwen3x' is not known; did you mean"),
        (ModelOptions(type="vit"), "executor.model.type: 'vit' is not known"),
        (
            ModelOptions(config={"hidden_sise": 8}),
            "executor.model.config.hidden_sise: unknown key; did you mean 'hidden_size'?",
        ),
        (
            ModelOptions(config={"hidden_size": "wide"}),
            "executor.model.config: no qwen2 can be made of {'hidden_size': 'wide'}: Strict",
        ),
        (
            ModelOptions(config={"num_attention_heads": 0}),
            "executor.model.config: no qwen2 can be made of {'num_attention_heads': 0}: ",
        ),
    ],
)
def test_a_model_that_cannot_be_made_is_told_with_its_key(options: ModelOptions, told: str) -> None:
    """And with what would do."""
    assert refusal(options).startswith(told)


def test_a_missing_directory_is_told_and_nothing_is_downloaded(tmp_path: Path) -> None:
    """It is not taken for the name of a model on a server."""
    told = refusal(ModelOptions(path="Qwen/Qwen2-0.5B"))

    assert told.startswith("executor.model.path: there is no directory 'Qwen/Qwen2-0.5B'")
    assert refusal(ModelOptions(path=str(tmp_path))).startswith(
        f"executor.model.path: no causal language model can be loaded from {str(tmp_path)!r}: "
    )


def test_what_a_library_says_is_quoted_in_one_short_line(tmp_path: Path) -> None:
    """It goes on with lists of all that it would take."""
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')

    told = refusal(ModelOptions(path=str(tmp_path)))

    assert "\n" not in told
    assert told.endswith("...")


def test_weights_in_a_pickle_are_not_read(directory: Path, tmp_path: Path) -> None:
    """Reading one could run anything."""
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    torch.save(build_small().state_dict(), tmp_path / "pytorch_model.bin")

    assert "no causal language model can be loaded" in refusal(ModelOptions(path=str(tmp_path)))


def test_a_model_that_knows_too_few_tokens_is_refused(directory: Path) -> None:
    """A token beyond its embeddings would end the run in its middle."""
    told = refusal(ModelOptions(path=str(directory)), vocab_size=VOCABULARY + 1)

    assert told.startswith("executor.model: it knows 11 tokens, the tokenizer has 12")


def test_a_context_that_the_model_does_not_know_is_refused() -> None:
    """Before anything is generated, with both keys and the way out."""
    options = ModelOptions(config={**SMALL_MODEL.config, "max_position_embeddings": 32})
    model = build_model(options, vocab_size=VOCABULARY, seed=0, device=CPU)
    expect_context(model, 32)
    with pytest.raises(ConfigError, match=r"allow 33 tokens together.*knows 32 positions"):
        expect_context(model, 33)
