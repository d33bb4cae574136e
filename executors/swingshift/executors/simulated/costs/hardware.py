"""GPUs as the cost models see them: capacity and peak rates from datasheets."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import attrs

from swingshift.sdk.validators import finite

# PCIe 5.0 x16: 32 GT/s on 16 lanes, about 64 GB/s in each direction; all three GPUs below use it.
PCIE5_X16_BYTES_PER_S = 64e9
# NVLink 4: 900 GB/s is the sum of both directions, a transfer gets half of it.
NVLINK4_BYTES_PER_S = 450e9
# One 400 Gbit/s port per GPU, as in the vendor's eight-GPU reference servers; clusters differ.
NETWORK_400G_BYTES_PER_S = 50e9


@attrs.frozen(kw_only=True)
class GpuSpec:
    """One GPU with its links; peak rates, before any efficiency.

    A configuration may name one of the `presets` in place of the section.

    Args:
        name: How messages and reports call it.
        memory_bytes: Device memory.
        memory_bandwidth_bytes_per_s: Peak rate of the device memory.
        bf16_flops_per_s: Peak dense bf16 rate (without sparsity).
        host_link_bytes_per_s: GPU to host memory, one direction.
        nvlink_bytes_per_s: GPU to GPU within a node, one direction.
        network_bytes_per_s: This GPU's part of the node's network, one direction.
    """

    presets: ClassVar[Mapping[str, GpuSpec]]

    name: str
    memory_bytes: float = attrs.field(validator=finite(gt=0))
    memory_bandwidth_bytes_per_s: float = attrs.field(validator=finite(gt=0))
    bf16_flops_per_s: float = attrs.field(validator=finite(gt=0))
    host_link_bytes_per_s: float = attrs.field(
        default=PCIE5_X16_BYTES_PER_S, validator=finite(gt=0)
    )
    nvlink_bytes_per_s: float = attrs.field(default=NVLINK4_BYTES_PER_S, validator=finite(gt=0))
    network_bytes_per_s: float = attrs.field(
        default=NETWORK_400G_BYTES_PER_S, validator=finite(gt=0)
    )


H20 = GpuSpec(
    name="H20",
    memory_bytes=96e9,
    memory_bandwidth_bytes_per_s=4.0e12,
    bf16_flops_per_s=148e12,
)
"""Source: NVIDIA H20 datasheet (96 GB HBM3, 4.0 TB/s, 148 TFLOP/s dense bf16, NVLink 900 GB/s)."""

H100 = GpuSpec(
    name="H100",
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=3.35e12,
    bf16_flops_per_s=990e12,
)
"""Source: NVIDIA H100 SXM datasheet (80 GB, 3.35 TB/s, 990 TFLOP/s dense bf16, NVLink 900 GB/s)."""

H200 = GpuSpec(
    name="H200",
    memory_bytes=141e9,
    memory_bandwidth_bytes_per_s=4.8e12,
    bf16_flops_per_s=990e12,
)
"""Source: NVIDIA H200 SXM datasheet (141 GB, 4.8 TB/s, 990 TFLOP/s dense bf16, NVLink 900 GB/s)."""

GpuSpec.presets = MappingProxyType({spec.name: spec for spec in (H20, H100, H200)})
