"""The contracts of swingshift: what a policy, an executor and a sink agree on.

What a policy's author needs is importable from here; executor adapters import
`swingshift.sdk.executor`, sinks `swingshift.sdk.events`, formulas `swingshift.sdk.metrics`,
configuration classes `swingshift.sdk.config`.
"""

from swingshift.sdk.context import DynamicScheduleContext, Telemetry
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance, RebalanceScope
from swingshift.sdk.registry import build_policy, policy_names, register_policy

__all__ = [
    "DynamicScheduleContext",
    "DynamicSchedulePolicyBase",
    "Rebalance",
    "RebalanceScope",
    "Telemetry",
    "build_policy",
    "policy_names",
    "register_policy",
]
