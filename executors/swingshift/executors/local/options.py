"""What a configuration says below ``executor:`` when the executor is the local one."""

from __future__ import annotations

import attrs

from swingshift.executors.rl.options import LearningOptions, ModelOptions, TaskOptions
from swingshift.sdk.validators import (
    Validator,
    boolean,
    finite,
    optional,
    to_float,
    to_optional_float,
)

_DEVICES = ("cpu", "cuda")
_DEVICE: Validator[str] = Validator("cpu or cuda", lambda value: value in _DEVICES)


@attrs.frozen(kw_only=True)
class LocalOptions:
    """Real training on this machine: what is trained on which devices.

    How many devices train and how many generate comes from the run's own configuration
    (``trainer`` and ``rollout``).

    Attributes:
        model: The language model.
        task: Prompts and rewards.
        learning: The arithmetic of training.
        device: ``cpu``: a device is one core; ``cuda``: a device is one GPU.
        share_devices: Allow more devices than there are cores or GPUs; they then take turns.
        device_memory_gib: Memory of one CPU device, in GiB, of which the measured memory of its
            processes is taken; null divides the machine's memory by the devices.
        training_reserve_gib: Memory beyond weights, gradients and optimizer state that must be free
            on a device before it trains, in GiB.
        ignore_eos: Let every response run to its budget, for measurements.
    """

    model: ModelOptions = attrs.field(factory=ModelOptions)
    task: TaskOptions
    learning: LearningOptions = attrs.field(factory=LearningOptions)
    device: str = attrs.field(default="cpu", validator=_DEVICE)
    share_devices: bool = attrs.field(default=False, validator=boolean())
    device_memory_gib: float | None = attrs.field(
        default=None, converter=to_optional_float, validator=optional(finite(gt=0.0))
    )
    training_reserve_gib: float = attrs.field(
        default=0.25, converter=to_float, validator=finite(ge=0.0)
    )
    ignore_eos: bool = attrs.field(default=False, validator=boolean())
