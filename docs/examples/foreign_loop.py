"""A training loop that is not swingshift's, lending its GPUs: ``python foreign_loop.py``.

The cluster is simulated, so it takes a second; with another executor the loop stays the same.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from swingshift.executors.runtime.embedded import EmbeddedController, LoopCounts
from swingshift.executors.simulated.adapter import SimulatedAdapter
from swingshift.executors.simulated.costs.hardware import H20
from swingshift.executors.simulated.costs.lengths import LengthModel
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk import build_policy
from swingshift.sdk.config import (
    ActorConfig,
    ActorRolloutRefConfig,
    AsyncTrainingConfig,
    RunConfig,
    StandaloneConfig,
    TrainerConfig,
)
from swingshift.sdk.executor import FinishReason, GenerationRequest, Prompt

SAMPLES, BATCH, STEPS_PER_SYNC, MOST_IN_FLIGHT = 64, 4, 2, 8

CONFIG = RunConfig(
    actor_rollout_ref=ActorRolloutRefConfig(actor=ActorConfig(ppo_mini_batch_size=BATCH)),
    trainer=TrainerConfig(nnodes=1, n_gpus_per_node=2),
    rollout=StandaloneConfig(nnodes=1, n_gpus_per_node=2, total_rollout_steps=SAMPLES),
    async_training=AsyncTrainingConfig(
        use_dynamic_resource_scheduling=True, trigger_parameter_sync_step=STEPS_PER_SYNC
    ),
)
WORLD = SimulatedOptions(
    model=ModelSpec(
        name="tiny",
        total_params=1e9,
        active_params=1e9,
        layers=16,
        attention_layers=16,
        query_heads=16,
        kv_heads=4,
        head_dim=64,
    ),
    gpu=H20,
    lengths=LengthModel(mean_tokens=4000.0, max_tokens=8192),
)


class Rollouts:
    """The loop's own rollout side: a buffer, and requests that go on elsewhere after an abort."""

    def __init__(self) -> None:
        self.buffer: deque[int] = deque()
        self.produced = 0
        self.finished_cycles = 0
        self.waits: list[tuple[float, int]] = []
        self.more = asyncio.Event()

    def counts(self) -> LoopCounts:
        """Tell the controller what the loop knows; it asks at every decision."""
        return LoopCounts(
            queue_size=len(self.buffer),
            total_generated_samples=self.produced,
            finished_cycles=self.finished_cycles,
            step_wait_times=tuple(wait_s for wait_s, _ in self.waits),
            step_wait_samples=tuple(samples for _, samples in self.waits),
            attainable_samples=len(self.buffer) + SAMPLES - self.produced,
        )

    async def drain(self) -> None:
        """Not asked for: responses may span versions here."""

    def resume_submission(self) -> None:
        """Nothing was held."""

    async def produce(self, controller: EmbeddedController, numbers: deque[int]) -> None:
        """Generate one sample after the other until there are no more prompts."""
        while numbers:
            number = numbers.popleft()
            await self.generate(controller, number)
            self.produced += 1
            self.buffer.append(number)
            self.more.set()
            controller.notify()

    async def generate(self, controller: EmbeddedController, number: int) -> None:
        """Generate; an aborted attempt resumes on whatever replica has room."""
        tokens, handle = 0, None
        while True:
            request = GenerationRequest(
                request_id=f"sample-{number}",
                prompt=Prompt(number, 100, str(number)),
                response_index=0,
                max_new_tokens=8192 - tokens,
                generated_tokens=tokens,
                resume_from=handle,
            )
            answer = await controller.generate(request)
            tokens, handle = tokens + answer.new_tokens, answer.handle
            if answer.finish_reason is not FinishReason.ABORT:
                return


async def collect(rollouts: Rollouts) -> None:
    """Take one batch from the buffer, waiting for it."""
    loop = asyncio.get_running_loop()
    begun_s, missing = loop.time(), max(0, BATCH - len(rollouts.buffer))
    while len(rollouts.buffer) < BATCH:
        rollouts.more.clear()
        await rollouts.more.wait()
    for _ in range(BATCH):
        rollouts.buffer.popleft()
    rollouts.waits.append((loop.time() - begun_s, missing))


async def train() -> list[str]:
    """Train, and tell when GPUs were lent."""
    executor, _ = SimulatedAdapter().build(CONFIG, WORLD)
    rollouts = Rollouts()
    story: list[str] = []
    policy = build_policy("default")
    async with EmbeddedController(CONFIG, executor, policy, rollouts) as controller:
        await controller.at_weight_sync(0)
        numbers = deque(range(SAMPLES))
        workers = [
            asyncio.create_task(rollouts.produce(controller, numbers))
            for _ in range(MOST_IN_FLIGHT)
        ]
        for version in range(SAMPLES // (BATCH * STEPS_PER_SYNC)):
            rollouts.waits.clear()
            for _ in range(STEPS_PER_SYNC):
                lent = await controller.before_fit_step(version)  # the first place
                await collect(rollouts)
                await asyncio.sleep(20.0)  # the loop's own fit step
                story.append(f"version {version}: waited {lent.wait_s:.0f} s on lent GPUs")
            rollouts.finished_cycles += 1
            await controller.at_weight_sync(version + 1)  # the second place
        await asyncio.gather(*workers)
    return story


def main() -> list[str]:
    """Run it on the simulator's clock."""
    with asyncio.Runner(loop_factory=SimulatedAdapter().loop_factory()) as runner:
        return runner.run(train())


if __name__ == "__main__":
    sys.stdout.write("\n".join(main()) + "\n")
