"""What things took on a real machine, in place of what a model of one says.

Everything here is seconds, tokens and bytes as somebody measured them; `MeasuredCosts` is the
whole of it, and a configuration's ``executor.measured`` holds the same keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

import attrs

from swingshift.executors.simulated.costs.decode import StepCost
from swingshift.executors.simulated.costs.training import FitWork
from swingshift.sdk.validators import (
    InvalidValueError,
    Validator,
    finite,
    integer,
    optional,
    text,
)


@attrs.frozen(kw_only=True)
class DecodePoint:
    """One point of the curve of decode step times.

    Args:
        running: Requests that decode together.
        step_s: Seconds of one step, less what their context adds.
    """

    running: int = attrs.field(validator=integer(ge=1))
    step_s: float = attrs.field(validator=finite(gt=0))


@attrs.frozen(kw_only=True)
class MeasuredDecode:
    """Decode step times by the number of running requests.

    Args:
        steps: Points by rising ``running``. Straight lines join them. Before the first point the
            time is that of the first; beyond the last one the last line goes on, but never falls.
        per_context_token_s: Seconds that each token in the KV cache adds to a step.

    Raises:
        InvalidValueError: There are no points, or they do not rise.
    """

    steps: tuple[DecodePoint, ...]
    per_context_token_s: float = attrs.field(default=0.0, validator=finite(ge=0))

    def __attrs_post_init__(self) -> None:
        running = [point.running for point in self.steps]
        if not running or any(later <= earlier for earlier, later in pairwise(running)):
            allowed = "one point or more, each with more running requests than the one before"
            raise InvalidValueError("steps", running, allowed)

    def step_s(self, running: int) -> float:
        """Return the seconds of one step without context.

        Args:
            running: Requests that decode, at least 1.
        """
        points = self.steps
        above = bisect_right(points, running, key=lambda point: point.running)
        if above == 0 or len(points) == 1:
            return points[0].step_s
        left, right = points[above - 1 : above + 1] if above < len(points) else points[-2:]
        slope = (right.step_s - left.step_s) / (right.running - left.running)
        if above == len(points):
            return right.step_s + max(0.0, slope) * (running - right.running)
        return left.step_s + slope * (running - left.running)


@attrs.frozen(kw_only=True)
class MeasuredPrefill:
    """Seconds of a prefill pass: over all requests that an engine begins, or begins again, at once.

    Args:
        fixed_s: Seconds of a pass, whatever it computes.
        per_token_s: Seconds for each token of context that it computes.
    """

    fixed_s: float = attrs.field(validator=finite(ge=0))
    per_token_s: float = attrs.field(validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class MeasuredEngine:
    """What the inference engine of one replica takes.

    The `EngineCosts` of a measured machine.

    Args:
        decode: Step times.
        prefill: Times of prefill passes; a pass also draws the first token of each request.
        request_overhead_s: Seconds from the end of a request until the next one can take its place:
            messages, control plane, payloads. The engine's other requests go on meanwhile.
        kv_capacity_tokens: Context that fits; null: whatever requests are admitted fit.
    """

    decode: MeasuredDecode
    prefill: MeasuredPrefill
    request_overhead_s: float = attrs.field(default=0.0, validator=finite(ge=0))
    kv_capacity_tokens: int | None = attrs.field(default=None, validator=optional(integer(ge=1)))

    def step(self, batch: int, context_tokens: float) -> StepCost:
        """Return the time of the next decode step and its growth while the batch stays as it is."""
        per_token_s = self.decode.per_context_token_s
        base_s = self.decode.step_s(batch) + per_token_s * context_tokens
        return StepCost(base_s, per_token_s * batch)

    def prefill_s(self, tokens: float, context_tokens: float = 0.0) -> float:
        """Return what one sequence adds to a prefill pass; what is in the cache costs nothing."""
        return self.prefill.per_token_s * tokens

    @property
    def prefill_fixed_s(self) -> float:
        """Seconds of a prefill pass, whatever it computes."""
        return self.prefill.fixed_s

    @property
    def prefill_draws_token(self) -> bool:
        """True: a measured pass includes the draw of the first token."""
        return True


@attrs.frozen(kw_only=True)
class MeasuredTiming:
    """Seconds of one part of a fit step.

    Args:
        fixed_s: Seconds, whatever the batch.
        per_token_s: Seconds for each token of the batch, prompts and responses together.
        per_sequence_s: Seconds for each response of the batch.
    """

    fixed_s: float = attrs.field(default=0.0, validator=finite(ge=0))
    per_token_s: float = attrs.field(default=0.0, validator=finite(ge=0))
    per_sequence_s: float = attrs.field(default=0.0, validator=finite(ge=0))

    def seconds(self, work: FitWork) -> float:
        """Return the seconds that a batch takes."""
        batch_s = self.per_token_s * work.tokens + self.per_sequence_s * work.sequences
        return self.fixed_s + batch_s


@attrs.frozen(kw_only=True)
class MeasuredSync:
    """Seconds of a weight sync, by the kind of replica that takes the weights in.

    Args:
        standalone_s: To replicas on devices of their own, all at once.
        hybrid_s: To replicas on the trainer's devices, all at once.
    """

    standalone_s: float = attrs.field(validator=finite(ge=0))
    hybrid_s: float = attrs.field(validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class MeasuredSwitch:
    """Seconds of the steps by which a device is lent and comes back.

    Args:
        sleep_s: To drop a replica's weights and KV cache.
        wake_weights_s: To map memory for its weights.
        wake_kv_cache_s: To map memory for its KV cache.
        offload_parameters_s: To move the trainer's parameters to host memory.
        offload_optimizer_and_gradients_s: To move its optimizer state and gradients there.
        reload_parameters_s: To bring the parameters back.
        reload_optimizer_and_gradients_s: To bring optimizer state and gradients back.
    """

    sleep_s: float = attrs.field(validator=finite(ge=0))
    wake_weights_s: float = attrs.field(validator=finite(ge=0))
    wake_kv_cache_s: float = attrs.field(validator=finite(ge=0))
    offload_parameters_s: float = attrs.field(validator=finite(ge=0))
    offload_optimizer_and_gradients_s: float = attrs.field(validator=finite(ge=0))
    reload_parameters_s: float = attrs.field(validator=finite(ge=0))
    reload_optimizer_and_gradients_s: float = attrs.field(validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class MeasuredMemory:
    """Bytes on each device.

    Args:
        device_bytes: Memory of a device.
        parameters_bytes: What the trainer's parameters take of it.
        optimizer_and_gradients_bytes: What its optimizer state and gradients take.

    Raises:
        InvalidValueError: The training state does not fit.
    """

    device_bytes: float = attrs.field(validator=finite(gt=0))
    parameters_bytes: float = attrs.field(validator=finite(ge=1))
    optimizer_and_gradients_bytes: float = attrs.field(validator=finite(ge=0))

    def __attrs_post_init__(self) -> None:
        if self.device_bytes < self.state_bytes:
            allowed = f"at least the {self.state_bytes:g} bytes of the training state"
            raise InvalidValueError("device_bytes", self.device_bytes, allowed)

    @property
    def state_bytes(self) -> float:
        """All training state on a device."""
        return self.parameters_bytes + self.optimizer_and_gradients_bytes


def _is_fit_step(value: object) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(map(text().accepts, value))


_FIT_STEP: Validator[Mapping[str, MeasuredTiming]] = Validator(
    "a section with a timing key or more, such as update_actor", _is_fit_step
)


@attrs.frozen(kw_only=True)
class MeasuredCosts:
    """A measured machine, complete; stands in place of a model and a GPU.

    Args:
        engine: Inference engine of a replica.
        hybrid_engine: That of a hybrid replica, where it is slower or faster; null: the same.
        fit_step: What a fit step consists of, by timing key; the parts follow each other.
        sync: Weight sync.
        switch: Sleep, wake, offload and reload.
        memory: Sizes.
    """

    engine: MeasuredEngine
    hybrid_engine: MeasuredEngine | None = None
    fit_step: Mapping[str, MeasuredTiming] = attrs.field(validator=_FIT_STEP)
    sync: MeasuredSync
    switch: MeasuredSwitch
    memory: MeasuredMemory

    def fit_seconds(self, work: FitWork) -> dict[str, float]:
        """Return the seconds of one fit step by timing key."""
        return {key: timing.seconds(work) for key, timing in self.fit_step.items()}
