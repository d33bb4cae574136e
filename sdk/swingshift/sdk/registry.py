"""Policies by name: registered with a decorator, or by a distribution's entry points."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import attrs

from swingshift.sdk.errors import ConfigError, UnknownNameError, UserError, did_you_mean
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.validators import text

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "swingshift.policies"
"""The entry-point group in which a distribution names its policies."""

# What a run offers to every policy. A policy takes of these what its constructor names.
_OFFERED = frozenset({"deactivate_ratio", "only_hybrid"})

_PolicyT = TypeVar("_PolicyT", bound=DynamicSchedulePolicyBase)
_PolicyClass = type[DynamicSchedulePolicyBase]

_decorated: dict[str, _PolicyClass] = {}


@attrs.frozen(kw_only=True)
class PolicyParameter:
    """One keyword that a policy's constructor takes.

    Attributes:
        name: The keyword.
        annotation: Its type as written, empty when there is none.
        default: Its default, ``None`` when it is required.
        required: Whether it has no default.
    """

    name: str
    annotation: str
    default: object
    required: bool


def register_policy(name: str) -> Callable[[type[_PolicyT]], type[_PolicyT]]:
    """Return a class decorator that makes a policy known under a name.

    Runs when the policy's module is imported. Decorating the same class again changes nothing.

    Args:
        name: The name that configurations will use, for example ``"my_policy"``.

    Raises:
        UserError: The name is taken by another class, or what is decorated is not a policy.
    """
    if not text().accepts(name):
        raise UserError(f'a policy needs a name: write @register_policy("my_policy"); got {name!r}')

    def register(cls: type[_PolicyT]) -> type[_PolicyT]:
        _require_policy_class(cls, f"@register_policy({name!r})")
        taken = _decorated.get(name) or _claimed_elsewhere(name, cls)
        if taken is not None and taken is not cls:
            raise _taken(name, taken, cls)
        _decorated[name] = cls
        return cls

    return register


def policy_names() -> tuple[str, ...]:
    """Return every name that `policy_class` knows, sorted; imports no policy."""
    return tuple(sorted(_decorated.keys() | _entry_points().keys()))


def policy_class(name: str) -> type[DynamicSchedulePolicyBase]:
    """Return the policy class of a name, importing it if an entry point announces it.

    Raises:
        UnknownNameError: No policy has this name.
        UserError: The module behind the name cannot be imported, or the name means two classes.
    """
    points = _entry_points().get(name, ())
    if name not in _decorated and not points:
        raise UnknownNameError("policy", name, policy_names())
    found = [_load(point) for point in points]
    if name in _decorated:
        found.append(_decorated[name])
    for other in found[1:]:
        if other is not found[0]:
            raise _taken(name, found[0], other)
    return found[0]


def policy_parameters(cls: type[DynamicSchedulePolicyBase]) -> tuple[PolicyParameter, ...]:
    """Return the keywords that a policy's constructor names, in its order."""
    return tuple(
        PolicyParameter(
            name=parameter.name,
            annotation=_annotation(parameter),
            default=None if parameter.default is parameter.empty else parameter.default,
            required=parameter.default is parameter.empty,
        )
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )


def check_policy_arguments(cls: type[DynamicSchedulePolicyBase], names: Iterable[str]) -> None:
    """Refuse keywords that a policy's constructor does not take.

    Call it with the keys that the user wrote for this policy, before `build_policy` leaves out
    what a constructor does not take of the run's own two.

    Raises:
        ConfigError: A name is not taken; the message lists those that are.
    """
    if _takes_any_keyword(cls):
        return
    known = [parameter.name for parameter in policy_parameters(cls)]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"policy {cls.__name__} takes no argument {name!r}{did_you_mean(name, known)}; "
                f"it takes: {', '.join(known) or 'none'}"
            )


def build_policy(name: str, **arguments: object) -> DynamicSchedulePolicyBase:
    """Return a new policy, bare: the runtime wraps it in its guard.

    Args:
        name: A registered name.
        arguments: Keywords for the constructor. ``deactivate_ratio`` and ``only_hybrid`` are left
            out where it does not take them.

    Raises:
        UnknownNameError: No policy has this name.
        ConfigError: The constructor refuses an argument, or lacks one.
        UserError: The policy cannot be imported.
    """
    return construct_policy(policy_class(name), **arguments)


def construct_policy(
    cls: type[DynamicSchedulePolicyBase], **arguments: object
) -> DynamicSchedulePolicyBase:
    """Return a new policy of a class that needs no name, by the rules of `build_policy`."""
    _require_policy_class(cls, "a policy")
    parameters = policy_parameters(cls)
    if not _takes_any_keyword(cls):
        named = {parameter.name for parameter in parameters}
        arguments = {
            key: value for key, value in arguments.items() if key in named or key not in _OFFERED
        }
    check_policy_arguments(cls, arguments)
    missing = [item.name for item in parameters if item.required and item.name not in arguments]
    if missing:
        raise ConfigError(f"policy {cls.__name__} needs the argument {', '.join(missing)}")
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"policy {cls.__name__}: {error}") from error


def _entry_points() -> dict[str, tuple[EntryPoint, ...]]:
    return _entry_points_on(tuple(sys.path))


@functools.lru_cache(maxsize=4)
def _entry_points_on(path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    # Reading the metadata of a large environment takes tens of milliseconds, so the answer is
    # kept for as long as the path stays the same; the import is put off for the same reason.
    from importlib.metadata import entry_points  # noqa: PLC0415

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _load(point: EntryPoint) -> _PolicyClass:
    origin = f"policy {point.name!r} (entry point {point.value!r}{_distribution(point)})"
    try:
        loaded: object = point.load()
    except Exception as error:
        raise UserError(
            f"{origin} cannot be imported: {type(error).__name__}: {error}; repair or uninstall it"
        ) from error
    return _require_policy_class(loaded, origin)


def _claimed_elsewhere(name: str, cls: _PolicyClass) -> _PolicyClass | None:
    for point in _entry_points().get(name, ()):
        if point.value != f"{cls.__module__}:{cls.__qualname__}":
            try:
                return _load(point)
            except UserError:
                # Broken, or half-way through the very import that runs this decorator:
                # `policy_class` looks again once the name is asked for.
                continue
    return None


def _require_policy_class(found: object, origin: str) -> _PolicyClass:
    if not isinstance(found, type) or not issubclass(found, DynamicSchedulePolicyBase):
        raise UserError(f"{origin} must be a subclass of DynamicSchedulePolicyBase; got {found!r}")
    if found.__abstractmethods__:
        lacking = ", ".join(sorted(found.__abstractmethods__))
        raise UserError(f"{origin} must define {lacking}; {found.__name__} does not")
    return found


def _taken(name: str, first: _PolicyClass, second: _PolicyClass) -> UserError:
    return UserError(
        f"the policy name {name!r} means two classes, {first.__module__}.{first.__qualname__} and"
        f" {second.__module__}.{second.__qualname__}; register one of them under another name"
    )


def _distribution(point: EntryPoint) -> str:
    return f" of {point.dist.name}" if point.dist is not None else ""


def _takes_any_keyword(cls: _PolicyClass) -> bool:
    parameters = inspect.signature(cls).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _annotation(parameter: inspect.Parameter) -> str:
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return ""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
