"""How long a trainer's fit step takes, by the keys it is timed under."""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.memory import MemoryParameters
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.executors.simulated.costs.topology import TrainerTopology
from swingshift.sdk.validators import finite, integer


@attrs.frozen(kw_only=True)
class FitWork:
    """What one fit step is given, reduced to what its time depends on.

    Args:
        tokens: Sum of the sequence lengths, prompt and response together.
        squared_tokens: Sum of the squared sequence lengths, for attention.
        sequences: How many there are.
        optimizer_steps: Optimizer steps that the fit step makes.
    """

    tokens: float = attrs.field(validator=finite(ge=0))
    squared_tokens: float = attrs.field(validator=finite(ge=0))
    sequences: int = attrs.field(validator=integer(ge=0))
    optimizer_steps: int = attrs.field(default=1, validator=integer(ge=1))

    @classmethod
    def of(cls, lengths: Iterable[int], optimizer_steps: int = 1) -> FitWork:
        """Return the work of training on sequences of these lengths in tokens."""
        sequences = tuple(lengths)
        return cls(
            tokens=sum(sequences),
            squared_tokens=sum(length * length for length in sequences),
            sequences=len(sequences),
            optimizer_steps=optimizer_steps,
        )


@attrs.frozen(kw_only=True)
class TrainingParameters:
    """How far a trainer stays from the hardware's peak, and its fixed costs.

    The defaults are assumptions; calibrate them to your trainer.

    Args:
        mfu: Share of peak FLOP/s that model FLOPs reach on one copy of the model, bubbles apart.
            Recomputation is inside it.
        loss_per_doubling: Share of the speed lost each time the number of copies doubles: uneven
            sequences, stragglers, communication.
        microbatch_tokens: Tokens of one micro-batch, for the pipeline bubble.
        optimizer_step_s: Seconds per optimizer step whatever the batch.
        network_efficiency: Share of the network's rate that the gradient reduction reaches.
        advantage_s: Seconds per fit step to compute advantages.
    """

    mfu: float = attrs.field(default=0.3, validator=finite(gt=0, le=1))
    loss_per_doubling: float = attrs.field(default=0.05, validator=finite(ge=0, le=0.5))
    microbatch_tokens: float = attrs.field(default=64_000.0, validator=finite(gt=0))
    optimizer_step_s: float = attrs.field(default=2.0, validator=finite(ge=0))
    network_efficiency: float = attrs.field(default=0.5, validator=finite(gt=0, le=1))
    advantage_s: float = attrs.field(default=0.5, validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class TrainingModel:
    """Fit-step times of one trainer.

    Args:
        model: What is trained; a critic and a reference, where there are such, are taken to be as
            large.
        gpu: What it runs on.
        topology: How it is spread.
        parameters: Efficiencies and overheads.
        memory: Bytes per gradient element, for their reduction.
    """

    model: ModelSpec
    gpu: GpuSpec
    topology: TrainerTopology
    parameters: TrainingParameters = attrs.field(factory=TrainingParameters)
    memory: MemoryParameters = attrs.field(factory=MemoryParameters)

    def fit_seconds(
        self, work: FitWork, *, reference: bool = False, critic: bool = False
    ) -> dict[str, float]:
        """Return the seconds of one fit step by timing key.

        A forward pass is 2 FLOPs per active parameter and token plus attention, an update three
        times that.

        Args:
            work: Tokens and optimizer steps.
            reference: Whether a reference model scores the batch (key ``ref``).
            critic: Whether a critic is trained (keys ``values`` and ``update_critic``).

        Returns:
            Seconds under ``reward`` (0: scored where it was generated), ``old_log_prob``, ``adv``,
            ``update_actor`` and the keys asked for.

        Source: J. Kaplan et al., "Scaling laws for neural language models", 2020, section 2.1.
        """
        forward_s = self.forward_s(work)
        update_s = 3.0 * forward_s + work.optimizer_steps * (
            self.parameters.optimizer_step_s + self.gradient_reduction_s
        )
        seconds = {"reward": 0.0, "old_log_prob": forward_s}
        if reference:
            seconds["ref"] = forward_s
        if critic:
            seconds["values"] = forward_s
        seconds["adv"] = self.parameters.advantage_s
        if critic:
            seconds["update_critic"] = update_s
        seconds["update_actor"] = update_s
        return seconds

    def forward_s(self, work: FitWork) -> float:
        """Return the seconds of one forward pass over the batch, the pipeline's bubble included.

        Causal attention pairs each token with half of its sequence on average. A pipeline of p
        stages runs m micro-batches in the time of m + p - 1.

        Source: D. Narayanan et al., "Efficient large-scale language model training on GPU
        clusters", 2021, section 2.2.
        """
        flops = 2.0 * self.model.active_params * work.tokens
        flops += 0.5 * self.model.attention_flops_per_pair * work.squared_tokens
        stages = self.topology.pipeline_parallel
        per_copy = work.tokens / (work.optimizer_steps * self.topology.data_parallel)
        microbatches = max(1.0, per_copy / self.parameters.microbatch_tokens)
        return flops / self.flops_per_s * (1.0 + (stages - 1) / microbatches)

    @property
    def flops_per_s(self) -> float:
        """Model FLOP/s of the whole trainer, bubbles apart; grows more slowly than its GPUs."""
        doublings = math.log2(self.topology.data_parallel)
        kept = math.pow(1.0 - self.parameters.loss_per_doubling, doublings)
        return self.topology.gpus * self.gpu.bf16_flops_per_s * self.parameters.mfu * kept

    @property
    def gradient_reduction_s(self) -> float:
        """Seconds to reduce gradients and gather weights among the copies of the model.

        A reduce-scatter and an all-gather each move (n - 1) / n of the elements that a GPU holds,
        for n copies. Counted in full: no overlap with compute.
        """
        topology = self.topology
        dense = self.model.dense_params / topology.dense_shards
        experts = self.model.expert_params / topology.expert_shards
        moved = dense * (1.0 - 1.0 / topology.data_parallel)
        moved += experts * (1.0 - 1.0 / topology.expert_data_parallel)
        bytes_per_param = self.memory.gradient_bytes_per_param + self.model.bytes_per_param
        rate = self.gpu.network_bytes_per_s * self.parameters.network_efficiency
        return moved * bytes_per_param / rate
