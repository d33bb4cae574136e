"""What ``swingshift train`` is asked to run: a file, or a configuration that comes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

import attrs

from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import UserError, did_you_mean

DEFAULT_EXECUTOR = "local"
"""The executor of a configuration that names none."""

_SUFFIXES = (".yaml", ".yml")


@attrs.frozen(kw_only=True)
class TrainingPlan:
    """A run that was asked for.

    Attributes:
        name: What it is called: the example, or the file without its suffix.
        config: The whole configuration.
    """

    name: str
    config: RunConfig


def example_names() -> tuple[str, ...]:
    """Return the names of the packaged configurations, sorted."""
    folder = _examples()
    if not folder.is_dir():
        return ()
    return tuple(sorted(Path(file.name).stem for file in folder.iterdir() if _is_yaml(file.name)))


def load_plan(name_or_path: str, overrides: Sequence[str] = ()) -> TrainingPlan:
    """Return the run of an example or a file.

    Args:
        name_or_path: Name of an example, or a path to a YAML file.
        overrides: ``key=value`` each.

    Raises:
        UserError: There is no such example or file, or something in it cannot be used; a line for
            each problem.
    """
    # Put off, so that the command line starts without it.
    from swingshift.executors.app.configuration import (  # noqa: PLC0415
        read_mapping,
        structure_config,
    )

    with as_file(_source(name_or_path)) as path:
        mapping = read_mapping(path, overrides)
    return TrainingPlan(
        name=Path(name_or_path).stem, config=structure_config(_with_executor(mapping))
    )


def _with_executor(mapping: Mapping[str, object]) -> dict[str, object]:
    section = mapping.get("executor")
    if section is None:
        section = {}
    if isinstance(section, Mapping) and "name" not in section:
        section = {"name": DEFAULT_EXECUTOR, **section}
    return {**mapping, "executor": section}


def _source(name_or_path: str) -> Traversable:
    names = example_names()
    if name_or_path in names:
        return _examples() / f"{name_or_path}.yaml"
    path = Path(name_or_path)
    if path.suffix in _SUFFIXES or path.exists():
        return path
    raise UserError(
        f"unknown example {name_or_path!r}{did_you_mean(name_or_path, names)}; "
        f"known: {', '.join(names) or 'none'}; or give the path of a YAML file"
    )


def _examples() -> Traversable:
    # from the package above it, so that no engine is imported
    return files("swingshift.executors") / "local" / "examples"


def _is_yaml(name: str) -> bool:
    return Path(name).suffix == ".yaml"
