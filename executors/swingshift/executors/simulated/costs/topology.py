"""How a trainer spreads a model over its GPUs."""

from __future__ import annotations

import math

import attrs

from swingshift.sdk.validators import InvalidValueError, integer


@attrs.frozen(kw_only=True)
class TrainerTopology:
    """Tensor, pipeline and expert parallelism of a trainer.

    Routed experts are split over ``expert_parallel`` GPUs of a pipeline stage and not further; with
    an ``expert_parallel`` of 1 they are split by tensor parallelism as everything else is.

    Args:
        gpus: GPUs of the trainer, a multiple of each product that a copy of the model is spread
            over.
        tensor_parallel: GPUs that share a layer.
        pipeline_parallel: Stages that the layers are cut into.
        expert_parallel: GPUs that share the routed experts of a layer.

    Raises:
        InvalidValueError: The GPUs cannot be split so; names the argument.
    """

    gpus: int = attrs.field(validator=integer(ge=1))
    tensor_parallel: int = attrs.field(default=1, validator=integer(ge=1))
    pipeline_parallel: int = attrs.field(default=1, validator=integer(ge=1))
    expert_parallel: int = attrs.field(default=1, validator=integer(ge=1))

    def __attrs_post_init__(self) -> None:
        if self.gpus % self.pipeline_parallel:
            raise InvalidValueError(
                "pipeline_parallel",
                self.pipeline_parallel,
                f"a divisor of the {self.gpus} trainer GPUs, for example "
                f"{math.gcd(self.pipeline_parallel, self.gpus)}",
            )
        stage = self.gpus // self.pipeline_parallel
        for name, width in (
            ("tensor_parallel", self.tensor_parallel),
            ("expert_parallel", self.expert_parallel),
        ):
            if stage % width:
                raise InvalidValueError(
                    name,
                    width,
                    f"a divisor of the {stage} GPUs of a pipeline stage ({self.gpus} trainer GPUs, "
                    f"{self.pipeline_parallel} stages), for example {math.gcd(width, stage)}",
                )

    @property
    def dense_shards(self) -> int:
        """GPUs that one copy of the non-expert parameters is spread over."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def expert_shards(self) -> int:
        """GPUs that one copy of the routed experts is spread over."""
        if self.expert_parallel == 1:
            return self.dense_shards
        return self.expert_parallel * self.pipeline_parallel

    @property
    def data_parallel(self) -> int:
        """Copies of the non-expert parameters, each with its own part of the batch."""
        return self.gpus // self.dense_shards

    @property
    def expert_data_parallel(self) -> int:
        """Copies of the routed experts."""
        return self.gpus // self.expert_shards
