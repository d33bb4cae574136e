"""Training engines small enough for tests, and batches for them.

Importing this computes on one thread from then on, as a worker on one core does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from swingshift.executors.local.checkpoints import write_state
from swingshift.executors.local.models import build_model
from swingshift.executors.local.training import TrainingEngine
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.options import LearningOptions, ModelOptions

torch.set_num_threads(1)

CPU = torch.device("cpu")
VOCABULARY = 11
PAD = 0
SEED = 5
SMALL_MODEL = ModelOptions(
    config={
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "initializer_range": 0.3,
    }
)
"""A model of 3,000 parameters whose next token depends on all before it."""


def build_small(options: ModelOptions = SMALL_MODEL, *, seed: int = SEED) -> PreTrainedModel:
    """Return the model that an engine of the same options begins with."""
    return build_model(options, vocab_size=VOCABULARY, seed=seed, device=CPU)


def build_engine(
    scratch: Path,
    learning: LearningOptions,
    *,
    model: ModelOptions = SMALL_MODEL,
    seed: int = SEED,
    optimizer_steps: int = 1,
    device: torch.device = CPU,
) -> TrainingEngine:
    """Return the engine of a trainer that is alone."""
    return TrainingEngine(
        model,
        learning,
        vocab_size=VOCABULARY,
        pad_token_id=PAD,
        seed=seed,
        device=device,
        scratch=scratch,
        optimizer_steps=optimizer_steps,
    )


def sequence(
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    reward: float = 0.0,
    group: int = 0,
    observed: Sequence[int] = (),
    log_probs: Sequence[float] | None = None,
) -> TrainingSequence:
    """Return a sequence to train on.

    Args:
        prompt: Token ids.
        response: Token ids.
        reward: Of the response.
        group: Of the sequence.
        observed: Positions in the response that the model did not draw.
        log_probs: Of the response; -2.0 for each drawn token if left out.
    """
    trainable = [position not in observed for position in range(len(response))]
    if log_probs is None:
        log_probs = [-2.0 * drawn for drawn in trainable]
    return TrainingSequence(prompt, response, log_probs, trainable, reward, group)


def batch() -> list[TrainingSequence]:
    """Return three groups of unequal lengths; one response has observed tokens within."""
    return [
        sequence([1, 2], [3, 4, 5], reward=1.0, group=0),
        sequence([1, 2], [6], reward=0.0, group=0),
        sequence([7], [8, 9, 10, 1, 2], reward=0.25, group=1, observed=(1, 2)),
        sequence([7], [3, 3], reward=1.0, group=1),
        sequence([4, 5, 6, 7, 8, 9], [1, 2], reward=-1.0, group=4),
        sequence([4, 5, 6, 7, 8, 9], [10, 9, 8, 7], reward=0.5, group=4),
    ]


def unpadded_log_probs(
    model: PreTrainedModel, item: TrainingSequence, *, temperature: float = 1.0
) -> Tensor:
    """Return the log-probability of each response token, with the sequence alone in its pass."""
    ids = torch.tensor([[*item.prompt, *item.response]])
    logits = model(input_ids=ids).logits[0] / temperature
    begin = len(item.prompt)
    rows = [
        torch.log_softmax(logits[begin + position - 1], -1)[token]
        for position, token in enumerate(item.response)
    ]
    return torch.stack(rows)


def weights_of(engine: TrainingEngine) -> dict[str, Tensor]:
    """Return a copy of an engine's weights."""
    return {name: weight.clone() for name, weight in engine.weights().items()}


def write_everything(engine: TrainingEngine, directory: Path) -> None:
    """Write weights and all other state of an engine, which need not be of the first rank."""
    directory.mkdir()
    steps = {name: optimizer.steps for name, optimizer in engine._optimizers.items()}
    write_state(directory, {**engine._beside, "model": engine.weights()}, steps)


def gradients_of(engine: TrainingEngine, learning: LearningOptions) -> list[Tensor]:
    """Return the gradients of an engine's first step, as its optimizer has kept them."""
    means = [tensor for name, tensor in engine._optimizer.state().items() if "sq" not in name]
    return [mean / (1.0 - learning.beta1) for mean in means]
