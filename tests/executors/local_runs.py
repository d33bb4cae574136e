"""Local executors small enough for tests, and what can be seen of them past their verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from swingshift.executors.app.configuration import load_config
from swingshift.executors.app.structuring import structure_section
from swingshift.executors.local.adapter import LocalAdapter
from swingshift.executors.local.executor import LocalExecutor
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.rl.text_task import TextTask
from swingshift.sdk.config import RunConfig
from swingshift.sdk.executor import ExecutorError, Prompt
from swingshift.sdk.testing import BackDoor, ExecutorUnderTest

TINY_MODEL: Mapping[str, object] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
"""A model of 80,000 parameters: it learns, and a decode step takes a millisecond."""

HEAVY_MODEL: Mapping[str, object] = {
    **TINY_MODEL,
    "hidden_size": 192,
    "intermediate_size": 1152,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
"""A model of 2.4 million parameters: its memory shows among that of the process."""


def local_config(
    *overrides: str, model: Mapping[str, object] = TINY_MODEL, dynamic: bool = True
) -> RunConfig:
    """Return a run of the copying example on one trainer core and one rollout core."""
    return load_config(
        {
            "data": {"max_prompt_length": 16, "max_response_length": 8},
            "actor_rollout_ref": {
                "actor": {"ppo_mini_batch_size": 4},
                "rollout": {"n": 4, "max_num_seqs": 64},
            },
            "trainer": {"nnodes": 1, "n_gpus_per_node": 1},
            "rollout": {"nnodes": 1, "n_gpus_per_node": 1, "total_rollout_steps": 48},
            "async_training": {
                "use_dynamic_resource_scheduling": dynamic,
                "trigger_parameter_sync_step": 2,
                "staleness_threshold": 0.5,
            },
            "executor": {
                "name": "local",
                "share_devices": True,
                "model": {"config": dict(model)},
                "task": {"example": "copy"},
                "learning": {"learning_rate": 1e-3},
            },
        },
        overrides,
    )


def build_local(config: RunConfig) -> tuple[LocalExecutor, TextTask]:
    """Return the executor and the task of a configuration."""
    options = structure_section(LocalOptions, config.executor.options, "executor")
    executor, task = LocalAdapter().build(config, options)
    return cast("LocalExecutor", executor), cast("TextTask", task)


class LocalBackDoor(BackDoor):
    """Asks the processes themselves, the files and the operating system."""

    def __init__(self, executor: LocalExecutor) -> None:
        self.executor = executor

    async def in_flight(self, replica: str) -> int:
        return cast("int", (await self.executor.look_at_replica(replica))["in_flight"])

    async def token_count(self, replica: str) -> int:
        return cast("int", (await self.executor.look_at_replica(replica))["generated_tokens"])

    async def free_bytes(self, gpu: str) -> int:
        return await self.executor.free_bytes(gpu)

    async def weight_version(self, replica: str) -> int | None:
        return cast("int | None", (await self.executor.look_at_replica(replica))["version"])

    async def times_trained(self, batch_id: int) -> int:
        seen = (await self.executor.look_at_trainer())["times_trained"]
        return cast("dict[str, int]", seen).get(str(batch_id), 0)

    async def payload_tokens(self, handle: str) -> int | None:
        try:
            return self.executor.payload_tokens(handle)
        except ExecutorError:
            return None


def under_test() -> ExecutorUnderTest[LocalExecutor]:
    """Return the local executor as the contract kit wants it: two replicas of each kind."""
    config = local_config(
        "trainer.n_gpus_per_node=2",
        "rollout.n_gpus_per_node=2",
        "executor.ignore_eos=true",
        "data.max_response_length=512",
        model=HEAVY_MODEL,
    )
    _, task = build_local(config)
    return ExecutorUnderTest(
        make=lambda: build_local(config)[0],
        prompts=[Prompt(*task.prompt(index)) for index in range(2)],
        max_new_tokens=300,
        observe=LocalBackDoor,
        moment_s=0.12,
        deadline_s=60.0,
        memory_tolerance_bytes=4 * 2**20,
    )
