"""``swingshift bench local``: pairs of real runs, beside the bound and the simulator's word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

import attrs
from rich.console import Console
from rich.table import Table

from swingshift.benchmarks.measured.bound import CycleBound, cycle_bound
from swingshift.benchmarks.measured.pairs import (
    CONFIDENCE,
    NEVER_LENDS,
    Interval,
    Pair,
    cycle_s,
    ratio_of,
    run_pairs,
)
from swingshift.executors.app.assembly import execute
from swingshift.executors.app.calibration.session import Calibration, calibrate
from swingshift.executors.app.configuration import load_config
from swingshift.sdk.config import RunConfig

LOADS = ("rollout_bound", "training_bound")
"""Packaged loads, in the order in which they are run."""


@attrs.frozen(kw_only=True)
class Plan:
    """How much to run.

    Attributes:
        policy: The one that lends.
        pairs: Pairs of runs for each load.
        overrides: ``key=value`` for each load.
        trial_cycles: Weight syncs of the calibration's trial run.
        is_quick: Whether a quarter of the prompts is enough.
    """

    policy: str
    pairs: int
    overrides: Sequence[str]
    trial_cycles: int
    is_quick: bool


@attrs.frozen(kw_only=True)
class LoadResult:
    """What one load came to.

    Attributes:
        load: Its name.
        pairs: The runs.
        ratio: Seconds per trained sample with lending over those without.
        bound: From the machine's calibration.
        predicted_s: Mean cycle of the same runs on the simulator: static, dynamic.
    """

    load: str
    pairs: tuple[Pair, ...]
    ratio: Interval
    bound: CycleBound
    predicted_s: tuple[float, float]

    @property
    def measured_s(self) -> tuple[float, float]:
        """Mean cycle measured: static, dynamic."""
        return (
            cycle_s([pair.static for pair in self.pairs]),
            cycle_s([pair.dynamic for pair in self.pairs]),
        )

    @property
    def prediction_errors(self) -> tuple[float, float]:
        """By what share the simulator is off: static, dynamic."""
        measured, predicted = self.measured_s, self.predicted_s
        return predicted[0] / measured[0] - 1.0, predicted[1] / measured[1] - 1.0


def run_local(plan: Plan, *, screen: Console, status: Console, json_file: Path | None) -> None:
    """Run every load and show what came of it.

    Args:
        plan: How much.
        screen: Shows results.
        status: Shows progress.
        json_file: Takes the result for programs; None for none.

    Raises:
        UserError: A run failed, or something in the overrides cannot be used.
    """
    results = [_run_load(load, plan, status) for load in LOADS]
    screen.print(_table(results))
    for result in results:
        screen.print(_sentence(result))
    if json_file is not None:
        document = {"policy": plan.policy, "loads": [_document(result) for result in results]}
        json_file.write_text(json.dumps(document, indent=2) + "\n")


def load_of(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a packaged load.

    Raises:
        ConfigError: An override cannot be used.
    """
    packaged = files("swingshift.benchmarks.measured") / "loads" / f"{name}.yaml"
    with as_file(packaged) as path:
        return load_config(path, overrides)


def _run_load(load: str, plan: Plan, status: Console) -> LoadResult:
    config = load_of(load, plan.overrides)
    if plan.is_quick:
        prompts = config.rollout.total_rollout_steps // 4
        config = attrs.evolve(
            config, rollout=attrs.evolve(config.rollout, total_rollout_steps=prompts)
        )
    with status.status(f"{load}: calibrating") as line:
        calibration = calibrate(
            config, cycles=plan.trial_cycles, tell=lambda what: line.update(f"{load}: {what}")
        )

        def tell(done: int, total: int) -> None:
            line.update(f"{load}: {done} of {total} runs")

        pairs = run_pairs(config, plan.policy, plan.pairs, tell)
        line.update(f"{load}: the same runs simulated")
        predicted = _predict(config, calibration, plan)
    return LoadResult(
        load=load,
        pairs=pairs,
        ratio=ratio_of(pairs),
        bound=cycle_bound(config, calibration.costs, calibration.samples),
        predicted_s=predicted,
    )


def _predict(config: RunConfig, calibration: Calibration, plan: Plan) -> tuple[float, float]:
    simulated = calibration.simulated(config)
    seeded = [attrs.evolve(simulated, seed=config.seed + number) for number in range(plan.pairs)]
    static, dynamic = (
        cycle_s([execute(each, policy=policy) for each in seeded])
        for policy in (NEVER_LENDS, plan.policy)
    )
    return static, dynamic


def _table(results: Sequence[LoadResult]) -> Table:
    table = Table(title="seconds per cycle, mean over all runs")
    for heading in ("load", "runs", "measured", "simulated", "off by"):
        table.add_column(heading, justify="left" if heading in ("load", "runs") else "right")
    for result in results:
        rows = zip(
            ("static (calibrated on)", "dynamic"),
            result.measured_s,
            result.predicted_s,
            result.prediction_errors,
            strict=True,
        )
        for name, measured, predicted, error in rows:
            table.add_row(result.load, name, f"{measured:.3f}", f"{predicted:.3f}", f"{error:+.1%}")
    return table


def _sentence(result: LoadResult) -> str:
    ratio, bound = result.ratio, result.bound
    return (
        f"{result.load}: time per trained sample {ratio.value:.3f} of static's, {CONFIDENCE:.0%} "
        f"interval {ratio.low:.3f} to {ratio.high:.3f} ({len(result.pairs)} pairs); the bound of "
        f"this machine is {bound.ratio:.3f} (full engines, free switches; here a hybrid "
        f"replica runs at {bound.hybrid_speed:.2f} of a standalone one, and a round trip takes "
        f"{bound.switch_s * 1e3:.0f} ms)"
    )


def _document(result: LoadResult) -> dict[str, object]:
    static_s, dynamic_s = result.measured_s
    return {
        "load": result.load,
        "ratio": attrs.asdict(result.ratio),
        "pairs": [
            {
                "seed": pair.seed,
                "ratio": pair.ratio,
                "static_wall_s": pair.static.wall_clock_s,
                "dynamic_wall_s": pair.dynamic.wall_clock_s,
            }
            for pair in result.pairs
        ],
        "bound": {**attrs.asdict(result.bound), "ratio": result.bound.ratio},
        "cycle_s": {
            "static": {"measured": static_s, "simulated": result.predicted_s[0]},
            "dynamic": {"measured": dynamic_s, "simulated": result.predicted_s[1]},
        },
    }
