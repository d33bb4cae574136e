"""A reference of every configuration parameter, made from the classes that hold them."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import cast

import attrs

from swingshift.sdk.validators import Validator


@attrs.frozen(kw_only=True)
class ParameterDoc:
    """One line of a configuration reference.

    Attributes:
        key: The full dotted key.
        type: The type, in the words of a configuration file.
        default: The default as a configuration file writes it, or ``required``.
        allowed: What is accepted, in words; empty when only the type limits it.
        description: What the parameter means, with its unit.
    """

    key: str
    type: str
    default: str
    allowed: str
    description: str


def describe(kind: type, prefix: str = "") -> tuple[ParameterDoc, ...]:
    """Return the reference of every parameter of a section class, nested sections included.

    Args:
        kind: An attrs class whose fields have a ``help`` entry in their metadata.
        prefix: The dotted key of the section; empty for a whole configuration.

    Returns:
        One entry per parameter, in the order of the class.
    """
    return tuple(_parameters(kind, prefix))


def join_key(prefix: str, name: str) -> str:
    """Return the full key of a name in a section; the prefix is empty at the top."""
    return f"{prefix}.{name}" if prefix else name


def _parameters(kind: type, prefix: str) -> Iterator[ParameterDoc]:
    attrs.resolve_types(kind)
    for field in attrs.fields(kind):
        key = join_key(prefix, field.name)
        if isinstance(field.type, type) and attrs.has(field.type):
            yield from _parameters(field.type, key)
            continue
        yield ParameterDoc(
            key=key,
            type=type_in_words(field.type),
            default=_default_in_words(field.default),
            allowed=field.validator.allowed if isinstance(field.validator, Validator) else "",
            description=str(field.metadata.get("help", "")),
        )


def type_in_words(annotation: object) -> str:
    """Return an annotation in the words of a configuration file."""
    if isinstance(annotation, types.UnionType):
        return " or ".join(map(type_in_words, annotation.__args__))
    if annotation is types.NoneType:
        return "null"
    origin = getattr(annotation, "__origin__", annotation)
    if origin is tuple or origin is list:
        return "list"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "section"
    return getattr(annotation, "__name__", str(annotation))


def _default_in_words(default: object) -> str:
    if default is attrs.NOTHING:
        return "required"
    factory = cast("Callable[[], object] | None", getattr(default, "factory", None))
    return json.dumps(factory() if factory else default, default=str)
