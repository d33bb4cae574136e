"""The entry point of the local executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.util import find_spec

from swingshift.executors.local.executor import LocalExecutor
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.local.scratch import Scratch
from swingshift.executors.local.store import PayloadStore
from swingshift.executors.rl.task import Task
from swingshift.executors.rl.text_task import build_text_task
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import Executor

# The workers import them, in processes of their own; without them nothing else need begin.
for _engine in ("torch", "transformers", "safetensors"):
    if find_spec(_engine) is None:
        raise ModuleNotFoundError(f"No module named {_engine!r}", name=_engine)


class LocalAdapter:
    """``executor.name: local``."""

    options_type: type = LocalOptions

    def build(self, config: RunConfig, options: object) -> tuple[Executor, Task]:
        """Read the data and work out who runs where; processes start with the run.

        Raises:
            ConfigError: The options are of another type, or this machine has no such devices.
            UserError: Data, tokenizer or reward function cannot be used.
        """
        if not isinstance(options, LocalOptions):
            raise ConfigError(
                f"the local executor takes LocalOptions; got {type(options).__name__}"
            )
        responses = config.actor_rollout_ref.rollout.n
        if responses < 2 and not options.learning.critic:
            raise ConfigError(
                f"actor_rollout_ref.rollout.n: {responses} leaves a response nothing to be "
                "compared with, and nothing would be learned; expected at least 2, or "
                "executor.learning.critic=true"
            )
        scratch = Scratch()
        task = build_text_task(config, options.task, options.model, PayloadStore(scratch.payloads))
        executor = LocalExecutor(config, options, scratch, task.tokenizer, task.prompt_tokens)
        return executor, task

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop]:
        """Return the loop of asyncio."""
        return asyncio.new_event_loop
