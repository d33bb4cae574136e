"""Configuration files: reading, overrides, and the way to a `RunConfig`.

A file is YAML, read by OmegaConf: no tags that construct objects, duplicate keys are errors, and
``${other.key}`` stands for the value of another key. On the command line ``key=value`` replaces a
value.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import attrs
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from swingshift.executors.app.config_reference import join_key
from swingshift.executors.app.known_keys import KNOWN_KEYS, KnownKey
from swingshift.executors.app.structuring import (
    dump_config,
    dump_section,
    show_value,
    structure_section,
)
from swingshift.sdk.config import RunConfig
from swingshift.sdk.errors import ConfigError

__all__ = [
    "dump_config",
    "dump_section",
    "load_config",
    "read_mapping",
    "structure_config",
    "structure_section",
]

_log = logging.getLogger(__name__)


def load_config(source: Path | Mapping[str, object], overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration of a run.

    Logs a warning that names the keys that verl knows and nothing here uses, for each reason.

    Args:
        source: A YAML file, or the mapping that one would hold.
        overrides: ``key=value`` each, with a full dotted key and a value as YAML writes it.

    Raises:
        ConfigError: The file cannot be read, or keys or values are not acceptable; one line each.
    """
    return structure_config(read_mapping(source, overrides))


def read_mapping(
    source: Path | Mapping[str, object], overrides: Sequence[str] = ()
) -> dict[str, object]:
    """Return a file's content with overrides applied and references resolved, not yet checked.

    For callers whose files hold sections beside those of a `RunConfig`: they take theirs out, and
    give the rest to `structure_config`.

    Args:
        source: A YAML file, or the mapping that one would hold.
        overrides: ``key=value`` each, with a full dotted key and a value as YAML writes it.

    Raises:
        ConfigError: The file is missing, is not YAML, or does not hold keys at its top.
    """
    loaded = _read_file(source) if isinstance(source, Path) else dict(source)
    changes = [_read_override(override) for override in overrides]
    try:
        merged = OmegaConf.merge(OmegaConf.create(loaded), *changes)
        plain = OmegaConf.to_container(merged, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, TypeError) as error:
        key = getattr(error, "full_key", None) or "overrides"
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}") from error
    return cast("dict[str, object]", plain)


def structure_config(mapping: Mapping[str, object]) -> RunConfig:
    """Return the configuration that a plain mapping describes.

    Logs a warning that names the keys that verl knows and nothing here uses, for each reason.

    Raises:
        ConfigError: Keys or values are not acceptable; one line each.
    """
    unused: dict[str, _Unused] = {}
    kept = _without_unused(mapping, RunConfig, "", unused)
    problems = [entry.refusal for entry in unused.values() if entry.is_refused]
    _warn([entry.known for entry in unused.values() if not entry.is_refused])
    try:
        config = structure_section(RunConfig, kept)
    except ConfigError as error:
        raise ConfigError("\n".join([*problems, str(error)])) from error
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _warn(accepted: Sequence[KnownKey]) -> None:
    """Log one warning for each reason, with all the keys that it holds for."""
    keys: dict[str, list[str]] = {}
    for known in accepted:
        keys.setdefault(known.reason, []).append(known.key)
    for reason, names in keys.items():
        _log.warning("no effect: %s (%s)", ", ".join(names), reason)


@attrs.frozen
class _Unused:
    """A key of the user's that verl knows and nothing here uses."""

    key: str
    value: object
    known: KnownKey

    @property
    def is_refused(self) -> bool:
        return self.known.refuses(self.value)

    @property
    def refusal(self) -> str:
        harmless = "".join(f" or write {show_value(item)}" for item in self.known.harmless)
        return (
            f"{self.key}: {show_value(self.value)} is not allowed; {self.known.reason}; "
            f"leave the key out{harmless}"
        )


def _without_unused(
    mapping: Mapping[str, object], kind: type, prefix: str, unused: dict[str, _Unused]
) -> dict[str, object]:
    """Return a section without the keys that only verl uses; add those to ``unused``."""
    attrs.resolve_types(kind)
    sections = {field.name: field.type for field in attrs.fields(kind)}
    kept: dict[str, object] = {}
    for name, value in mapping.items():
        key = join_key(prefix, str(name))
        section = sections.get(name)
        if isinstance(section, type) and attrs.has(section) and isinstance(value, Mapping):
            kept[name] = _without_unused(value, section, key, unused)
        elif key in KNOWN_KEYS:
            for leaf in _leaves(key, value, KNOWN_KEYS[key]):
                unused.setdefault(leaf.known.key, leaf)
        else:
            kept[name] = value
    return kept


def _leaves(key: str, value: object, above: KnownKey) -> Iterator[_Unused]:
    known = KNOWN_KEYS.get(key, above)
    if isinstance(value, Mapping) and value:
        for name, below in value.items():
            yield from _leaves(join_key(key, str(name)), below, known)
    else:
        yield _Unused(key, value, known)


def _read_file(path: Path) -> DictConfig:
    try:
        loaded = OmegaConf.load(path)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror or error}") from error
    except (YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: not YAML: {_one_line(error)}") from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"configuration file {path}: expected keys at the top, not a list")
    return loaded


def _read_override(override: str) -> DictConfig:
    key, equals, value = override.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigError(
            f"override {override!r}: expected key=value, for example "
            "async_training.staleness_threshold=0.5"
        )
    try:
        return OmegaConf.from_dotlist([override])
    except YAMLError as error:
        raise ConfigError(f"{key}: {value!r} is not YAML: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
