"""The training engine of one device: GRPO with AdamW, alone or as one rank of several."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from swingshift.executors.local.critic import Critic
from swingshift.executors.local.micro_batches import MicroBatch, micro_batches
from swingshift.executors.local.models import build_model
from swingshift.executors.local.optimizer import Optimizer
from swingshift.executors.local.weights import Movable, without_ties
from swingshift.executors.rl.advantages import generalized_advantages, group_advantages
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.losses import clipped_policy_loss, k3_divergence, token_log_probs
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.executor import TrainingPart

Floats = npt.NDArray[np.float64]

_OPTIMIZER_FILE, _STATE_FILE = "optimizer.safetensors", "training_state.json"
_STATE_FORMAT = 1


class TrainingEngine:
    """A model, its optimizer, and what else one device holds for training."""

    def __init__(
        self,
        model_options: ModelOptions,
        learning: LearningOptions,
        *,
        vocab_size: int,
        pad_token_id: int,
        seed: int,
        device: torch.device,
        scratch: Path,
        dtype: torch.dtype = torch.float32,
        rank: int = 0,
        world: int = 1,
        optimizer_steps: int = 1,
    ) -> None:
        """Build everything on the device; optimizer state is there from the beginning.

        Args:
            model_options: What to train.
            learning: How.
            vocab_size: Tokens of a new model.
            pad_token_id: Fills up rows.
            seed: Of a new model's weights; the same in every rank.
            device: Where.
            scratch: Directory for what is offloaded, this rank's own.
            dtype: Of weights, gradients and optimizer state.
            rank: This one's place among ``world``; torch.distributed is initialised before.
            world: Ranks that share each batch.
            optimizer_steps: Mini-batches of a batch.
        """
        self._learning = learning
        self._pad = pad_token_id
        self._device = device
        self._rank = rank
        self._world = world
        self._optimizer_steps = optimizer_steps

        def new_model() -> PreTrainedModel:
            return build_model(
                model_options, vocab_size=vocab_size, seed=seed, device=device, dtype=dtype
            )

        self._model = new_model()
        self._optimizer = Optimizer(self._model.parameters(), learning, learning.learning_rate)
        held = without_ties(self._model.state_dict().items())
        self._names = tuple(held)
        self._reference: PreTrainedModel | None = None
        if learning.kl_coefficient > 0.0:
            self._reference = new_model()
            self._reference.requires_grad_(False)
            held |= _prefixed("reference", without_ties(self._reference.state_dict().items()))
        state = self._optimizer.state()
        self._critic: Critic | None = None
        if learning.critic:
            self._critic = Critic(new_model(), learning)
            held |= _prefixed("critic", self._critic.weights())
            state |= _prefixed("critic", self._critic.optimizer.state())
        self._parts = {
            TrainingPart.PARAMETERS: Movable(held, scratch / "parameters.safetensors"),
            TrainingPart.OPTIMIZER_AND_GRADIENTS: Movable(state, scratch / _OPTIMIZER_FILE),
        }

    def state_bytes(self, part: TrainingPart) -> int:
        """Return the device memory that one part takes; gradients are as large as the weights."""
        held = self._parts[part].bytes
        if part is TrainingPart.OPTIMIZER_AND_GRADIENTS:
            held += self._parts[TrainingPart.PARAMETERS].bytes
        return held

    def offload(self, part: TrainingPart) -> None:
        """Move one part to the host and free its memory on the device; idempotent."""
        self._parts[part].away()

    def reload(self, part: TrainingPart) -> None:
        """Bring one part back, bit for bit; idempotent."""
        self._parts[part].back()

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that a replica needs, by name, tied ones once."""
        state = self._model.state_dict()
        return {name: state[name] for name in self._names}

    def fit(
        self, sequences: Sequence[TrainingSequence]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Train on a batch; every rank gets the whole of it and takes its share.

        Args:
            sequences: Responses, those of a group one after the other.

        Returns:
            Seconds by timing key, and metrics by name: ``reward/mean``, ``reward/max``,
            ``response_length/mean`` (tokens trained on), ``actor/loss``, ``actor/grad_norm``,
            ``actor/entropy``, ``actor/clip_fraction``, ``actor/rollout_divergence`` (from the
            policy that generated, estimator k3), ``actor/skipped_steps`` (whose gradient was not
            finite), and with a reference ``actor/reference_divergence``, with a critic
            ``critic/loss``.
        """
        timer = _Timer(self._device)
        reference = self._score_reference(sequences, timer)
        values = self._expected_values(sequences, timer)
        with timer("adv"):
            advantages, returns = self._advantages(sequences, values)
        sums: dict[str, float] = defaultdict(float)
        if self._critic is not None:
            with timer("update_critic"):
                self._train_critic(self._critic, sequences, returns, sums)
        with timer("update_actor"):
            for chosen in self._passes(sequences):
                self._step(sequences, chosen, advantages, reference, sums)
        return timer.seconds, self._metrics(sequences, sums)

    def save(self, directory: Path) -> None:
        """Write model, optimizer and their state into a new directory, whole or not at all.

        The model is in the Hugging Face format.
        """
        unfinished = directory.with_name(f".{directory.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._model.save_pretrained(unfinished)
        save_file(self._optimizer.state(), unfinished / _OPTIMIZER_FILE)
        state = {"format": _STATE_FORMAT, "optimizer_steps": self._optimizer.steps}
        (unfinished / _STATE_FILE).write_text(json.dumps(state) + "\n")
        unfinished.rename(directory)

    def load(self, directory: Path) -> None:
        """Take over model and optimizer from a directory that `save` wrote."""
        saved = build_model(
            ModelOptions(path=str(directory)), vocab_size=0, seed=0, device=self._device
        )
        self._model.load_state_dict(saved.state_dict())
        state = json.loads((directory / _STATE_FILE).read_text())
        with safe_open(str(directory / _OPTIMIZER_FILE), framework="pt") as kept:
            self._optimizer.restore(
                {name: kept.get_tensor(name) for name in kept.keys()},  # noqa: SIM118
                steps=int(state["optimizer_steps"]),
            )

    def _step(
        self,
        sequences: Sequence[TrainingSequence],
        chosen: Sequence[int],
        advantages: Sequence[Floats],
        reference: Mapping[int, Floats],
        sums: dict[str, float],
    ) -> None:
        """Make one optimizer step on a mini-batch."""
        learning = self._learning
        tokens = _trainable_tokens(sequences, chosen)
        self._model.train()
        for batch in self._mine(sequences, chosen):
            log_probs, entropy = self._log_probs(self._model, batch)
            loss = clipped_policy_loss(
                log_probs,
                batch.behaviour,
                batch.spread(advantages),
                batch.mask,
                clip_low=learning.clip_low,
                clip_high=learning.clip_high,
            )
            total = loss.loss
            if reference:
                rows = [reference.get(index, np.zeros(0)) for index in range(len(sequences))]
                distance = (k3_divergence(log_probs, batch.spread(rows)) * batch.mask).sum()
                total = total + learning.kl_coefficient * distance
                sums["actor/reference_divergence"] += float(distance)
            (total / tokens).backward()  # type: ignore[no-untyped-call]
            sums["actor/loss"] += float(total)
            sums["actor/entropy"] += float((entropy.detach() * batch.mask).sum())
            sums["actor/clip_fraction"] += float(loss.clipped)
            sums["actor/rollout_divergence"] += float(loss.divergence)
            sums["tokens"] += float(batch.mask.sum())
        norm = self._optimizer.step(self._world)
        sums["steps"] += 1
        if norm is None:
            sums["actor/skipped_steps"] += 1
        else:
            sums["actor/grad_norm"] += norm

    def _train_critic(
        self,
        critic: Critic,
        sequences: Sequence[TrainingSequence],
        returns: Sequence[Floats],
        sums: dict[str, float],
    ) -> None:
        for chosen in self._passes(sequences):
            tokens = _trainable_tokens(sequences, chosen)
            for batch in self._mine(sequences, chosen):
                sums["critic/loss"] += critic.accumulate(batch, batch.spread(returns), tokens)
                sums["critic/tokens"] += float(batch.mask.sum())
            critic.optimizer.step(self._world)

    def _score_reference(
        self, sequences: Sequence[TrainingSequence], timer: _Timer
    ) -> dict[int, Floats]:
        """Return the reference's log-probabilities of this rank's share, by sequence."""
        scored: dict[int, Floats] = {}
        if self._reference is None:
            return scored
        with timer("ref"), torch.no_grad():
            for chosen in self._mini_batches(sequences):
                for batch in self._mine(sequences, chosen):
                    log_probs, _ = self._log_probs(self._reference, batch)
                    scored |= _by_sequence(sequences, batch, log_probs)
        return scored

    def _expected_values(
        self, sequences: Sequence[TrainingSequence], timer: _Timer
    ) -> dict[int, Floats]:
        """Return what the critic expects before each token of this rank's share."""
        expected: dict[int, Floats] = {}
        if self._critic is None:
            return expected
        with timer("values"), torch.no_grad():
            for chosen in self._mini_batches(sequences):
                for batch in self._mine(sequences, chosen):
                    expected |= _by_sequence(sequences, batch, self._critic.values(batch))
        return expected

    def _advantages(
        self, sequences: Sequence[TrainingSequence], values: Mapping[int, Floats]
    ) -> tuple[list[Floats], list[Floats]]:
        """Return advantages and, with a critic, returns per response token of every sequence.

        Of sequences that are another rank's there are none.
        """
        learning = self._learning
        if self._critic is None:
            each = group_advantages(
                [sequence.reward for sequence in sequences],
                [sequence.group for sequence in sequences],
                normalize_by_std=learning.normalize_by_std,
            )
            advantages = [
                np.full(len(sequence.response), worth)
                for sequence, worth in zip(sequences, each, strict=True)
            ]
            return advantages, []
        nothing = np.zeros(0)
        pairs = [
            generalized_advantages(
                sequence.reward,
                values[index].tolist(),
                gamma=learning.gamma,
                gae_lambda=learning.gae_lambda,
            )
            if index in values
            else (nothing, nothing)
            for index, sequence in enumerate(sequences)
        ]
        return [advantages for advantages, _ in pairs], [returns for _, returns in pairs]

    def _log_probs(self, model: PreTrainedModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).logits
        return token_log_probs(logits[:, :-1], batch.ids[:, 1:], self._learning.temperature)

    def _passes(self, sequences: Sequence[TrainingSequence]) -> Iterator[list[int]]:
        for _ in range(self._learning.epochs):
            yield from self._mini_batches(sequences)

    def _mini_batches(self, sequences: Sequence[TrainingSequence]) -> Iterator[list[int]]:
        """Cut a batch into mini-batches of whole groups."""
        groups = sorted({sequence.group for sequence in sequences})
        for part in np.array_split(np.array(groups), min(self._optimizer_steps, len(groups))):
            members = set(part.tolist())
            yield [index for index, item in enumerate(sequences) if item.group in members]

    def _mine(
        self, sequences: Sequence[TrainingSequence], chosen: Sequence[int]
    ) -> Iterator[MicroBatch]:
        """Return this rank's share of a mini-batch; all shares have about as many tokens."""
        by_length = sorted(chosen, key=lambda index: len(sequences[index].response))
        return micro_batches(
            sequences,
            by_length[self._rank :: self._world],
            max_tokens=self._learning.micro_batch_tokens,
            pad_token_id=self._pad,
            device=self._device,
        )

    def _metrics(
        self, sequences: Sequence[TrainingSequence], sums: dict[str, float]
    ) -> dict[str, float]:
        steps = sums.pop("steps")
        skipped = sums.pop("actor/skipped_steps", 0.0)
        norms = sums.pop("actor/grad_norm", 0.0)
        names = sorted(sums)
        totals = torch.tensor([sums[name] for name in names], dtype=torch.float64)
        if self._world > 1:
            totals = totals.to(self._device)
            torch.distributed.all_reduce(totals)
        of_tokens = dict(zip(names, totals.tolist(), strict=True))
        tokens, critic_tokens = of_tokens.pop("tokens"), of_tokens.pop("critic/tokens", 0.0)
        rewards = [sequence.reward for sequence in sequences]
        return {
            "reward/mean": float(np.mean(rewards)),
            "reward/max": float(np.max(rewards)),
            "response_length/mean": sum(sum(s.trainable) for s in sequences) / len(sequences),
            "actor/grad_norm": norms / max(1.0, steps - skipped),
            "actor/skipped_steps": skipped,
            **{
                name: total / max(1.0, critic_tokens if name == "critic/loss" else tokens)
                for name, total in of_tokens.items()
            },
        }


class _Timer:
    """Seconds by key; work that a GPU still has to do is waited for."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = {}
        self._device = device

    @contextmanager
    def __call__(self, key: str) -> Iterator[None]:
        began_s = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - began_s


def _trainable_tokens(sequences: Sequence[TrainingSequence], chosen: Sequence[int]) -> int:
    return max(1, sum(sum(sequences[index].trainable) for index in chosen))


def _by_sequence(
    sequences: Sequence[TrainingSequence], batch: MicroBatch, numbers: Tensor
) -> dict[int, Floats]:
    """Cut numbers per token of a micro-batch into those of each response."""
    rows = numbers.double().cpu().numpy()
    ends = (batch.attention.sum(-1) - 1).tolist()
    return {
        index: rows[row, end - len(sequences[index].response) : end]
        for row, (index, end) in enumerate(zip(batch.indices, ends, strict=True))
    }


def _prefixed(prefix: str, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in named.items()}
