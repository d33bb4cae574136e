"""The language model: from a directory, or new with random weights."""

from __future__ import annotations

from typing import Any, cast

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from swingshift.executors.rl.options import ModelOptions
from swingshift.sdk.errors import ConfigError


def build_model(
    options: ModelOptions,
    *,
    vocab_size: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """Return a causal language model on a device.

    Args:
        options: Where from, or of which architecture.
        vocab_size: Tokens of a new model; a model from a directory has its own.
        seed: Of random weights: one seed gives the same in every process.
        device: Where to put it.
        dtype: Of its weights.

    Raises:
        ConfigError: It cannot be loaded or made.
    """
    factory = cast("Any", AutoModelForCausalLM)
    try:
        if options.path is not None:
            model = factory.from_pretrained(options.path, local_files_only=True, dtype=dtype)
        else:
            config = AutoConfig.for_model(
                options.type, **{"vocab_size": vocab_size, **options.config}
            )
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                model = factory.from_config(config, dtype=dtype)
    except Exception as error:  # whatever a library raises on keys and files it does not know
        raise ConfigError(f"executor.model: cannot be built: {error}") from error
    return cast("PreTrainedModel", model.to(device))
