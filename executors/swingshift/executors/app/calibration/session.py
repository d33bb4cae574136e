"""One calibration from a configuration to a file, with a word on every stage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, cast

import attrs
import yaml  # type: ignore[import-untyped]
from rich.console import Console

from swingshift.executors.app.assembly import configured_executor
from swingshift.executors.app.calibration.fitting import fit_costs
from swingshift.executors.app.calibration.probes import Prober, Probes
from swingshift.executors.app.calibration.trial import adjust, run_trial, simulated_config
from swingshift.executors.app.configuration import dump_config
from swingshift.executors.app.train_config import TrainingPlan
from swingshift.executors.simulated.costs.measured import MeasuredCosts
from swingshift.executors.simulated.costs.observed import ObservedSample
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError, UserError

_Tell: TypeAlias = Callable[[str], None]

_MODELLED = "simulated"
_POLICY_KEY = "async_training.dynamic_schedule_policy"
_NEVER_LENDS = "static_fully_async"
_IGNORES_END = "ignore_eos"


def calibrate_to_file(plan: TrainingPlan, out: Path, *, cycles: int, replace: bool) -> None:
    """Measure what a plan's executor takes, and write the scenario that says so.

    Args:
        plan: The run whose executor, model and sizes are measured.
        out: The file.
        cycles: Weight syncs of the trial run.
        replace: Overwrite the file.

    Raises:
        UserError: The file is there already, or the configuration cannot be measured.
    """
    if out.exists() and not replace:
        raise UserError(f"{out} exists; choose another --out, or --force to replace it")
    config = plan.config
    if config.executor.name == _MODELLED:
        raise ConfigError(
            "executor.name: the simulated executor has nothing to measure; choose one that runs"
        )
    console = Console(highlight=False)
    with console.status("measuring") as status:
        found = calibrate(config, cycles=cycles, tell=status.update)
    unfinished = out.with_suffix(f"{out.suffix}.part")
    unfinished.write_text(_scenario(plan, found))
    unfinished.replace(out)
    for line in _summary(found):
        console.print(line)
    console.print(f"written to {out}; try: swingshift bench {out}")


@attrs.frozen(kw_only=True)
class Calibration:
    """What was found out about a machine.

    Attributes:
        costs: What things take in a run.
        samples: Lengths that were seen.
        factor: By how much generating is slower in a run than alone; in ``costs`` already.
    """

    costs: MeasuredCosts
    samples: tuple[ObservedSample, ...]
    factor: float

    def simulated(self, config: RunConfig) -> RunConfig:
        """Return a configuration with the simulated executor in place of the measured one."""
        return simulated_config(config, self.costs, self.samples)


def calibrate(config: RunConfig, *, cycles: int, tell: _Tell) -> Calibration:
    """Measure each verb alone, then what a run makes of it.

    Args:
        config: The run whose executor, model and sizes are measured.
        cycles: Weight syncs of the trial run.
        tell: Hears what is done next.

    Raises:
        UserError: The configuration cannot be measured, or the trial run failed.
    """
    probes = _measure(config, lambda stage: tell(f"measuring: {stage}"))
    costs = fit_costs(probes)
    tell("a trial run")
    short = _of_cycles(config, cycles)
    trial = run_trial(short)
    tell("the same run simulated")
    costs, factor = adjust(costs, short, trial)
    return Calibration(costs=costs, samples=trial.samples, factor=factor)


def _measure(config: RunConfig, tell: _Tell) -> Probes:
    adapter, options = configured_executor(_to_the_budget(config))

    async def run() -> Probes:
        executor, task = adapter.build(config, options)
        return await Prober(executor, task, config, tell).measure()

    with asyncio.Runner(loop_factory=adapter.loop_factory()) as runner:
        return runner.run(run())


def _to_the_budget(config: RunConfig) -> RunConfig:
    """Let responses run to their budget while verbs are measured, where the executor can."""
    adapter, _ = configured_executor(config)
    if _IGNORES_END not in {field.name for field in attrs.fields(adapter.options_type)}:
        return config
    options = {**config.executor.options, _IGNORES_END: True}
    return attrs.evolve(config, executor=attrs.evolve(config.executor, options=options))


def _of_cycles(config: RunConfig, cycles: int) -> RunConfig:
    samples = cycles * config.step_required_samples
    return attrs.evolve(
        config,
        rollout=attrs.evolve(config.rollout, total_rollout_steps=samples),
        trainer=attrs.evolve(config.trainer, test_freq=-1),
    )


def _scenario(plan: TrainingPlan, found: Calibration) -> str:
    """Return the file: a run configuration, and the two runs that ``bench`` compares."""
    config = found.simulated(plan.config)
    benchmark = {
        "description": (
            f"{plan.name}, as executor {plan.config.executor.name} was measured on one machine; in "
            f"a run its engines took {found.factor:.2f} times as long as alone."
        ),
        "seeds": 2,
        "runs": {
            "static": {"label": "static", "overrides": {_POLICY_KEY: _NEVER_LENDS}},
            "dynamic": {"label": "dynamic"},
        },
        "comparisons": [{"run": "dynamic", "versus": "static"}],
        "sources": {"executor": "measured by swingshift calibrate"},
    }
    content = {**dump_config(config), "benchmark": benchmark}
    return cast("str", yaml.safe_dump(content, sort_keys=False))


def _summary(found: Calibration) -> Iterator[str]:
    """Say in a few lines what was found."""
    costs = found.costs
    for name, engine in (("standalone", costs.engine), ("hybrid", costs.hybrid_engine)):
        if engine is not None:
            rates = ", ".join(
                f"{point.running / point.step_s:,.0f} at {point.running}"
                for point in engine.decode.steps
            )
            yield f"decode, {name} (tokens/s at requests running): {rates}"
    fit = "; ".join(
        f"{key} {timing.fixed_s * 1e3:.1f} ms + {timing.per_token_s * 1e6:.2f} us/token"
        for key, timing in costs.fit_step.items()
    )
    yield f"fit step: {fit}"
    switch, sync = costs.switch, costs.sync
    there_s = switch.offload_optimizer_and_gradients_s + switch.offload_parameters_s
    there_s += switch.wake_weights_s + switch.wake_kv_cache_s + sync.hybrid_s
    back_s = switch.sleep_s + switch.reload_parameters_s + switch.reload_optimizer_and_gradients_s
    yield f"lending a device: {there_s * 1e3:.1f} ms, taking it back: {back_s * 1e3:.1f} ms"
    yield f"weight sync: {sync.standalone_s * 1e3:.1f} ms"
    yield f"in a run, engines take {found.factor:.2f} times as long as alone"
