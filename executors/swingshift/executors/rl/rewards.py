"""Reward functions: found by name, called as verl calls them, never trusted."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
import reprlib
import sys
from collections.abc import Awaitable, Mapping
from numbers import Real
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeAlias, cast

from swingshift.executors.rl.prompts import PromptRow
from swingshift.sdk.errors import SwingshiftError, UserError, did_you_mean

Reward: TypeAlias = float | Mapping[str, object]
"""A finite number, or a mapping that has it under ``score``."""

_FORMS = "module:function or path/to/file.py:function"
_ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


class RewardError(SwingshiftError):
    """A reward function raised, or returned something that is no reward."""


class RewardFunction(Protocol):
    """Says what a response is worth; often the user's own.

    One that waits, as for a service or another process, is ``async``: while it waits, the run goes
    on. One that computes stops the control plane for as long as it takes.
    """

    def __call__(
        self,
        *,
        data_source: str,
        solution_str: str,
        ground_truth: object,
        extra_info: dict[str, object],
    ) -> Reward | Awaitable[Reward]:
        """Return the reward of one response.

        Args:
            data_source: As in the prompt's row.
            solution_str: The response as text, without special tokens.
            ground_truth: As in the prompt's row.
            extra_info: As in the prompt's row; a copy.
        """
        ...


def load_reward(reference: str) -> RewardFunction:
    """Return the reward function of ``module:function`` or ``path/to/file.py:function``.

    A file can import what lies beside it.

    Raises:
        UserError: There is no such module, file or function, it does not import, or it does not
            take the arguments.
    """
    source, colon, name = reference.rpartition(":")
    if not colon or not source or not name:
        raise UserError(f"{reference!r} names no reward function; expected {_FORMS}")
    try:
        module = _load_file(Path(source)) if source.endswith(".py") else _load_module(source)
    except (Exception, SystemExit) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{source} does not import: {type(error).__name__}: {error}") from error
    function: object = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, item in vars(module).items() if inspect.isfunction(item)]
        raise UserError(
            f"{source} has no function {name!r}{did_you_mean(name, functions)}; "
            f"functions in it: {', '.join(functions) or 'none'}"
        )
    try:
        inspect.signature(function).bind(**dict.fromkeys(_ARGUMENTS))
    except (TypeError, ValueError) as error:  # other arguments, or none that can be told
        raise UserError(
            f"{reference} cannot be called: {error}; it is given {', '.join(_ARGUMENTS)} by name"
        ) from error
    return cast("RewardFunction", function)


async def score_response(function: RewardFunction, row: PromptRow, solution: str) -> float:
    """Return what a response to a prompt is worth.

    Args:
        function: Is asked, once.
        row: The prompt.
        solution: The response as text.

    Raises:
        RewardError: The function raised, or returned no finite number; the prompt is named.
    """
    try:
        result = function(
            data_source=row.data_source,
            solution_str=solution,
            ground_truth=row.ground_truth,
            extra_info=dict(row.extra_info),
        )
        reward = await result if inspect.isawaitable(result) else result
    except Exception as error:
        where = _where(function, row, solution)
        raise RewardError(f"{where} raised {type(error).__name__}: {error}") from error
    score = _finite(reward.get("score") if isinstance(reward, Mapping) else reward)
    if score is None:
        raise RewardError(
            f"{_where(function, row, solution)} returned {reprlib.repr(reward)}; "
            "expected a finite number, or a mapping with one under 'score'"
        )
    return score


def _finite(value: object) -> float | None:
    if not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _where(function: RewardFunction, row: PromptRow, solution: str) -> str:
    module = getattr(function, "__module__", "")
    name = f"{module}:{getattr(function, '__qualname__', repr(function))}"
    return f"reward function {name}, for the response {reprlib.repr(solution)} to {row.place},"


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UserError(f"no module {error.name!r} to import; expected {_FORMS}") from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}; expected {_FORMS}")
    name = f"swingshift_reward_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UserError(f"{path} cannot be imported; expected {_FORMS}")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses and the like look their module up while it runs.
    sys.modules[name] = module
    # Last, so that nothing in the folder can stand in for a library; for good, because functions
    # import while they run, too.
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    spec.loader.exec_module(module)
    return module
