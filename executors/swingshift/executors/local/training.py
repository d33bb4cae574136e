"""The training engine of one device: GRPO with AdamW, alone or as one rank of several."""

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from swingshift.executors.local.checkpoints import (
    CheckpointError,
    expect_alike,
    read_state,
    write_state,
)
from swingshift.executors.local.critic import Critic
from swingshift.executors.local.micro_batches import ByToken, MicroBatch
from swingshift.executors.local.mini_batches import BatchCutter, MiniBatch, trained_tokens
from swingshift.executors.local.models import build_model
from swingshift.executors.local.optimizer import Optimizer
from swingshift.executors.local.step_metrics import StepMetrics, summed_over_ranks
from swingshift.executors.local.weights import Movable, without_ties
from swingshift.executors.rl.advantages import generalized_advantages, group_advantages
from swingshift.executors.rl.batches import TrainingSequence
from swingshift.executors.rl.losses import clipped_policy_loss, k3_divergence, token_log_probs
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.executor import TrainingPart

_OPTIMIZER, _REFERENCE, _CRITIC = "optimizer", "reference", "critic"
_CRITIC_OPTIMIZER = "critic_optimizer"


class OffloadedError(SwingshiftError):
    """Something needs state that is not on the device."""


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
            vocab_size: Tokens that the model must know.
            pad_token_id: Fills up rows.
            seed: Of a new model's weights; the same in every rank.
            device: Where.
            scratch: Directory for what is offloaded, this rank's own.
            dtype: Of weights, gradients and optimizer state.
            rank: This one's place among ``world``; torch.distributed is initialised before.
            world: Ranks that share each batch.
            optimizer_steps: Mini-batches of a batch.

        Raises:
            ConfigError: The model cannot be built.
        """
        self._learning = learning
        self._device = device
        self._world = world
        self._cutter = BatchCutter(
            steps=optimizer_steps,
            max_tokens=learning.micro_batch_tokens,
            pad_token_id=pad_token_id,
            device=device,
            rank=rank,
            world=world,
        )

        def new_model() -> PreTrainedModel:
            return build_model(
                model_options, vocab_size=vocab_size, seed=seed, device=device, dtype=dtype
            )

        self._model = new_model()
        self._optimizer = Optimizer(self._model.parameters(), learning, learning.learning_rate)
        held = without_ties(self._model.state_dict().items())
        self._names = tuple(held)
        # what a checkpoint has beside the model
        self._beside = {_OPTIMIZER: self._optimizer.state()}
        self._optimizers = {_OPTIMIZER: self._optimizer}
        self._reference: PreTrainedModel | None = None
        if learning.kl_coefficient > 0.0:
            self._reference = new_model()
            self._reference.requires_grad_(False)
            self._beside[_REFERENCE] = without_ties(self._reference.state_dict().items())
        self._critic: Critic | None = None
        if learning.critic:
            self._critic = Critic(new_model(), learning)
            self._beside[_CRITIC] = self._critic.weights()
            self._beside[_CRITIC_OPTIMIZER] = self._critic.optimizer.state()
            self._optimizers[_CRITIC_OPTIMIZER] = self._critic.optimizer
        weights = {"model": held, **self._groups(_REFERENCE, _CRITIC)}
        states = self._groups(_OPTIMIZER, _CRITIC_OPTIMIZER)
        self._parts = {
            TrainingPart.PARAMETERS: Movable(_flat(weights), scratch / "parameters.safetensors"),
            TrainingPart.OPTIMIZER_AND_GRADIENTS: Movable(
                _flat(states), scratch / "optimizer.safetensors"
            ),
        }

    def state_bytes(self, part: TrainingPart) -> int:
        """Return the device memory that one part takes, gradients included."""
        held = self._parts[part].bytes
        if part is TrainingPart.OPTIMIZER_AND_GRADIENTS:
            held += sum(optimizer.gradient_bytes for optimizer in self._optimizers.values())
        return held

    def offload(self, part: TrainingPart) -> None:
        """Move one part to the host and free its memory on the device; idempotent."""
        self._parts[part].away()

    def reload(self, part: TrainingPart) -> None:
        """Bring one part back, bit for bit; idempotent."""
        self._parts[part].back()

    def weights(self) -> dict[str, Tensor]:
        """Return the weights that a replica needs, by name, tied ones once.

        Raises:
            OffloadedError: They are not on the device.
        """
        self._expect_here("weights", TrainingPart.PARAMETERS)
        state = self._model.state_dict()
        return {name: state[name] for name in self._names}

    def fit(
        self, sequences: Sequence[TrainingSequence]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Train on a batch; every rank gets the whole of it and takes its share.

        A step whose gradient is not finite is skipped: it changes nothing, and nothing of it counts
        in the metrics.

        Args:
            sequences: Responses, at least one, each with a prompt.

        Returns:
            Seconds by timing key, and metrics by name, the same in every rank. Always
            ``reward/mean``, ``reward/max``, ``response_length/mean`` (tokens trained on),
            ``actor/loss``, ``actor/entropy``, ``actor/clip_fraction``, ``actor/rollout_divergence``
            (of the policy that generated from the one in training, estimator k3),
            ``actor/grad_norm`` (before clipping) and ``actor/skipped_steps``; with a reference
            ``actor/reference_divergence``; with `LearningOptions.old_log_prob`
            ``actor/rollout_log_prob_difference`` (mean absolute difference from what the rollout
            engine reported); with a critic ``critic/loss``, ``critic/grad_norm`` and
            ``critic/skipped_steps``.

        Raises:
            OffloadedError: A part is not on the device.
        """
        self._expect_here("fit step", *TrainingPart)
        timer = _Timer(self._device)
        metrics = _batch_metrics(sequences)
        if self._learning.old_log_prob:
            with timer("old_log_prob"):
                before = self._scored(sequences, self._log_probs_of(self._model))
                metrics |= self._difference(sequences, before)
        reference: dict[int, ByToken] | None = None
        if self._reference is not None:
            with timer("ref"):
                reference = self._scored(sequences, self._log_probs_of(self._reference))
        if self._critic is None:
            with timer("adv"):
                advantages = self._compared(sequences)
        else:
            with timer("values"):
                values = self._scored(sequences, self._critic.values)
            with timer("adv"):
                advantages, returns = self._beyond_expected(sequences, values)
            with timer("update_critic"):
                metrics |= self._update_critic(self._critic, sequences, returns)
        with timer("update_actor"):
            metrics |= self._update_actor(sequences, advantages, reference)
        return timer.seconds, metrics

    def save(self, directory: Path) -> None:
        """Write everything into a new directory, whole or not at all.

        Called in the first rank alone, which has what all have. The model is in the Hugging Face
        format.

        Raises:
            OffloadedError: A part is not on the device.
            CheckpointError: There is a directory of this name.
        """
        self._expect_here("checkpoint", *TrainingPart)
        if directory.exists():
            raise CheckpointError(f"{directory} is there already; choose a new name")
        unfinished = directory.with_name(f".{directory.name}.part")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        self._model.save_pretrained(unfinished)
        steps = {name: optimizer.steps for name, optimizer in self._optimizers.items()}
        write_state(unfinished, self._beside, steps)
        unfinished.rename(directory)

    def load(self, directory: Path) -> None:
        """Take over everything from a directory that `save` wrote; the next step is the one after.

        A critic or a reference that this engine does not have is left there.

        Raises:
            OffloadedError: A part is not on the device.
            CheckpointError: The directory is of another format or another model, or has not all
                that this engine needs; nothing has changed.
            ConfigError: Its model cannot be loaded.
        """
        self._expect_here("checkpoint", *TrainingPart)
        groups, steps = read_state(directory, self._beside)
        saved = build_model(
            ModelOptions(path=str(directory)),
            vocab_size=0,
            seed=0,
            device=torch.device("cpu"),
            dtype=self._model.dtype,
        )
        expect_alike(saved.state_dict(), self._model.state_dict(), directory)
        self._model.load_state_dict(saved.state_dict())
        for group, tensors in self._beside.items():
            for name, tensor in tensors.items():
                tensor.copy_(groups[group][name])
        for name, optimizer in self._optimizers.items():
            optimizer.set_steps(steps[name])

    def _groups(self, *names: str) -> dict[str, Mapping[str, Tensor]]:
        return {name: self._beside[name] for name in names if name in self._beside}

    def _expect_here(self, what: str, *parts: TrainingPart) -> None:
        away = [part.value for part in parts if self._parts[part].is_away]
        if away:
            raise OffloadedError(
                f"no {what} while {', '.join(away)} are offloaded; reload them first"
            )

    def _update_actor(
        self,
        sequences: Sequence[TrainingSequence],
        advantages: Mapping[int, ByToken],
        reference: Mapping[int, ByToken] | None,
    ) -> dict[str, float]:
        """Make the optimizer steps of a batch and return their metrics."""
        names = ["loss", "entropy", "clip_fraction", "rollout_divergence"]
        if reference is not None:
            names.append("reference_divergence")
        metrics = StepMetrics("actor", names)
        for mini_batch in self._passes(sequences):
            sums: defaultdict[str, float] = defaultdict(float)
            for batch in mini_batch.share:
                loss = self._actor_loss(batch, advantages, reference, sums)
                (loss / mini_batch.tokens).backward()  # type: ignore[no-untyped-call]
            metrics.add(sums, mini_batch.tokens, self._optimizer.step(self._world))
        return metrics.means(self._world, self._device)

    def _actor_loss(
        self,
        batch: MicroBatch,
        advantages: Mapping[int, ByToken],
        reference: Mapping[int, ByToken] | None,
        sums: dict[str, float],
    ) -> Tensor:
        """Return the loss of a micro-batch, summed over tokens, and add to its sums."""
        learning = self._learning
        log_probs, entropy = self._log_probs(self._model, batch)
        policy = clipped_policy_loss(
            log_probs,
            batch.behaviour,
            batch.spread(advantages),
            batch.mask,
            clip_low=learning.clip_low,
            clip_high=learning.clip_high,
        )
        loss = policy.loss
        if reference is not None:
            away = (k3_divergence(log_probs, batch.spread(reference)) * batch.mask).sum()
            loss = loss + learning.kl_coefficient * away
            sums["reference_divergence"] += away.item()
        sums["loss"] += loss.item()
        sums["entropy"] += (entropy * batch.mask).sum().item()
        sums["clip_fraction"] += policy.clipped.item()
        sums["rollout_divergence"] += policy.divergence.item()
        return loss

    def _update_critic(
        self,
        critic: Critic,
        sequences: Sequence[TrainingSequence],
        returns: Mapping[int, ByToken],
    ) -> dict[str, float]:
        """Make the critic's optimizer steps of a batch and return their metrics."""
        metrics = StepMetrics("critic", ["loss"])
        for mini_batch in self._passes(sequences):
            loss = sum(
                critic.accumulate(batch, batch.spread(returns), mini_batch.tokens)
                for batch in mini_batch.share
            )
            metrics.add({"loss": loss}, mini_batch.tokens, critic.optimizer.step(self._world))
        return metrics.means(self._world, self._device)

    def _scored(
        self, sequences: Sequence[TrainingSequence], score: Callable[[MicroBatch], Tensor]
    ) -> dict[int, ByToken]:
        """Return a number per token of each response of this rank's share, by sequence."""
        scored: dict[int, ByToken] = {}
        with torch.no_grad():
            for mini_batch in self._cutter.cut(sequences):
                for batch in mini_batch.share:
                    scored |= batch.gather(score(batch))
        return scored

    def _difference(
        self, sequences: Sequence[TrainingSequence], before: Mapping[int, ByToken]
    ) -> dict[str, float]:
        """Return how far log-probabilities before the update are from the rollout engine's."""
        total = sum(
            float(np.abs(scored - sequences[index].log_probs) @ sequences[index].trainable)
            for index, scored in before.items()
        )
        (everywhere,) = summed_over_ranks([total], self._world, self._device)
        mean = everywhere / max(1, trained_tokens(sequences))
        return {"actor/rollout_log_prob_difference": mean}

    def _compared(self, sequences: Sequence[TrainingSequence]) -> dict[int, ByToken]:
        """Return the advantages of every sequence: each compared with the others of its group."""
        worth = group_advantages(
            [sequence.reward for sequence in sequences],
            [sequence.group for sequence in sequences],
            normalize_by_std=self._learning.normalize_by_std,
        )
        return {
            index: np.full(len(sequence.response), worth[index])
            for index, sequence in enumerate(sequences)
        }

    def _beyond_expected(
        self, sequences: Sequence[TrainingSequence], values: Mapping[int, ByToken]
    ) -> tuple[dict[int, ByToken], dict[int, ByToken]]:
        """Return advantages and returns of this rank's share: compared with what was expected."""
        advantages: dict[int, ByToken] = {}
        returns: dict[int, ByToken] = {}
        for index, expected in values.items():
            advantages[index], returns[index] = generalized_advantages(
                sequences[index].reward,
                expected.tolist(),
                sequences[index].trainable,
                gamma=self._learning.gamma,
                gae_lambda=self._learning.gae_lambda,
            )
        return advantages, returns

    def _log_probs_of(self, model: PreTrainedModel) -> Callable[[MicroBatch], Tensor]:
        return lambda batch: self._log_probs(model, batch)[0]

    def _log_probs(self, model: PreTrainedModel, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        logits = model(input_ids=batch.ids, attention_mask=batch.attention, use_cache=False).logits
        return token_log_probs(logits[:, :-1], batch.ids[:, 1:], self._learning.temperature)

    def _passes(self, sequences: Sequence[TrainingSequence]) -> Iterator[MiniBatch]:
        for _ in range(self._learning.epochs):
            yield from self._cutter.cut(sequences)


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
        self.seconds[key] = time.perf_counter() - began_s


def _batch_metrics(sequences: Sequence[TrainingSequence]) -> dict[str, float]:
    rewards = [sequence.reward for sequence in sequences]
    return {
        "reward/mean": sum(rewards) / len(rewards),
        "reward/max": max(rewards),
        "response_length/mean": trained_tokens(sequences) / len(sequences),
    }


def _flat(groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{group}.{name}": tensor
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
    }
