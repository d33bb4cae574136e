"""A calibration of the simulated executor on a measured machine: what comes out is what went in."""

from __future__ import annotations

import asyncio
from functools import partial

import attrs
import pytest

from swingshift.executors.app.assembly import configured_executor
from swingshift.executors.app.calibration.fitting import fit_costs
from swingshift.executors.app.calibration.probes import Prober, Probes
from swingshift.executors.app.calibration.trial import adjust, run_trial, simulated_config
from swingshift.executors.app.configuration import load_config
from swingshift.executors.simulated.costs.measured import (
    DecodePoint,
    MeasuredCosts,
    MeasuredDecode,
    MeasuredEngine,
    MeasuredMemory,
    MeasuredPrefill,
    MeasuredSwitch,
    MeasuredSync,
    MeasuredTiming,
)
from swingshift.executors.simulated.costs.observed import ObservedSample
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError

ENGINE = MeasuredEngine(
    decode=MeasuredDecode(
        steps=(
            DecodePoint(running=1, step_s=0.010),
            DecodePoint(running=4, step_s=0.013),
            DecodePoint(running=16, step_s=0.025),
        ),
        per_context_token_s=1e-6,
    ),
    prefill=MeasuredPrefill(fixed_s=0.02, per_token_s=1e-4),
)
MACHINE = MeasuredCosts(
    engine=ENGINE,
    fit_step={
        "adv": MeasuredTiming(fixed_s=0.01),
        "update_actor": MeasuredTiming(fixed_s=0.1, per_token_s=1e-4, per_sequence_s=1e-3),
    },
    sync=MeasuredSync(standalone_s=0.05, hybrid_s=0.04),
    switch=MeasuredSwitch(
        sleep_s=0.03,
        wake_weights_s=0.01,
        wake_kv_cache_s=0.02,
        offload_parameters_s=0.06,
        offload_optimizer_and_gradients_s=0.12,
        reload_parameters_s=0.07,
        reload_optimizer_and_gradients_s=0.14,
    ),
    memory=MeasuredMemory(
        device_bytes=1000.0, parameters_bytes=100.0, optimizer_and_gradients_bytes=300.0
    ),
)
FULL = tuple(ObservedSample(prompt_tokens=8, response_tokens=(64,) * 4) for _ in range(4))
"""Responses that run to their budget, as they do while verbs are measured."""

MIXED = tuple(
    ObservedSample(prompt_tokens=8, response_tokens=(tokens, 64 - tokens, 30, 40))
    for tokens in (5, 20, 33, 50)
)


def machine_config(
    costs: MeasuredCosts = MACHINE, samples: tuple[ObservedSample, ...] = FULL
) -> RunConfig:
    """Return a run of four cycles on a measured machine of one trainer and one rollout device."""
    config = load_config(
        {
            "data": {"max_prompt_length": 16, "max_response_length": 64},
            "actor_rollout_ref": {
                "actor": {"ppo_mini_batch_size": 8},
                "rollout": {"n": 4, "max_num_seqs": 16},
            },
            "trainer": {"nnodes": 1, "n_gpus_per_node": 1},
            "rollout": {"nnodes": 1, "n_gpus_per_node": 1, "total_rollout_steps": 64},
            "async_training": {
                "use_dynamic_resource_scheduling": True,
                "trigger_parameter_sync_step": 2,
            },
        }
    )
    return simulated_config(config, costs, samples)


def probe(config: RunConfig) -> Probes:
    """Measure the machine of a configuration through its verbs."""
    adapter, options = configured_executor(config)

    async def run() -> Probes:
        executor, task = adapter.build(config, options)
        return await Prober(executor, task, config, lambda stage: None).measure()

    with asyncio.Runner(loop_factory=adapter.loop_factory()) as runner:
        return runner.run(run())


def test_a_machine_is_found_again_through_its_verbs() -> None:
    """Switches and syncs exactly, engines and fit steps as the same function."""
    found = fit_costs(probe(machine_config()))
    assert found.switch == attrs.evolve(MACHINE.switch, **_rounded(found.switch))
    assert found.sync.standalone_s == pytest.approx(0.05)
    assert found.sync.hybrid_s == pytest.approx(0.04)
    assert found.memory == MACHINE.memory
    for engine in (found.engine, found.hybrid_engine):
        assert engine is not None
        for point in engine.decode.steps:
            wanted = ENGINE.step(point.running, 0.0).base_s
            assert point.step_s == pytest.approx(wanted, rel=0.05)
        assert engine.prefill.fixed_s == pytest.approx(0.02, rel=0.05)
    assert found.fit_step["adv"].fixed_s == pytest.approx(0.01)


def _rounded(switch: MeasuredSwitch) -> dict[str, float]:
    """Return what was measured where it is right but for rounding."""
    wanted = attrs.asdict(MACHINE.switch)
    return {
        name: value
        for name, value in attrs.asdict(switch).items()
        if value == pytest.approx(wanted[name])
    }


def test_a_trial_agrees_with_a_machine_that_is_right() -> None:
    """Nothing is slower in a run than alone here."""
    config = machine_config(samples=MIXED)
    trial = run_trial(config)
    adjusted, factor = adjust(MACHINE, config, trial)
    assert factor == pytest.approx(1.0, abs=0.03)
    assert adjusted.fit_step["update_actor"].per_token_s == pytest.approx(1e-4, rel=0.01)


@pytest.mark.parametrize("factor", [0.5, 1.7])
def test_a_trial_shows_by_how_much_engines_are_slower(factor: float) -> None:
    """The costs are as the run had them, whatever the verbs took alone."""
    decode = ENGINE.decode
    alone = attrs.evolve(
        MACHINE,
        engine=attrs.evolve(
            ENGINE,
            decode=attrs.evolve(
                decode,
                steps=tuple(
                    attrs.evolve(point, step_s=point.step_s / factor) for point in decode.steps
                ),
                per_context_token_s=decode.per_context_token_s / factor,
            ),
            prefill=MeasuredPrefill(fixed_s=0.02 / factor, per_token_s=1e-4 / factor),
        ),
    )
    config = machine_config(samples=MIXED)
    adjusted, found = adjust(alone, config, run_trial(config))
    assert found == pytest.approx(factor, rel=0.05)
    assert adjusted.engine.decode.steps[0].step_s == pytest.approx(0.010, rel=0.05)


def test_a_trial_that_is_too_short_says_so() -> None:
    """One cycle has no steady state."""
    config = machine_config()
    short = attrs.evolve(config, rollout=attrs.evolve(config.rollout, total_rollout_steps=16))
    with pytest.raises(UserError, match="too short; ask for more cycles"):
        run_trial(short)


@pytest.mark.parametrize(
    ("section", "key", "value", "kind"),
    [
        ("rollout", "nnodes", 0, "standalone"),
        ("async_training", "use_dynamic_resource_scheduling", False, "hybrid"),
    ],
)
def test_both_kinds_of_replicas_are_needed(
    section: str, key: str, value: object, kind: str
) -> None:
    """The error says which is missing and which key gives it."""
    config = machine_config()
    changed = partial(attrs.evolve, getattr(config, section))(**{key: value})
    with pytest.raises(UserError, match=f"needs a {kind} replica"):
        probe(attrs.evolve(config, **{section: changed}))
