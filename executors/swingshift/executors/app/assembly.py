"""From a configuration to a run: the executor adapter, the policy, the event loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Protocol

import attrs

from swingshift.executors.app.configuration import structure_section
from swingshift.executors.app.policy_files import (
    describe_failure,
    is_file_reference,
    policy_class_in_file,
)
from swingshift.executors.app.structuring import show_value
from swingshift.executors.runtime.adapter import ExecutorAdapter
from swingshift.executors.runtime.deadlines import UnexpectedDeadlineError
from swingshift.executors.runtime.run import RunReport, TrainingRun
from swingshift.sdk.config import RunConfig, RuntimeConfig
from swingshift.sdk.errors import ConfigError, UnknownNameError, UserError, did_you_mean
from swingshift.sdk.events import EventSink, MetricSink
from swingshift.sdk.executor import Executor
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.registry import (
    check_policy_arguments,
    construct_policy,
    policy_class,
    policy_parameters,
)
from swingshift.sdk.validators import InvalidValueError

EXECUTOR_GROUP = "swingshift.executors"
"""The entry-point group in which a distribution names its executor adapters."""

_POLICY_KEY = "async_training.dynamic_schedule_policy"
_RATIO_KEY = "async_training.dynamic_schedule_deactivate_ratio"
# What every policy is offered comes from keys that mean more than the policy alone.
_SET_ELSEWHERE = {"deactivate_ratio": _RATIO_KEY, "only_hybrid": "rollout.nnodes"}


class Attendant(Protocol):
    """Who has something to do with a run's executor before it starts and before it stops.

    Both are called on the run's loop, in the task that a signal may cancel.
    """

    def begin(self, executor: Executor) -> None:
        """Take note of the executor; it is about to start."""
        ...

    async def end(self, executor: Executor) -> None:
        """Do what only a living executor can do; it is about to stop. See ``before_stop``."""
        ...


def execute(
    config: RunConfig,
    *,
    policy: str | None = None,
    name: str = "run",
    event_sinks: Sequence[EventSink] = (),
    metric_sinks: Sequence[MetricSink] = (),
    attendant: Attendant | None = None,
) -> RunReport:
    """Run a configuration from start to end, on an event loop of its own, and return its report.

    On modelled time a policy that fails ends the run; on real time it is logged and overruled.

    Args:
        config: The whole configuration.
        policy: A registered name or ``file.py:Class``, in place of the configured policy.
        name: Names the run in its log.
        event_sinks: Get every event.
        metric_sinks: Get the metrics of every cycle.
        attendant: Hears of the executor, before it starts and before it stops.

    Raises:
        UserError: The executor, its options or the policy cannot be used.
        PolicyError: The policy failed on modelled time.
        UnexpectedDeadlineError: A deadline expired on modelled time and no fault was injected;
            `explain_deadline` words it for whoever wrote the configuration.
    """
    adapter, options = configured_executor(config)
    chosen = build_configured_policy(config, policy)

    async def run() -> RunReport:
        executor, task = adapter.build(config, options)
        if attendant is not None:
            attendant.begin(executor)
        training = TrainingRun(
            config,
            executor,
            task,
            chosen,
            name=name,
            strict_policy=executor.capabilities.virtual_time,
            event_sinks=event_sinks,
            metric_sinks=metric_sinks,
            before_stop=None if attendant is None else partial(attendant.end, executor),
        )
        return await training.run()

    with asyncio.Runner(loop_factory=adapter.loop_factory()) as runner:
        return runner.run(run())


def explain_deadline(error: UnexpectedDeadlineError, deadlines: RuntimeConfig) -> str:
    """Return in one line what took too long, and the keys that may have allowed it too little.

    Args:
        error: As `execute` raised it.
        deadlines: The ``runtime`` section of that run.
    """
    keys = [
        f"runtime.{name}"
        for name, value in attrs.asdict(deadlines).items()
        if name.endswith("_deadline_s") and value == error.seconds
    ]
    return f"{error}; raise {' or '.join(keys)}" if keys else str(error)


def configured_executor(config: RunConfig) -> tuple[ExecutorAdapter, object]:
    """Return the adapter that a configuration asks for, and its own keys as the value it takes.

    Raises:
        ConfigError: There is no such executor, or its keys or their values are not acceptable; a
            line for each, with the full dotted key.
    """
    with _naming("executor.name"):
        adapter = executor_adapter(config.executor.name)
    options: object = structure_section(adapter.options_type, config.executor.options, "executor")
    return adapter, options


def executor_adapter(name: str) -> ExecutorAdapter:
    """Return the executor adapter of a name.

    Raises:
        UnknownNameError: No installed distribution has an executor of this name.
        UserError: It cannot be imported, often because an engine is not installed, or two
            distributions claim the name.
    """
    points = entry_points(group=EXECUTOR_GROUP)
    claims = {point.value: point for point in points if point.name == name}
    if not claims:
        raise UnknownNameError("executor", name, points.names)
    if len(claims) > 1:
        raise UserError(
            f"the executor name {name!r} means two classes, {' and '.join(sorted(claims))}; "
            "uninstall one of their distributions"
        )
    (point,) = claims.values()
    try:
        adapter: ExecutorAdapter = point.load()()
    except ImportError as error:
        raise UserError(
            f"executor {name!r} cannot be imported: {error}; {_remedy(point)}"
        ) from error
    return adapter


def find_policy(name_or_path: str) -> type[DynamicSchedulePolicyBase]:
    """Return the policy class of a registered name or of ``file.py:Class``.

    Raises:
        UnknownNameError: No policy has this name.
        UserError: The file or the class cannot be used.
    """
    if is_file_reference(name_or_path):
        return policy_class_in_file(name_or_path)
    return policy_class(name_or_path)


def build_configured_policy(
    config: RunConfig, name_or_path: str | None = None
) -> DynamicSchedulePolicyBase | None:
    """Return a new policy as a configuration asks for it; None when dynamic scheduling is off.

    Args:
        config: Names the policy, its arguments and what every policy is offered.
        name_or_path: A registered name or ``file.py:Class``, in place of the configured policy.

    Raises:
        UserError: There is no such policy.
        ConfigError: The ``policy`` section does not fit its constructor; a line for each key.
    """
    if not config.async_training.use_dynamic_resource_scheduling:
        return None
    return configured_policy_factory(config, name_or_path)()


def configured_policy_factory(
    config: RunConfig, name_or_path: str | None = None
) -> Callable[[], DynamicSchedulePolicyBase]:
    """Return what builds a policy as a configuration asks for it, a new one at each call.

    The policy is looked up once. Only building it can still raise `ConfigError`.

    Args:
        config: Names the policy, its arguments and what every policy is offered.
        name_or_path: A registered name or ``file.py:Class``, in place of the configured policy.

    Raises:
        UserError: There is no such policy.
        ConfigError: The ``policy`` section does not fit its constructor; a line for each key.
    """
    if name_or_path is None:
        with _naming(_POLICY_KEY):
            cls = find_policy(config.async_training.dynamic_schedule_policy)
    else:
        cls = find_policy(name_or_path)
    problems = tuple(_argument_problems(cls, config))
    if problems:
        raise ConfigError("\n".join(problems))
    return partial(_construct, cls, config)


def _argument_problems(cls: type[DynamicSchedulePolicyBase], config: RunConfig) -> Iterator[str]:
    own = [item.name for item in policy_parameters(cls) if item.name not in _SET_ELSEWHERE]
    for name, value in config.policy.items():
        if name in _SET_ELSEWHERE:
            yield (
                f"policy.{name}: {show_value(value)} is not allowed; "
                f"set {_SET_ELSEWHERE[name]} instead"
            )
            continue
        try:
            check_policy_arguments(cls, [name])
        except ConfigError:
            yield (
                f"policy.{name}: unknown key (value {show_value(value)}); policy {cls.__name__} "
                f"takes no argument {name!r}{did_you_mean(name, own)}; "
                f"it takes: {', '.join(own) or 'none'}"
            )
    for parameter in policy_parameters(cls):
        is_given = parameter.name in config.policy or parameter.name in _SET_ELSEWHERE
        if parameter.required and not is_given:
            kind = f" ({parameter.annotation})" if parameter.annotation else ""
            yield (
                f"policy.{parameter.name}: missing; policy {cls.__name__} needs the argument "
                f"{parameter.name}{kind}: set policy.{parameter.name}, or give it a default"
            )


def _construct(
    cls: type[DynamicSchedulePolicyBase], config: RunConfig
) -> DynamicSchedulePolicyBase:
    ratio = config.async_training.dynamic_schedule_deactivate_ratio
    offered = {"deactivate_ratio": ratio, "only_hybrid": config.only_hybrid}
    try:
        return construct_policy(cls, **config.policy, **offered)
    except UserError as error:
        cause = error.__cause__
        if not isinstance(cause, InvalidValueError):
            raise
        key = _SET_ELSEWHERE.get(cause.name, f"policy.{cause.name}")
        raise ConfigError(
            f"{key}: {show_value(cause.given)} is not allowed; policy {cls.__name__} expects "
            f"{cause.allowed}"
        ) from error
    except Exception as error:
        given = ", ".join(f"{name}={show_value(value)}" for name, value in config.policy.items())
        file = inspect.getsourcefile(cls)
        failure = describe_failure(error, None if file is None else Path(file))
        raise ConfigError(
            f"policy: {cls.__name__} cannot be built with {given or 'its defaults'}: {failure}"
        ) from error


@contextmanager
def _naming(key: str) -> Iterator[None]:
    """Put the key that named something in front of an error about it."""
    try:
        yield
    except UserError as error:
        raise ConfigError(f"{key}: {error}") from error


def _remedy(point: EntryPoint) -> str:
    """Return what to do about an adapter that cannot be imported."""
    distribution = point.dist
    if distribution and point.name in (distribution.metadata.get_all("Provides-Extra") or ()):
        return f"install what it needs: pip install '{distribution.name}[{point.name}]'"
    return "install what it needs"
