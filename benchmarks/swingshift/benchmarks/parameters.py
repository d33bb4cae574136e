"""The numbers that describe a modelled world, and configurations in which one of them moved."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import attrs

from swingshift.executors.app.assembly import configured_executor
from swingshift.executors.app.config_reference import join_key
from swingshift.executors.app.configuration import dump_config, dump_section, structure_config
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError

_HALVINGS = 40


def check_executor(config: RunConfig) -> None:
    """Refuse an executor that cannot be used, or that does not fit the configuration.

    Builds one, as a run would, and lets go of it before it starts.

    Raises:
        UserError: There is no such executor, its keys or their values are not acceptable, or they
            do not fit the rest of the configuration.
    """
    adapter, options = configured_executor(config)

    async def build() -> None:
        adapter.build(config, options)

    with asyncio.Runner(loop_factory=adapter.loop_factory()) as runner:
        runner.run(build())


def executor_parameters(config: RunConfig) -> dict[str, float]:
    """Return every number below ``executor``, defaults included, by full dotted key.

    Whole numbers are ``int``, all others ``float``. Numbers in lists are no parameters: they have
    no key of their own.

    Raises:
        UserError: There is no such executor, or its keys or their values are not acceptable.
    """
    _, options = configured_executor(config)
    return dict(_numbers(options, "executor"))


def source_of(key: str, sources: Mapping[str, str]) -> str | None:
    """Return what is said about a parameter: by its own key, else by the nearest section of it."""
    parts = key.split(".")
    prefixes = itertools.accumulate(parts, lambda left, right: f"{left}.{right}")
    found = [sources[prefix] for prefix in prefixes if prefix in sources]
    return found[-1] if found else None


def with_parameter(config: RunConfig, key: str, value: float) -> RunConfig:
    """Return a configuration with another number for one of its keys.

    Raises:
        ConfigError: The number is not acceptable.
    """
    whole = dump_config(config)
    if key.startswith("executor."):
        # written out, because a section may be the name of a preset
        _, options = configured_executor(config)
        whole["executor"] = {"name": config.executor.name, **dump_section(options)}
    *sections, name = key.split(".")
    section = whole
    for below in sections:
        section = cast("dict[str, object]", section.setdefault(below, {}))
    section[name] = value
    return structure_config(whole)


def move_parameter(configs: Sequence[RunConfig], key: str, factor: float) -> float:
    """Return a parameter's value times a factor, or the nearest to it that can be run.

    Args:
        configs: Configurations that share the parameter and have to accept its value.
        key: A key of `executor_parameters`, of a real number.
        factor: Above 0.
    """
    now = executor_parameters(configs[0])[key]
    wanted = now * factor
    if _all_accept(configs, key, wanted):
        return wanted
    accepted, refused = now, wanted
    for _ in range(_HALVINGS):
        middle = 0.5 * (accepted + refused)
        if _all_accept(configs, key, middle):
            accepted = middle
        else:
            refused = middle
    # Limits are round numbers; halving comes close to them from one side.
    rounded = float(f"{accepted:.6g}")
    return rounded if _all_accept(configs, key, rounded) else accepted


def _all_accept(configs: Sequence[RunConfig], key: str, value: float) -> bool:
    try:
        for config in configs:
            check_executor(with_parameter(config, key, value))
    except UserError:
        return False
    return True


def _numbers(value: object, key: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value
        return
    kind = type(value)
    if attrs.has(kind):
        for field in attrs.fields(kind):
            yield from _numbers(getattr(value, field.name), join_key(key, field.name))
