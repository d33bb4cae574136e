"""AdamW over a model's parameters, with its state in memory from the first moment."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed
from torch import Tensor

from swingshift.executors.rl.options import LearningOptions

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer:
    """AdamW with clipping. State that appeared with the first step could not be planned for.

    Attributes:
        steps: Steps taken; skipped ones do not count.
    """

    def __init__(
        self, parameters: Iterable[Tensor], learning: LearningOptions, learning_rate: float
    ) -> None:
        """Make the state of parameters that need gradients.

        Args:
            parameters: Each once.
            learning: Decays and clipping.
            learning_rate: Step size.
        """
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._max_norm = learning.max_grad_norm
        self._adam = torch.optim.AdamW(
            self._parameters,
            lr=learning_rate,
            betas=(learning.beta1, learning.beta2),
            weight_decay=learning.weight_decay,
        )
        self.steps = 0
        for parameter in self._parameters:
            # written to, because memory that was never touched is not there
            moments = {name: torch.empty_like(parameter).fill_(0.0) for name in _MOMENTS}
            self._adam.state[parameter] = {"step": torch.tensor(0.0), **moments}

    def state(self) -> dict[str, Tensor]:
        """Return the moments by name, in the memory that they are in."""
        return {
            f"{index}.{name}": self._adam.state[parameter][name]
            for index, parameter in enumerate(self._parameters)
            for name in _MOMENTS
        }

    @property
    def gradient_bytes(self) -> int:
        """Memory of the gradients, while there are any."""
        return sum(parameter.numel() * parameter.element_size() for parameter in self._parameters)

    def set_steps(self, steps: int) -> None:
        """Go on as after so many steps; the moments are set through `state`."""
        self.steps = steps
        for parameter in self._parameters:
            self._adam.state[parameter]["step"].fill_(float(steps))

    def step(self, world: int) -> float | None:
        """Sum gradients over ranks, clip, step, and drop the gradients.

        Args:
            world: Ranks.

        Returns:
            The norm before clipping; None, and nothing changed, if it is not finite.
        """
        if world > 1:
            self._sum_over_ranks()
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._max_norm))
        is_finite = math.isfinite(norm)
        if is_finite:
            self._adam.step()
            self.steps += 1
        self._adam.zero_grad(set_to_none=True)
        return norm if is_finite else None

    def _sum_over_ranks(self) -> None:
        for parameter in self._parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        pieces = torch.split(flat, [gradient.numel() for gradient in gradients])
        for gradient, piece in zip(gradients, pieces, strict=True):
            gradient.copy_(piece.view_as(gradient))
