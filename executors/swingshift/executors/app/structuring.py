"""Plain mappings to frozen classes and back, with errors that say what to write instead.

cattrs does the work; what is added here is strictness (no value is coerced into another type) and
the translation of its errors into one line each, with the full key and the value.
"""

from __future__ import annotations

import copy
import difflib
import enum
import json
import reprlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar, cast, get_args, get_origin

import attrs
from cattrs import (
    BaseValidationError,
    ClassValidationError,
    Converter,
    ForbiddenExtraKeysError,
    IterableValidationError,
)
from cattrs.cols import mapping_structure_factory
from cattrs.gen import make_dict_structure_fn, override

from swingshift.executors.app.config_reference import describe, join_key, type_in_words
from swingshift.sdk.config import ExecutorSection, RunConfig, Scalar, is_scalar
from swingshift.sdk.errors import ConfigError, did_you_mean
from swingshift.sdk.validators import (
    InvalidValueError,
    Validator,
    boolean,
    finite,
    integer,
    to_float,
)

_T = TypeVar("_T")
_Hook: TypeAlias = Callable[[object, object], object]

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


def structure_section(kind: type[_T], mapping: Mapping[str, object], prefix: str = "") -> _T:
    """Return an instance of an attrs class, filled from the section of a configuration.

    Fields take what their annotation says and nothing that would have to be converted, except a
    whole number for a ``float`` and a list for a ``tuple[X, ...]``. The limits of a field are those
    of its `Validator`.

    Args:
        kind: The class; nested attrs classes are nested sections. Where a nested class has
            ``presets``, a mapping of names to instances, a name stands for an instance.
        mapping: The section as read.
        prefix: The dotted key of the section, for errors; empty for a whole configuration.

    Raises:
        ConfigError: Keys or values are not acceptable; a line for each, with the full dotted key.
    """
    try:
        return _CONVERTER.structure(mapping, kind)
    except (BaseValidationError, InvalidValueError) as error:
        everywhere = tuple(parameter.key for parameter in describe(kind, prefix))
        raise ConfigError("\n".join(_lines(error, prefix, mapping, everywhere))) from error


def dump_config(config: RunConfig) -> dict[str, object]:
    """Return a configuration as plain mappings and scalars, nested as in a configuration file."""
    return cast("dict[str, object]", _CONVERTER.unstructure(config))


def dump_section(section: object) -> dict[str, object]:
    """Return what `structure_section` made as the mapping that gives it again, all keys written."""
    return cast("dict[str, object]", _CONVERTER.unstructure(section))


def show_value(value: object) -> str:
    """Return a value as an error shows it: null, true and false as in a file, long ones cut."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _repr.repr(value)


def _lines(
    error: BaseException, key: str, given: object, everywhere: tuple[str, ...]
) -> Iterator[str]:
    """Translate an error into lines.

    Args:
        error: What was raised while the value was structured.
        key: The full dotted key of the value.
        given: The value.
        everywhere: Every valid key of the whole configuration, for suggestions.
    """
    if isinstance(error, ClassValidationError):
        noted, unnoted = error.group_exceptions()
        for inner, note in noted:
            below = join_key(key, note.name)
            if isinstance(given, Mapping) and note.name in given:
                yield from _lines(inner, below, given[note.name], everywhere)
            else:
                yield f"{below}: missing; expected {_allowed(error.cl, note.name)}"
        for inner in unnoted:
            yield from _section_lines(inner, key, given, everywhere)
    elif isinstance(error, IterableValidationError):
        items = cast("Mapping[object, object]", given)
        for inner, place in error.group_exceptions()[0]:
            index = f"[{place.index}]" if isinstance(given, list | tuple) else f".{place.index}"
            yield from _lines(inner, key + index, items[place.index], everywhere)
    elif isinstance(error, InvalidValueError):
        element = error.name[error.name.find("[") :] if "[" in error.name else ""
        yield _refused(key + element, error)
    else:
        yield f"{key}: {show_value(given)} is not allowed; {error}"


def _section_lines(
    error: BaseException, key: str, given: object, everywhere: tuple[str, ...]
) -> Iterator[str]:
    """Translate an error that concerns a section as a whole."""
    if isinstance(error, ForbiddenExtraKeysError) and isinstance(given, Mapping):
        names = tuple(field.name for field in attrs.fields(error.cl))
        for name in given:
            if name not in names:
                hint = _hint(str(name), names, everywhere)
                yield (
                    f"{join_key(key, str(name))}: unknown key (value {show_value(given[name])})"
                    f"{hint or ';'} allowed: {', '.join(names)}"
                )
    elif isinstance(error, InvalidValueError):
        yield _refused(join_key(key, error.name), error)
    else:
        yield f"{key}: {error}" if key else str(error)


def _refused(key: str, error: InvalidValueError) -> str:
    return f"{key}: {show_value(error.given)} is not allowed; expected {error.allowed}"


def _hint(name: str, siblings: Sequence[str], everywhere: Sequence[str]) -> str:
    """Return a suggestion: the same name in another section, or a similar one, nearest first."""
    if name in everywhere:
        return "; write it nested, one section for each dot;"
    elsewhere = {key.rpartition(".")[2]: key for key in reversed(everywhere)}
    similar = difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.8)
    near = did_you_mean(name, siblings)
    if similar and (not near or similar[0] == name):
        return f"; did you mean {elsewhere[similar[0]]!r}?"
    return near


def _allowed(kind: type, name: str) -> str:
    field = attrs.fields_dict(kind)[name]
    if isinstance(field.validator, Validator):
        return field.validator.allowed
    return _SECTION.allowed if _is_class(field.type) else type_in_words(field.type)


def _only(limits: Validator[_T]) -> _Hook:
    return _after(limits, lambda value, _: value)


def _after(limits: Validator[_T], hook: _Hook) -> _Hook:
    def structure(value: object, kind: object) -> object:
        limits.check("", value)
        return hook(value, kind)

    return structure


def _field_hook(field: attrs.Attribute[object], converter: Converter) -> _Hook:
    """Return a hook that also asks the field's validator.

    The class itself asks it too, but stops at the first field that is refused.
    """
    hook: _Hook = converter.get_structure_hook(field.type)
    limits = field.validator
    if not isinstance(limits, Validator) or _is_class(field.type):
        return hook

    def structure(value: object, kind: object) -> object:
        try:
            structured = hook(value, kind)
        except InvalidValueError:
            raise InvalidValueError(field.name, value, limits.allowed) from None
        limits.check(field.name, structured)
        return structured

    return structure


def _class_hook(kind: type[attrs.AttrsInstance], converter: Converter) -> _Hook:
    hook = _section_hook(_plain_class_hook(kind, converter))
    presets = cast("Mapping[str, object] | None", getattr(kind, "presets", None))
    return hook if presets is None else _preset_hook(presets, hook)


def _preset_hook(presets: Mapping[str, object], hook: _Hook) -> _Hook:
    """Return a hook that also takes the name of a preset in place of a section."""
    allowed = f"a section of keys, or one of {', '.join(presets)}"

    def structure(value: object, kind: object) -> object:
        if not isinstance(value, str):
            return hook(value, kind)
        if value not in presets:
            raise InvalidValueError("", value, allowed + did_you_mean(value, presets))
        return presets[value]

    return structure


def _plain_class_hook(kind: type[attrs.AttrsInstance], converter: Converter) -> _Hook:
    attrs.resolve_types(kind)
    hooks = {
        field.name: override(struct_hook=_field_hook(field, converter))
        for field in attrs.fields(kind)
    }
    make_hook = cast("Callable[..., _Hook]", make_dict_structure_fn)
    return make_hook(kind, converter, **hooks)


def _section_hook(hook: _Hook) -> _Hook:
    build = _after(_SECTION, hook)
    # A section with nothing below it is read as null.
    return lambda value, kind: build({} if value is None else value, kind)


def _list_hook(kind: object, converter: Converter) -> _Hook:
    as_list = types.GenericAlias(list, get_args(kind)[:1])
    hook: _Hook = converter.get_structure_hook(as_list)
    return _after(_LIST, lambda value, _: tuple(cast("list[object]", hook(value, as_list))))


def _executor_hook(converter: Converter) -> _Hook:
    build = _class_hook(ExecutorSection, converter)

    def structure(value: object, kind: object) -> object:
        if not isinstance(value, Mapping):
            return build(value, kind)
        options = {name: item for name, item in value.items() if name != "name"}
        name = {"name": value["name"]} if "name" in value else {}
        return build({**name, "options": options}, kind)

    return structure


def _dump_executor(section: ExecutorSection) -> dict[str, object]:
    return {"name": section.name, **copy.deepcopy(section.options)}


def _as_float(value: object, _: object) -> float:
    return to_float(cast("float", value))


def _member(value: object, kind: object) -> object:
    members = tuple(cast("type[enum.StrEnum]", kind))
    names: Validator[object] = Validator(
        f"one of {', '.join(members)}", lambda given: isinstance(given, str) and given in members
    )
    names.check("", value)
    return members[members.index(cast("enum.StrEnum", value))]


def _is_class(kind: object) -> bool:
    return isinstance(kind, type) and attrs.has(kind)


def _is_list(kind: object) -> bool:
    return get_origin(kind) is tuple and get_args(kind)[1:] == (Ellipsis,)


def _is_mapping(kind: object) -> bool:
    return get_origin(kind) in (Mapping, dict)


def _make_converter() -> Converter:
    converter = Converter(forbid_extra_keys=True)
    converter.register_structure_hook(bool, _only(boolean()))
    converter.register_structure_hook(int, _only(integer()))
    converter.register_structure_hook(float, _after(finite(), _as_float))
    converter.register_structure_hook(str, _only(_STRING))
    converter.register_structure_hook(enum.StrEnum, _member)
    converter.register_structure_hook_func(lambda kind: kind is object, lambda value, _: value)
    converter.register_structure_hook_func(lambda kind: kind == Scalar, _only(_SCALAR))
    converter.register_structure_hook_factory(_is_list, lambda kind: _list_hook(kind, converter))
    converter.register_structure_hook_factory(
        _is_mapping,
        lambda kind: _section_hook(cast("_Hook", mapping_structure_factory(kind, converter))),
    )
    converter.register_structure_hook_factory(_is_class, lambda kind: _class_hook(kind, converter))
    converter.register_structure_hook(ExecutorSection, _executor_hook(converter))
    converter.register_unstructure_hook(ExecutorSection, _dump_executor)
    return converter


_SECTION: Validator[object] = Validator(
    "a section of keys", lambda value: isinstance(value, Mapping)
)
_LIST: Validator[object] = Validator("a list", lambda value: isinstance(value, list | tuple))
_SCALAR: Validator[object] = Validator("a number, a string, true, false or null", is_scalar)
_STRING: Validator[object] = Validator("a string", lambda value: isinstance(value, str))
_CONVERTER = _make_converter()
