"""What each worker process is told first."""

from __future__ import annotations

from zlib import crc32

import attrs

from swingshift.executors.local.channel import Message
from swingshift.executors.local.devices import Device
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.local.scratch import Scratch
from swingshift.executors.rl.tokenizers import Tokenizer
from swingshift.sdk.config import RunConfig


def training_setting(
    config: RunConfig,
    options: LocalOptions,
    tokenizer: Tokenizer,
    scratch: Scratch,
    device: Device,
    rank: int,
    world: int,
) -> Message:
    """Return the setting of one rank of the trainer."""
    return {
        **_common(config, options, tokenizer, scratch, device),
        "role": "training",
        "rank": rank,
        "world": world,
        "rendezvous": str(scratch.path / "rendezvous"),
        "scratch": str(scratch.offloaded / str(rank)),
        "learning": attrs.asdict(options.learning),
        "pad_token_id": tokenizer.pad_token_id,
        "optimizer_steps": config.async_training.require_batches,
    }


def rollout_setting(
    config: RunConfig,
    options: LocalOptions,
    tokenizer: Tokenizer,
    scratch: Scratch,
    device: Device,
    asleep: bool,
    number: int,
) -> Message:
    """Return the setting of the ``number``-th process of a replica in this run."""
    return {
        **_common(config, options, tokenizer, scratch, device),
        "role": "rollout",
        "eos_token_id": tokenizer.eos_token_id,
        # no two processes draw the same, or the responses to one prompt would be copies
        "draws_seed": crc32(f"{config.seed}/{number}".encode()),
        "temperature": options.learning.temperature,
        "max_running": config.actor_rollout_ref.rollout.max_num_seqs,
        "ignore_eos": options.ignore_eos,
        "asleep": asleep,
    }


def _common(
    config: RunConfig, options: LocalOptions, tokenizer: Tokenizer, scratch: Scratch, device: Device
) -> Message:
    return {
        "cores": list(device.cores),
        "environment": dict(device.environment),
        "device": device.torch_name,
        "context_tokens": config.data.max_prompt_length + config.data.max_response_length,
        "store": str(scratch.payloads),
        "model": attrs.asdict(options.model),
        "vocab_size": tokenizer.vocab_size,
        "seed": config.seed,
    }
