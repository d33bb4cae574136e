"""The policy in the specification's section 6 runs, with nothing changed but its import line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.executors.support import run_training, small_config

from swingshift.executors.app.policy_files import policy_class_in_file
from swingshift.executors.runtime.run import RunOutcome
from swingshift.sdk import registry
from swingshift.sdk.events import ControllerMoved, PolicyDecided

IMPORT = """\
from swingshift.sdk import (
    DynamicSchedulePolicyBase,
    DynamicScheduleContext,
    register_policy,
)
"""
# Source: the specification, section 6, step 1, verbatim below its import.
POLICY = '''
@register_policy("my_policy")
class MyDynamicSchedulePolicy(DynamicSchedulePolicyBase):

    def __init__(self, deactivate_ratio: float = 0.5, only_hybrid: bool = False):
        self.deactivate_ratio = deactivate_ratio
        self.only_hybrid = only_hybrid

    def should_deactivate(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to deactivate hybrid replicas this step."""
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
        """Return minimum buffered-sample count before deactivation proceeds."""
        return int(ctx.required_samples * ctx.trigger_parameter_sync_step * self.deactivate_ratio)

    def should_activate_after_step(
        self,
        global_steps: int,
        is_hybrid_active: bool,
        ctx: DynamicScheduleContext,
    ) -> bool:
        """Return True to re-activate after weight sync."""
        return ctx.total_generated_samples < ctx.expected_samples + ctx.buffer_samples

    # Optional: override to update internal state after each step
    def update_after_step(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass

    # Optional: override to customise request redistribution after activation
    def request_rebalance(self, global_steps: int, ctx: DynamicScheduleContext) -> None:
        pass
'''


def test_policy_of_the_specification_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked, lends as its rule says, and the run ends."""
    # other tests have policies of this name
    others = {name: cls for name, cls in registry._decorated.items() if name != "my_policy"}
    monkeypatch.setattr(registry, "_decorated", others)
    (tmp_path / "my_policy.py").write_text(IMPORT + POLICY)
    policy_class = policy_class_in_file(f"{tmp_path / 'my_policy.py'}:MyDynamicSchedulePolicy")
    policy = registry.build_policy("my_policy", deactivate_ratio=0.25, only_hybrid=False)
    assert type(policy) is policy_class

    ran = run_training(small_config(prompts=64), policy)

    waits = {
        event.answer
        for event in ran.sink.of(PolicyDecided)
        if event.question == "deactivate_wait_samples"
    }
    assert ran.report.outcome is RunOutcome.EXHAUSTED
    assert ran.report.trained_samples == 64
    assert waits == {2}
    assert any(event.after == "hybrid_active" for event in ran.sink.of(ControllerMoved))
