"""Tables made from the classes they describe, when the site is built.

A page asks for one with a line ``<!-- table: NAME -->``; `TABLES` has the names.
"""

from __future__ import annotations

import enum
import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import get_args, get_origin

import attrs
from mkdocs.exceptions import PluginError

from swingshift.benchmarks.scenario_section import BenchmarkSection
from swingshift.executors.app.config_reference import ParameterDoc, describe, join_key
from swingshift.executors.app.known_keys import KNOWN_KEYS, KnownKey
from swingshift.executors.local.options import LocalOptions
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.config import RunConfig
from swingshift.sdk.metrics import METRICS
from swingshift.sdk.registry import PolicyParameter, policy_class, policy_names, policy_parameters
from swingshift.sdk.testing.executor_checks.catalogue import PROMISES
from swingshift.sdk.testing.laws import LAWS

_PLACE = re.compile(r"^<!-- table: (.+) -->$", re.MULTILINE)
_WORDS: Mapping[object, str] = {
    types.NoneType: "null",
    bool: "true or false",
    float: "a number",
    int: "an integer",
    str: "a string",
}


def on_page_markdown(markdown: str, **_event: object) -> str:
    """Return a page with its tables; MkDocs calls this for each page.

    Raises:
        PluginError: The page asks for a table that there is not.
    """

    def table(place: re.Match[str]) -> str:
        if place[1] not in TABLES:
            raise PluginError(f"there is no table {place[1]!r}; there are: {', '.join(TABLES)}")
        return "\n".join(TABLES[place[1]]())

    return _PLACE.sub(table, markdown)


def parameters(kind: type, prefix: str) -> Iterator[ParameterDoc]:
    """Yield the keys directly below a section, each with what it takes and what it means.

    The meaning stands in the field's metadata or in the docstring of the class.

    Args:
        kind: attrs class of the section.
        prefix: Its dotted key, empty for a whole configuration.
    """
    written = described_fields(kind)
    for parameter in describe(kind, prefix):
        section, _, name = parameter.key.rpartition(".")
        if section == prefix:
            yield attrs.evolve(
                parameter,
                allowed=parameter.allowed or _in_words(attrs.fields_dict(kind)[name].type),
                description=parameter.description or written.get(name, ""),
            )


def sections(kind: type, prefix: str) -> Iterator[tuple[str, type]]:
    """Yield the key and the class of a section and of all below it, in the order of the file.

    A section that may occur several times has ``NAME`` or ``[]`` in its key. What lies below a
    class is told at its first place alone.
    """
    yield from _sections(kind, prefix, set())


def described_fields(kind: type) -> dict[str, str]:
    """Return what the docstring of a class says of each field."""
    text = inspect.getdoc(kind) or ""
    found: dict[str, str] = {}
    for listed in re.findall(r"^(?:Args|Attributes):\n((?: .*\n?|\n)+)", text, re.MULTILINE):
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE):
            found[name] = re.sub(r"\s+", " ", words)
    return found


def _sections(kind: type, prefix: str, told: set[type]) -> Iterator[tuple[str, type]]:
    yield prefix, kind
    if kind in told:
        return
    told.add(kind)
    attrs.resolve_types(kind)
    for field in attrs.fields(kind):
        for below in _classes_in(field.type):
            key = join_key(prefix, field.name) + _repeated(field.type)
            yield from _sections(below, key, told)


def _classes_in(annotation: object) -> Iterator[type]:
    if isinstance(annotation, type) and attrs.has(annotation):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from _classes_in(argument)


def _in_words(annotation: object) -> str:
    if isinstance(annotation, types.UnionType):
        return " or ".join(map(_in_words, get_args(annotation)))
    if get_origin(annotation) is tuple:
        return f"a list, each item {_in_words(get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return f"one of {_codes(str(member.value) for member in annotation)}"
    return _WORDS.get(annotation, "a section")


def _repeated(annotation: object) -> str:
    origin = get_origin(annotation)
    if origin is tuple:
        return "[]"
    return ".NAME" if isinstance(origin, type) and issubclass(origin, Mapping) else ""


def _section_tables(kind: type, prefix: str) -> Iterator[str]:
    first_places: dict[type, str] = {}
    for key, section in sections(kind, prefix):
        rows = [_parameter_row(parameter) for parameter in parameters(section, key)]
        if not rows:
            continue
        if key:
            yield from (f"### `{key}`", "")
        if section in first_places:
            place = first_places[section]
            yield from (f"The same keys as in [`{place}`](#{_anchor(place)}).", "")
            continue
        first_places[section] = key
        if key:
            yield from (_summary(section), "")
        presets: Mapping[str, object] | None = getattr(section, "presets", None)
        if presets is not None:
            yield from (f"Or a name in place of the section: {_codes(presets)}.", "")
        yield from _table(("key", "default", "allowed", "meaning"), rows)


def _parameter_row(parameter: ParameterDoc) -> tuple[str, ...]:
    return (
        # In a file the options of an adapter stand beside its name.
        "every other key"
        if parameter.key == "executor.options"
        else _code(parameter.key.rpartition(".")[2]),
        parameter.default if parameter.default == "required" else _code(_short(parameter.default)),
        parameter.allowed,
        parameter.description,
    )


def _short(default: str) -> str:
    return f"{float(default):g}" if re.fullmatch(r"\d{7,}\.0", default) else default


def _anchor(key: str) -> str:
    return re.sub(r"[^\w-]", "", key.lower())


def _metrics() -> Iterator[str]:
    groups: dict[str, list[tuple[str, ...]]] = {}
    for spec in METRICS.values():
        group, _, _ = spec.name.rpartition("/")
        row = (_code(spec.name), spec.unit, spec.aggregation.replace("_", " "), spec.description)
        groups.setdefault(group.partition("/")[0], []).append(row)
    for group, rows in groups.items():
        yield from (f"### `{group}`", "")
        yield from _table(("metric", "unit", "over a cycle", "what it is"), rows)


def _laws() -> Iterator[str]:
    rows = [(_code(law.name), law.promise) for law in LAWS]
    return _table(("law", "a policy that keeps it"), rows)


def _executor_promises() -> Iterator[str]:
    rows = [(_code(promise.name), promise.text) for promise in PROMISES]
    return _table(("check", "an executor that keeps it"), rows)


def _policies() -> Iterator[str]:
    classes = {name: policy_class(name) for name in policy_names()}
    rows = [
        (
            _code(name),
            _summary(cls),
            "<br>".join(_code(_show(item)) for item in policy_parameters(cls)),
        )
        for name, cls in classes.items()
    ]
    return _table(("name", "what it does", "arguments"), rows)


def _show(parameter: PolicyParameter) -> str:
    return parameter.name if parameter.required else f"{parameter.name}={parameter.default!r}"


def _refused_keys() -> Iterator[str]:
    rows = [
        (_code(known.key), known.reason, _codes(map(_yaml, known.harmless)))
        for known in KNOWN_KEYS.values()
        if known.is_refused
    ]
    return _table(("key", "why", "accepted all the same"), rows)


def _accepted_keys() -> Iterator[str]:
    reasons: dict[str, list[KnownKey]] = {}
    for known in KNOWN_KEYS.values():
        if not known.is_refused:
            reasons.setdefault(known.reason, []).append(known)
    rows = [(reason, _codes(known.key for known in keys)) for reason, keys in reasons.items()]
    return _table(("why", "keys"), rows)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"
    yield ""


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))


def _yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")


TABLES: Mapping[str, Callable[[], Iterator[str]]] = {
    "run configuration": lambda: _section_tables(RunConfig, ""),
    "simulated executor": lambda: _section_tables(SimulatedOptions, "executor"),
    "local executor": lambda: _section_tables(LocalOptions, "executor"),
    "benchmark section": lambda: _section_tables(BenchmarkSection, "benchmark"),
    "refused keys": _refused_keys,
    "accepted keys": _accepted_keys,
    "metrics": _metrics,
    "laws": _laws,
    "executor promises": _executor_promises,
    "policies": _policies,
}
"""Every table by the name under which pages ask for it."""
