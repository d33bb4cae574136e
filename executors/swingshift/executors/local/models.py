"""The language model: from a directory, or new with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from swingshift.executors.rl.options import ModelOptions
from swingshift.sdk.errors import ConfigError, did_you_mean

# Read by architectures that do not declare them.
_UNDECLARED_KEYS = frozenset({"head_dim", "rope_theta", "rope_scaling"})
_QUOTED_CHARACTERS = 200


def build_model(
    options: ModelOptions,
    *,
    vocab_size: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Return a causal language model on a device, each of its weights in memory of its own.

    It is in evaluation mode: with dropout, the probabilities that a trainer computes would be
    others than those a replica drew from.

    Args:
        options: Where from, or of which architecture.
        vocab_size: Tokens that it must know; a new model has just these unless its configuration
            says otherwise.
        seed: Of random weights: one seed gives the same in every process.
        device: Where to put it.
        dtype: Of its weights.

    Raises:
        ConfigError: It cannot be loaded or made, or knows too few tokens.
    """
    model = (
        _new(options.type, options.config, vocab_size, seed, dtype)
        if options.path is None
        else _loaded(Path(options.path), dtype)
    )
    known = model.config.get_text_config().vocab_size
    if known < vocab_size:
        raise ConfigError(
            f"executor.model: it knows {known} tokens, the tokenizer has {vocab_size}; take a "
            "model and a tokenizer that belong together"
        )
    return cast("PreTrainedModel", cast("Any", model).train(False).to(device))


def expect_context(model: PreTrainedModel, tokens: int) -> None:
    """Refuse a model that knows fewer positions than a prompt and its response may take.

    Raises:
        ConfigError: It does; the keys are named.
    """
    known = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if known is not None and known < tokens:
        raise ConfigError(
            f"data.max_prompt_length and data.max_response_length allow {tokens} tokens together, "
            f"and the model knows {known} positions; lower them, or raise "
            "executor.model.config.max_position_embeddings of a new model"
        )


def _new(
    type_: str, changes: Mapping[str, object], vocab_size: int, seed: int, dtype: torch.dtype
) -> PreTrainedModel:
    if type_ not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"executor.model.type: {type_!r} is not known"
            f"{did_you_mean(type_, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}; allowed: the causal "
            "language models of transformers, such as qwen2, llama or gpt2"
        )
    try:
        _expect_keys(type_, changes)
        config = AutoConfig.for_model(type_, **{"vocab_size": vocab_size, **changes})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = cast("Any", AutoModelForCausalLM).from_config(config, dtype=dtype)
    except ConfigError:
        raise
    except Exception as error:  # whatever a library raises on values that do not fit together
        raise ConfigError(
            f"executor.model.config: no {type_} can be made of {dict(changes)}: {_line(error)}"
        ) from error
    return cast("PreTrainedModel", model)


def _expect_keys(type_: str, changes: Mapping[str, object]) -> None:
    # the library takes any key, and a misspelt one would change nothing
    config = AutoConfig.for_model(type_)
    known = config.to_dict().keys() | config.attribute_map.keys() | _UNDECLARED_KEYS
    for key in changes:
        if key not in known:
            raise ConfigError(
                f"executor.model.config.{key}: unknown key{did_you_mean(str(key), known)}; "
                f"allowed: the keys of transformers' {type(config).__name__}"
            )


def _loaded(path: Path, dtype: torch.dtype) -> PreTrainedModel:
    if not path.is_dir():
        raise ConfigError(
            f"executor.model.path: there is no directory {str(path)!r}; write the path of a "
            "model in the Hugging Face format (nothing is downloaded)"
        )
    # it would be drawn into a log file
    disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = cast("Any", AutoModelForCausalLM).from_pretrained(
            path,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=dtype,
        )
    except Exception as error:  # whatever a library raises on files it cannot read
        raise ConfigError(
            f"executor.model.path: no causal language model can be loaded from {str(path)!r}: "
            f"{_line(error)}"
        ) from error
    for tensor in (*model.parameters(), *model.buffers()):
        # memory mapped from the file could not be given back
        tensor.data = tensor.data.clone()
    return cast("PreTrainedModel", model)


def _line(error: Exception) -> str:
    """Return what a library says, without the lists that it goes on with."""
    words = " ".join(str(error).split())
    if len(words) > _QUOTED_CHARACTERS:
        words = f"{words[:_QUOTED_CHARACTERS]}..."
    return f"{type(error).__name__}: {words}"
