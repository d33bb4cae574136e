"""How long a replica takes to decode and to prefill: a roofline over bytes and FLOPs.

A decode step reads every weight its tokens touch and the KV cache of every running request, and
computes two FLOPs per touched weight and token; the slower of the two is the step's time, to which
come fixed costs. Within one regime the time is linear in the context, and the context grows by the
batch with every step, so a run of steps between two changes of the batch is an arithmetic series
that needs no step-by-step simulation.

Source: S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import attrs

from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.sdk.validators import finite, integer


class StepCost(NamedTuple):
    """Decode step time as a line: ``base_s + slope_s_per_token * x`` after x more steps.

    A step is one more token of each running request. A named tuple, because one is made at every
    arrival and every finish of a request.
    """

    base_s: float
    slope_s_per_token: float


class EngineCosts(Protocol):
    """What an engine asks about its own cost, whether that is modelled or was measured."""

    @property
    def prefill_fixed_s(self) -> float:
        """Seconds of a prefill pass, whatever it computes; what it computes comes on top."""

    @property
    def prefill_draws_token(self) -> bool:
        """Whether a prefill draws the first token of a request, so that decoding does the rest."""

    @property
    def request_overhead_s(self) -> float:
        """Seconds after its arrival in which a request cannot begin yet."""

    def step(self, batch: int, context_tokens: float) -> StepCost:
        """Return the time of the next decode step and its growth while the batch stays as it is.

        Args:
            batch: Requests that decode, at least 1.
            context_tokens: Tokens in the KV cache of all of them together.
        """

    def prefill_s(self, tokens: float, context_tokens: float = 0.0) -> float:
        """Return the seconds that one sequence adds to a prefill pass.

        Args:
            tokens: New tokens.
            context_tokens: Tokens of the sequence that are in the cache already.
        """


def seconds_for(cost: StepCost, steps: float) -> float:
    """Return the seconds that the next ``steps`` decode steps take: the integral of the line.

    Args:
        cost: Step time now and its growth.
        steps: Steps, at least 0; a fraction is part of a step.
    """
    return steps * (cost.base_s + 0.5 * cost.slope_s_per_token * steps)


def steps_in(cost: StepCost, seconds: float) -> float:
    """Return how many decode steps fit into ``seconds``: the inverse of `seconds_for`.

    The form 2c / (b + sqrt(b^2 + 2ac)) of the quadratic's root has no cancellation and holds for a
    slope of 0.

    Args:
        cost: Step time now and its growth; ``base_s`` above 0.
        seconds: At least 0.
    """
    base_s, slope = cost
    return 2.0 * seconds / (base_s + math.sqrt(base_s * base_s + 2.0 * slope * seconds))


@attrs.frozen(kw_only=True)
class DecodeParameters:
    """How far an inference engine stays from the hardware's peaks, and its fixed costs.

    The defaults are assumptions, typical of current engines with captured graphs; calibrate them to
    yours.

    Args:
        bandwidth_efficiency: Share of peak memory bandwidth reached while decoding.
        flops_efficiency: Share of peak FLOP/s reached while decoding.
        prefill_efficiency: Share of peak FLOP/s reached while prefilling.
        step_overhead_s: Seconds per decode step whatever the batch: launches, all-reduce latency,
            scheduler.
        overhead_per_sequence_s: Seconds per decode step and running request: sampling,
            detokenising, bookkeeping and the fixed state of linear-attention layers.
    """

    bandwidth_efficiency: float = attrs.field(default=0.7, validator=finite(gt=0, le=1))
    flops_efficiency: float = attrs.field(default=0.5, validator=finite(gt=0, le=1))
    prefill_efficiency: float = attrs.field(default=0.4, validator=finite(gt=0, le=1))
    step_overhead_s: float = attrs.field(default=5e-3, validator=finite(ge=0))
    overhead_per_sequence_s: float = attrs.field(default=2e-5, validator=finite(ge=0))


class _BatchCost(NamedTuple):
    """What a step over one batch costs without context, and what a token of context adds."""

    memory_s: float
    compute_s: float
    fixed_s: float
    memory_s_per_token: float
    compute_s_per_token: float


@attrs.frozen(kw_only=True)
class DecodeModel:
    """The modelled `EngineCosts` of one replica: a model spread over ``tensor_parallel`` GPUs.

    Args:
        model: What is decoded.
        gpu: What it runs on.
        tensor_parallel: GPUs of the replica.
        parameters: Efficiencies and overheads.
    """

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel: int = attrs.field(validator=integer(ge=1))
    parameters: DecodeParameters = attrs.field(factory=DecodeParameters)
    _costs: list[_BatchCost] = attrs.field(init=False, repr=False, eq=False, factory=list)

    @property
    def prefill_fixed_s(self) -> float:
        """0: a prefill is its FLOPs."""
        return 0.0

    @property
    def prefill_draws_token(self) -> bool:
        """False: responses are so long that one step more does not count."""
        return False

    @property
    def request_overhead_s(self) -> float:
        """0: messages are short beside responses."""
        return 0.0

    def step(self, batch: int, context_tokens: float) -> StepCost:
        """Return the time of the next decode step and its growth while the batch stays as it is.

        Called at every arrival and finish of a request, so what depends on the batch alone is
        computed once. The line is exact until the step turns from memory-bound to compute-bound or
        back.

        Args:
            batch: Requests that decode, at least 1.
            context_tokens: Tokens in the KV cache of all of them together.

        Raises:
            ValueError: The batch is not a positive integer.
        """
        if batch < 1 or batch >= len(self._costs):
            self._extend(batch)
        memory_s, compute_s, fixed_s, memory_s_per_token, compute_s_per_token = self._costs[batch]
        memory_s += memory_s_per_token * context_tokens
        compute_s += compute_s_per_token * context_tokens
        if memory_s >= compute_s:
            return StepCost(fixed_s + memory_s, memory_s_per_token * batch)
        return StepCost(fixed_s + compute_s, compute_s_per_token * batch)

    def prefill_s(self, tokens: float, context_tokens: float = 0.0) -> float:
        """Return the seconds to prefill one sequence: FLOPs over the replica's attained rate.

        Args:
            tokens: New tokens, each attending to the context and to those before it.
            context_tokens: Tokens of the sequence that are in the cache already.
        """
        pairs = tokens * (context_tokens + 0.5 * tokens)
        flops = 2.0 * self.model.active_params * tokens
        flops += self.model.attention_flops_per_pair * pairs
        peak = self.gpu.bf16_flops_per_s * self.tensor_parallel
        return flops / (peak * self.parameters.prefill_efficiency)

    def _extend(self, batch: int) -> None:
        integer(ge=1).check("batch", batch)
        self._costs.extend(self._batch_cost(size) for size in range(len(self._costs), batch + 1))

    def _batch_cost(self, batch: int) -> _BatchCost:
        model, parameters, gpus = self.model, self.parameters, self.tensor_parallel
        bytes_per_s = self.gpu.memory_bandwidth_bytes_per_s * parameters.bandwidth_efficiency
        flops_per_s = self.gpu.bf16_flops_per_s * gpus * parameters.flops_efficiency
        return _BatchCost(
            memory_s=model.active_weight_bytes(batch) / gpus / bytes_per_s,
            compute_s=2.0 * model.active_params * batch / flops_per_s,
            fixed_s=parameters.step_overhead_s + parameters.overhead_per_sequence_s * batch,
            memory_s_per_token=model.kv_bytes_per_token_and_gpu(gpus) / bytes_per_s,
            compute_s_per_token=model.attention_flops_per_pair / flops_per_s,
        )
