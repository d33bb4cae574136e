"""What the optimizer steps of one network came to, over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed


class StepMetrics:
    """Means per token over the steps of one batch; those of a skipped step do not count.

    A step whose gradient is not finite has sums that are not finite either.
    """

    def __init__(self, network: str, names: Sequence[str]) -> None:
        """Begin before the first step.

        Args:
            network: Prefix of every name.
            names: What is summed over tokens; the same in every rank.
        """
        self._network = network
        self._sums = dict.fromkeys(names, 0.0)
        self._tokens = 0
        self._norms: list[float] = []
        self._skipped = 0

    def add(self, sums: Mapping[str, float], tokens: int, norm: float | None) -> None:
        """Count one step.

        Args:
            sums: By name, over the tokens of this rank; a name may be missing.
            tokens: Trained tokens of the step, over all ranks.
            norm: Of its gradient over all ranks; None if the step was skipped.
        """
        if norm is None:
            self._skipped += 1
            return
        self._norms.append(norm)
        self._tokens += tokens
        for name, total in sums.items():
            self._sums[name] += total

    def means(self, world: int, device: torch.device) -> dict[str, float]:
        """Return the metrics by full name, the same in every rank; 0.0 if no step was taken.

        Args:
            world: Ranks; if several, all of them must call this.
            device: Where ranks exchange tensors.
        """
        totals = summed_over_ranks(tuple(self._sums.values()), world, device)
        means = {
            name: total / max(1, self._tokens)
            for name, total in zip(self._sums, totals, strict=True)
        }
        means["grad_norm"] = sum(self._norms) / max(1, len(self._norms))
        means["skipped_steps"] = float(self._skipped)
        return {f"{self._network}/{name}": mean for name, mean in means.items()}


def summed_over_ranks(
    numbers: Sequence[float], world: int, device: torch.device
) -> tuple[float, ...]:
    """Return sums over ranks; if there are several, all of them must call this."""
    if world == 1:
        return tuple(numbers)
    totals = torch.tensor(numbers, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(totals)
    return tuple(totals.tolist())
