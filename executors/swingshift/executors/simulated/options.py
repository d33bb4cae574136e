"""What a scenario file says below ``executor:`` when the executor is the simulated one."""

from __future__ import annotations

import attrs

from swingshift.executors.simulated.costs.decode import DecodeParameters
from swingshift.executors.simulated.costs.episodes import EpisodeModel
from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.lengths import LengthModel
from swingshift.executors.simulated.costs.measured import MeasuredCosts
from swingshift.executors.simulated.costs.memory import MemoryParameters
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.executors.simulated.costs.training import TrainingParameters
from swingshift.executors.simulated.costs.transfer import TransferParameters
from swingshift.executors.simulated.costs.variation import Variation
from swingshift.executors.simulated.faults import FaultPlan
from swingshift.sdk.validators import InvalidValueError, integer

_MODELLED = {
    "model": None,
    "gpu": None,
    "decode": DecodeParameters(),
    "training": TrainingParameters(),
    "transfer": TransferParameters(),
    "memory": MemoryParameters(),
    "reference_model": False,
    "critic": False,
}
_EITHER = "a machine is modelled by model and gpu, or measured takes the place of both"


@attrs.frozen(kw_only=True)
class SimulatedOptions:
    """The modelled world: what is trained on what, how well it runs, how long answers are.

    Topology comes from the run's own configuration (nodes, GPUs per node, parallel sizes). What
    things take is modelled from ``model``, ``gpu`` and the sections of efficiencies, or is as
    ``measured`` says.

    Attributes:
        model: The language model; null beside ``measured``.
        gpu: The GPU, the same everywhere; null beside ``measured``.
        measured: What a real machine took, in place of ``model``, ``gpu``, ``decode``,
            ``training``, ``transfer``, ``memory``, ``reference_model`` and ``critic``; null: the
            machine is modelled.
        lengths: Prompt and response lengths.
        episodes: Turns of a response and the tools between them; a single turn by default.
        decode: Efficiencies of the inference engine.
        training: Efficiencies of the training engine.
        transfer: Weight sync, sleep, wake and offload.
        memory: Bytes of training state and engine reserves.
        variation: Noise, outliers and schedules on every modelled duration except decoding.
        reference_model: Whether a reference model scores each batch (timing key ``ref``).
        critic: Whether a critic is trained (timing keys ``values`` and ``update_critic``).
        cold_start_s: Seconds to restart a killed replica.
        validation_prompts: Prompts of the validation set.
        faults: What goes wrong; nothing by default.

    Raises:
        InvalidValueError: The machine is neither modelled nor measured, or both.
    """

    model: ModelSpec | None = None
    gpu: GpuSpec | None = None
    measured: MeasuredCosts | None = None
    lengths: LengthModel = attrs.field(factory=LengthModel)
    episodes: EpisodeModel = attrs.field(factory=EpisodeModel)
    decode: DecodeParameters = attrs.field(factory=DecodeParameters)
    training: TrainingParameters = attrs.field(factory=TrainingParameters)
    transfer: TransferParameters = attrs.field(factory=TransferParameters)
    memory: MemoryParameters = attrs.field(factory=MemoryParameters)
    variation: Variation = attrs.field(factory=Variation)
    reference_model: bool = False
    critic: bool = False
    cold_start_s: float = 90.0
    validation_prompts: int = attrs.field(default=0, validator=integer(ge=0))
    faults: FaultPlan = attrs.field(factory=FaultPlan)

    def __attrs_post_init__(self) -> None:
        if self.measured is None:
            self.model_and_gpu()
            return
        for name, unused in _MODELLED.items():
            given = getattr(self, name)
            if given != unused:
                allowed = "nothing beside measured, which takes its place"
                raise InvalidValueError(name, given, allowed)

    def model_and_gpu(self) -> tuple[ModelSpec, GpuSpec]:
        """Return what a modelled machine is made of.

        Raises:
            InvalidValueError: There is no model or no GPU; names which.
        """
        if self.model is None:
            raise InvalidValueError("model", None, f"a section or a name: {_EITHER}")
        if self.gpu is None:
            raise InvalidValueError("gpu", None, f"a section or a name: {_EITHER}")
        return self.model, self.gpu
