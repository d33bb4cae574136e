"""How long weights and training state take to move: sync, sleep, wake, offload and reload.

Every action is bytes over an attained rate plus a fixed latency. With the default parameters, and
the trainer on 16 GPUs, these figures come out near the published ones for systems of the same kind
(all on other models and machines, so the order of magnitude is what is claimed):

- weight sync of a 30B model from 16 to 16 GPUs: about 4.5 s, published 4.4 s with a checkpoint
  engine; of a 235B model from 64 to 64 GPUs: about 32 s, published 23.7 s;
- activating a 30B hybrid replica (offload, wake, sync, wake): about 5.5 s, published 6.1 to 6.3 s
  for 8B to 30B;
- deactivating it (sleep, reload): about 3 s, published 3.2 to 4.4 s;
- waking a sleeping engine whose weights were dropped: 1 to 2 s, published 0.8 to 2.6 s.

Within one node (7B from 4 to 4 GPUs, published 0.02 s) transfers take NVLink and are faster than
modelled here.
"""

from __future__ import annotations

import attrs

from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.sdk.validators import finite, integer


@attrs.frozen(kw_only=True)
class TransferParameters:
    """Attained shares of link rates, and fixed latencies in seconds.

    The defaults are assumptions, chosen to land near the published figures in the module's text.

    Args:
        network_efficiency: Share of a GPU's network rate that a weight broadcast reaches.
        gather_efficiency: Share of the NVLink rate at which a trainer gathers its shards into whole
            tensors and converts them for the engine.
        host_link_efficiency: Share of the host link that offload and reload reach with all GPUs of
            a node at once.
        sync_latency_s: Per weight sync: group set-up, metadata, cache reset.
        sleep_latency_s: Per sleep: flushing, unmapping, collecting garbage.
        wake_weights_latency_s: Per wake of the weights: mapping memory.
        wake_kv_cache_latency_s: Per wake of the KV cache: mapping memory, block tables.
        offload_latency_s: Per offload or reload of a part of the training state.
    """

    network_efficiency: float = attrs.field(default=0.45, validator=finite(gt=0, le=1))
    gather_efficiency: float = attrs.field(default=0.1, validator=finite(gt=0, le=1))
    host_link_efficiency: float = attrs.field(default=0.4, validator=finite(gt=0, le=1))
    sync_latency_s: float = attrs.field(default=0.3, validator=finite(ge=0))
    sleep_latency_s: float = attrs.field(default=1.0, validator=finite(ge=0))
    wake_weights_latency_s: float = attrs.field(default=0.8, validator=finite(ge=0))
    wake_kv_cache_latency_s: float = attrs.field(default=0.8, validator=finite(ge=0))
    offload_latency_s: float = attrs.field(default=0.4, validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class TransferModel:
    """Seconds of every transfer between a trainer and its replicas.

    Args:
        model: Whose weights move.
        gpu: Whose links they take.
        parameters: Efficiencies and latencies.
    """

    model: ModelSpec
    gpu: GpuSpec
    parameters: TransferParameters = attrs.field(factory=TransferParameters)

    @property
    def gather_s(self) -> float:
        """Seconds in which every trainer GPU takes in one copy of the weights, in buckets."""
        rate = self.gpu.nvlink_bytes_per_s * self.parameters.gather_efficiency
        return self.model.weight_bytes / rate

    def sync_standalone_s(self) -> float:
        """Return the seconds of a weight sync to replicas on GPUs of their own.

        Gathered buckets are broadcast over the network; every receiving GPU takes in all of them
        and keeps its slice. The broadcast is pipelined through the receivers, so their number does
        not count.
        """
        rate = self.gpu.network_bytes_per_s * self.parameters.network_efficiency
        return self.parameters.sync_latency_s + self.gather_s + self.model.weight_bytes / rate

    def sync_hybrid_s(self, tensor_parallel: int) -> float:
        """Return the seconds of a weight sync to replicas on the trainer's own GPUs.

        Gathered buckets are handed over within the GPU, which reads and writes the slice it keeps.

        Args:
            tensor_parallel: GPUs of one replica.
        """
        copied = 2.0 * self._slice_bytes(tensor_parallel)
        copy_s = copied / self.gpu.memory_bandwidth_bytes_per_s
        return self.parameters.sync_latency_s + self.gather_s + copy_s

    def sleep_s(self) -> float:
        """Return the seconds to drop a replica's weights and KV cache."""
        return self.parameters.sleep_latency_s

    def wake_weights_s(self) -> float:
        """Return the seconds to map memory for a replica's weights."""
        return self.parameters.wake_weights_latency_s

    def wake_kv_cache_s(self) -> float:
        """Return the seconds to map memory for a replica's KV cache, which comes back empty."""
        return self.parameters.wake_kv_cache_latency_s

    def offload_s(self, bytes_per_gpu: float) -> float:
        """Return the seconds to move a part of the training state to host memory, or back.

        All GPUs move their part at once, so the time is that of one; both directions cost the same.

        Args:
            bytes_per_gpu: Bytes that each GPU moves, at least 0.
        """
        return self.parameters.offload_latency_s + self._host_link_s(bytes_per_gpu)

    def _slice_bytes(self, tensor_parallel: int) -> float:
        integer(ge=1).check("tensor_parallel", tensor_parallel)
        return self.model.weight_bytes / tensor_parallel

    def _host_link_s(self, moved_bytes: float) -> float:
        rate = self.gpu.host_link_bytes_per_s * self.parameters.host_link_efficiency
        return moved_bytes / rate
