"""From measured durations to the costs that explain them best. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls  # type: ignore[import-untyped]

from swingshift.executors.app.calibration.probes import DecodeProbe, FitProbe, Probes
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

Floats = npt.NDArray[np.float64]

# A step or a pass takes some time, whatever a fit to noisy figures says.
_LEAST_S = 1e-6
_TINY = 1e-300


def fit_costs(probes: Probes) -> MeasuredCosts:
    """Return the measured machine that explains probes best."""
    seconds = probes.seconds
    all_here, without_optimizer, without_all = probes.free_bytes
    return MeasuredCosts(
        engine=fit_engine(probes.decode),
        hybrid_engine=fit_engine(probes.hybrid_decode),
        fit_step=fit_timings(probes.fit),
        sync=MeasuredSync(standalone_s=seconds["sync_standalone"], hybrid_s=seconds["sync_hybrid"]),
        switch=MeasuredSwitch(
            sleep_s=seconds["sleep"],
            wake_weights_s=seconds["wake_weights"],
            wake_kv_cache_s=seconds["wake_kv_cache"],
            offload_parameters_s=seconds["offload_parameters"],
            offload_optimizer_and_gradients_s=seconds["offload_optimizer_and_gradients"],
            reload_parameters_s=seconds["reload_parameters"],
            reload_optimizer_and_gradients_s=seconds["reload_optimizer_and_gradients"],
        ),
        memory=MeasuredMemory(
            device_bytes=float(without_all),
            parameters_bytes=float(max(1, without_all - without_optimizer)),
            optimizer_and_gradients_bytes=float(max(0, without_optimizer - all_here)),
        ),
    )


def fit_engine(probes: Sequence[DecodeProbe]) -> MeasuredEngine:
    """Return what explains how long requests that run together take.

    A prefill pass costs a fixed time and so much per token, and draws the first token of each
    request. Every further token is a step, whose time depends on how many run, and grows with the
    context.

    Args:
        probes: For each number of running requests two or more lengths, one of them a token.
    """
    levels = sorted({probe.running for probe in probes})
    # unknowns: prefill fixed, prefill per token, context, one step time per level
    rows = np.zeros((len(probes), 3 + len(levels)))
    for row, probe in zip(rows, probes, strict=True):
        steps = probe.new_tokens - 1
        row[0] = 1.0
        row[1] = probe.prompt_tokens
        # the context begins with the prompt and the token that came with it
        begun = probe.prompt_tokens + probe.running
        row[2] = steps * begun + probe.running * steps * (steps - 1) / 2
        row[3 + levels.index(probe.running)] = steps
    took = np.array([probe.seconds for probe in probes])
    # a probe counts by its relative error, or the longest alone would decide
    found = _not_negative(rows / took[:, None], np.ones_like(took))
    # a step with more requests is never quicker: where it seems so, it is noise
    steps_s = np.maximum.accumulate(np.maximum(found[3:], _LEAST_S))
    return MeasuredEngine(
        decode=MeasuredDecode(
            steps=tuple(
                DecodePoint(running=running, step_s=float(step_s))
                for running, step_s in zip(levels, steps_s, strict=True)
            ),
            per_context_token_s=float(found[2]),
        ),
        prefill=MeasuredPrefill(fixed_s=float(found[0]), per_token_s=float(found[1])),
    )


def fit_timings(probes: Sequence[FitProbe]) -> Mapping[str, MeasuredTiming]:
    """Return what explains the seconds of fit steps of several sizes, by timing key.

    What the verb takes beyond its parts is counted to the last of them.
    """
    keys = list(probes[0].timing_s)
    took = {key: np.array([probe.timing_s[key] for probe in probes]) for key in keys}
    beyond = np.array([probe.seconds - sum(probe.timing_s.values()) for probe in probes])
    took[keys[-1]] = took[keys[-1]] + np.maximum(beyond, 0.0)
    rows = np.array([[1.0, probe.tokens, probe.sequences] for probe in probes])
    timings = {}
    for key in keys:
        fixed_s, per_token_s, per_sequence_s = _not_negative(rows, took[key])
        timings[key] = MeasuredTiming(
            fixed_s=float(fixed_s),
            per_token_s=float(per_token_s),
            per_sequence_s=float(per_sequence_s),
        )
    return timings


def _not_negative(rows: Floats, wanted: Floats) -> Floats:
    """Return the least-squares solution without negative numbers.

    Each unknown is a duration, which noise alone can make negative.

    Source: C. Lawson, R. Hanson, "Solving least squares problems", 1974, chapter 23.
    """
    # columns of one size, because seconds per token and seconds per pass differ by orders
    scale = np.maximum(np.abs(rows).max(axis=0), _TINY)
    solution, _ = nnls(rows / scale, wanted)
    found: Floats = solution / scale
    return found
