"""The least time a cycle can take on a measured machine, whatever the policy.

It is the fluid bound: work that can be cut as finely as one likes, full engines, and switches that
cost nothing, for how often a policy switches is its own affair.
"""

from __future__ import annotations

import attrs

from swingshift.executors.simulated.costs.measured import MeasuredCosts, MeasuredEngine
from swingshift.executors.simulated.costs.observed import ObservedSample
from swingshift.executors.simulated.costs.training import FitWork
from swingshift.sdk.config import RunConfig


@attrs.frozen(kw_only=True)
class CycleBound:
    """One cycle in a fluid: work that can be cut as finely as one likes.

    Attributes:
        rollout_s: Seconds in which one standalone device generates what a cycle trains.
        training_s: Seconds in which the trainer's devices train it, all together, with its sync.
        hybrid_speed: How fast a lent device generates, as a share of a standalone one.
        switch_s: Seconds of a trainer's device for lending it and taking it back; not in the bound.
        trainer_devices: How many.
        rollout_devices: How many.
    """

    rollout_s: float
    training_s: float
    hybrid_speed: float
    switch_s: float
    trainer_devices: int
    rollout_devices: int

    @property
    def static_s(self) -> float:
        """Seconds of a cycle in which nothing is lent."""
        return max(self.rollout_s / self.rollout_devices, self.training_s)

    @property
    def lending_s(self) -> float:
        """Seconds of a cycle in which all devices work all the time; never above static.

        A trainer's device that does not train generates. Where generating takes no longer than
        training there is nothing to win.
        """
        trainers, speed = self.trainer_devices, self.hybrid_speed
        work = self.rollout_s + speed * trainers * self.training_s
        balanced = work / (self.rollout_devices + speed * trainers)
        # the training alone takes that long, with all of the trainer's devices
        return min(max(balanced, self.training_s), self.static_s)

    @property
    def ratio(self) -> float:
        """The most that lending can give: its cycle over the static one."""
        return self.lending_s / self.static_s


def cycle_bound(
    config: RunConfig, costs: MeasuredCosts, samples: tuple[ObservedSample, ...]
) -> CycleBound:
    """Return the bound of a configuration on a measured machine.

    Engines are taken to be full all the time, which no run reaches.

    Args:
        config: Devices and batches.
        costs: What things take.
        samples: Lengths; those of a cycle are like them.
    """
    responses = config.actor_rollout_ref.rollout.n
    per_sample = config.step_required_samples / len(samples)
    tokens = per_sample * sum(sum(s.response_tokens[:responses]) for s in samples)
    prompts = per_sample * sum(s.prompt_tokens * responses for s in samples)
    sequences = config.step_required_samples * responses
    running = config.actor_rollout_ref.rollout.max_num_seqs
    concurrent = config.async_training.concurrent_samples_per_replica * responses
    running = max(1, min(running, concurrent))
    context = (prompts + tokens / 2) / sequences
    standalone_s = _token_s(costs.engine, running, context)
    hybrid_s = _token_s(costs.hybrid_engine or costs.engine, running, context)
    steps = config.async_training.trigger_parameter_sync_step
    work = FitWork(
        tokens=(tokens + prompts) / steps,
        squared_tokens=0.0,
        sequences=sequences // steps,
        optimizer_steps=config.async_training.require_batches,
    )
    switch, sync = costs.switch, costs.sync
    return CycleBound(
        rollout_s=tokens * standalone_s,
        training_s=steps * sum(costs.fit_seconds(work).values()) + sync.standalone_s,
        hybrid_speed=standalone_s / hybrid_s,
        switch_s=switch.offload_optimizer_and_gradients_s
        + switch.offload_parameters_s
        + switch.wake_weights_s
        + switch.wake_kv_cache_s
        + sync.hybrid_s
        + switch.sleep_s
        + switch.reload_parameters_s
        + switch.reload_optimizer_and_gradients_s,
        trainer_devices=config.hybrid_gpus,
        rollout_devices=config.standalone_gpus,
    )


def _token_s(engine: MeasuredEngine, running: int, context: float) -> float:
    """Return the seconds of one token while an engine is full."""
    step = engine.step(running, running * context)
    return step.base_s / running
