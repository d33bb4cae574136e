"""The built-in scheduling policies, one file each."""

from swingshift.policies.default import DefaultDynamicSchedulePolicy
from swingshift.policies.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.policies.static_fully_async import StaticFullyAsyncPolicy

__all__ = [
    "DefaultDynamicSchedulePolicy",
    "FixedRatioDynamicSchedulePolicy",
    "StaticFullyAsyncPolicy",
]
