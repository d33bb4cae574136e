"""The registry: names, entry points, and constructors that get what they take."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import attrs
import pytest
from tests.sdk.snapshots import PlainPolicy

from swingshift.sdk import registry
from swingshift.sdk.errors import ConfigError, UnknownNameError, UserError
from swingshift.sdk.policy import DynamicSchedulePolicyBase
from swingshift.sdk.registry import (
    PolicyParameter,
    build_policy,
    check_policy_arguments,
    construct_policy,
    policy_class,
    policy_names,
    policy_parameters,
    register_policy,
)

POLICY_SOURCE = """
from swingshift.sdk.registry import register_policy
from tests.sdk.snapshots import PlainPolicy

{decorator}
class {name}(PlainPolicy):
    pass
"""

Install = Callable[[str, str, dict[str, str]], None]


@pytest.fixture(autouse=True)
def _fresh_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every test a registry of its own, with the built-in entry points."""
    monkeypatch.setattr(registry, "_decorated", {})


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts a distribution with one module and entry points on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(module: str, source: str, points: dict[str, str]) -> None:
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[swingshift.policies]", *lines, ""]))
        registry._entry_points_on.cache_clear()
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put


class Tunable(PlainPolicy):
    def __init__(self, horizon: int, deactivate_ratio: float = 0.5, *, label: str = "x") -> None:
        if horizon < 0:
            raise ValueError(f"horizon must be at least 0; got {horizon}")
        self.horizon = horizon
        self.deactivate_ratio = deactivate_ratio
        self.label = label


class Greedy(PlainPolicy):
    def __init__(self, **options: object) -> None:
        self.options = options


@attrs.define
class Generated(PlainPolicy):
    window: int = 3


def test_a_decorated_class_is_known_by_its_name() -> None:
    """The decorator returns the class itself."""
    assert register_policy("mine")(Tunable) is Tunable
    assert policy_class("mine") is Tunable
    assert "mine" in policy_names()
    assert set(policy_names()) >= {"default", "fixed_ratio", "static_fully_async"}


def test_the_same_class_may_register_twice() -> None:
    """Decorator and entry point, or two imports, do no harm; one class may have two names."""
    register_policy("mine")(Tunable)
    register_policy("mine")(Tunable)
    register_policy("other")(Tunable)

    assert policy_class("mine") is policy_class("other")
    builtin = policy_class("default")
    assert register_policy("default")(builtin) is policy_class("default")


@pytest.mark.parametrize("name", ["mine", "default"])
def test_a_taken_name_is_refused(name: str) -> None:
    """Whether a decorator or an entry point took it, the error names both classes."""
    if name == "mine":
        register_policy("mine")(Tunable)

    with pytest.raises(UserError, match=rf"{name!r} means two classes, .* and .*\.Greedy;"):
        register_policy(name)(Greedy)


def test_only_complete_policies_may_register() -> None:
    """A slip in decorating is found at import, not in the middle of a run."""

    class Incomplete(DynamicSchedulePolicyBase):
        pass

    with pytest.raises(UserError, match="must define deactivate_wait_samples, should_activate"):
        register_policy("mine")(Incomplete)  # type: ignore[type-abstract]
    with pytest.raises(UserError, match="must be a subclass of DynamicSchedulePolicyBase"):
        register_policy("mine")(int)  # type: ignore[type-var]
    with pytest.raises(UserError, match='write @register_policy\\("my_policy"\\)'):
        register_policy(Tunable)  # type: ignore[arg-type]


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    """The message lists every policy."""
    with pytest.raises(
        UnknownNameError, match=r"'fixd_ratio'; did you mean 'fixed_ratio'\?; known: default, "
    ):
        build_policy("fixd_ratio")


def test_entry_points_are_imported_when_asked_for(install: Install) -> None:
    """Listing names imports nothing; the decorator in the module agrees with the entry point."""
    source = POLICY_SOURCE.format(decorator='@register_policy("third")', name="Third")
    install("third_party", source, {"third": "third_party:Third"})

    assert "third" in policy_names()
    assert "third_party" not in sys.modules
    assert type(build_policy("third")).__name__ == "Third"


def test_an_entry_point_may_lead_through_another_module(install: Install) -> None:
    """A package may define a policy in one module and publish it from another."""
    source = POLICY_SOURCE.format(decorator='@register_policy("third")', name="Third")
    install("third_inner", source, {})
    install("third_outer", "from third_inner import Third", {"third": "third_outer:Third"})

    assert policy_class("third").__module__ == "third_inner"


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("broken_plug:Policy", "ImportError: no such engine"),
        ("broken_plug_gone:Policy", "ModuleNotFoundError"),
    ],
)
def test_a_broken_plug_breaks_only_itself(install: Install, value: str, complaint: str) -> None:
    """It is named, with its distribution, when asked for; everything else works."""
    install("broken_plug", "raise ImportError('no such engine')", {"broken": value})

    assert "broken" in policy_names()
    assert build_policy("default") is not None
    with pytest.raises(UserError, match=f"'broken'.*of broken_plug.*{complaint}"):
        build_policy("broken")


def test_a_plug_must_be_a_policy(install: Install) -> None:
    """What an entry point leads to is checked."""
    install("odd_plug", "Policy = 3", {"odd": "odd_plug:Policy"})

    with pytest.raises(UserError, match=r"'odd'.*must be a subclass.*got 3"):
        policy_class("odd")


def test_two_distributions_with_one_name_are_refused(install: Install) -> None:
    """Neither wins by the order of the path."""
    for module in ("one_plug", "two_plug"):
        source = POLICY_SOURCE.format(decorator="", name="Policy")
        install(module, source, {"shared": f"{module}:Policy"})

    with pytest.raises(UserError, match=r"'shared' means two classes"):
        policy_class("shared")


def test_an_entry_point_without_a_distribution_is_named_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metadata may be incomplete."""
    point = EntryPoint("bare", "gone_for_good:Policy", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: {"bare": (point,)})

    with pytest.raises(UserError, match=r"entry point 'gone_for_good:Policy'\) cannot"):
        policy_class("bare")


def test_parameters_are_those_of_the_constructor() -> None:
    """Names, types as written, defaults; keywords that are not named are left out."""
    assert policy_parameters(Tunable) == (
        PolicyParameter(name="horizon", annotation="int", default=None, required=True),
        PolicyParameter(name="deactivate_ratio", annotation="float", default=0.5, required=False),
        PolicyParameter(name="label", annotation="str", default="x", required=False),
    )
    assert policy_parameters(PlainPolicy) == ()
    assert policy_parameters(Greedy) == ()
    assert [parameter.annotation for parameter in policy_parameters(Generated)] == ["int"]


def test_parameters_may_lack_annotations() -> None:
    """An untyped policy is listed too, and one whose annotations are objects."""

    class Untyped(PlainPolicy):
        def __init__(self, horizon=1):  # type: ignore[no-untyped-def]
            self.horizon = horizon

    Untyped.__init__.__annotations__["horizon"] = int
    assert policy_parameters(Untyped)[0].annotation == "int"
    del Untyped.__init__.__annotations__["horizon"]
    assert policy_parameters(Untyped)[0].annotation == ""


def test_a_policy_gets_what_its_constructor_takes() -> None:
    """The run offers two arguments to every policy; each takes what it names."""
    offered = {"deactivate_ratio": 0.7, "only_hybrid": True}

    tunable = construct_policy(Tunable, horizon=4, **offered)
    assert isinstance(tunable, Tunable)
    assert (tunable.horizon, tunable.deactivate_ratio) == (4, 0.7)
    assert isinstance(construct_policy(PlainPolicy, **offered), PlainPolicy)
    greedy = construct_policy(Greedy, horizon=4, **offered)
    assert isinstance(greedy, Greedy)
    assert greedy.options == {"horizon": 4, **offered}


def test_an_argument_that_is_not_taken_is_refused() -> None:
    """With the nearest that is, and the list."""
    with pytest.raises(
        ConfigError, match=r"'horizn'; did you mean 'horizon'\?; it takes: horizon, "
    ):
        construct_policy(Tunable, horizn=3)
    with pytest.raises(ConfigError, match="PlainPolicy takes no argument 'window'; it takes: none"):
        construct_policy(PlainPolicy, window=3)


def test_a_missing_argument_is_named() -> None:
    """Before the constructor fails in words of its own."""
    with pytest.raises(ConfigError, match="Tunable needs the argument horizon"):
        construct_policy(Tunable)


def test_a_value_the_constructor_refuses_is_the_users_error() -> None:
    """The constructor's own words reach the user."""
    with pytest.raises(ConfigError, match="Tunable: horizon must be at least 0; got -1"):
        construct_policy(Tunable, horizon=-1)
    with pytest.raises(ConfigError, match=r"deactivate_ratio must be .* >= 0 and <= 1; got 1\.7"):
        build_policy("default", deactivate_ratio=1.7)


def test_what_the_user_wrote_is_never_dropped() -> None:
    """Keys of the ``policy:`` section are checked before the offered ones are left out."""
    check_policy_arguments(Tunable, ["horizon", "deactivate_ratio"])
    check_policy_arguments(Greedy, ["anything"])

    with pytest.raises(ConfigError, match="PlainPolicy takes no argument 'deactivate_ratio'"):
        check_policy_arguments(PlainPolicy, ["deactivate_ratio"])


def test_a_class_must_be_a_policy_to_be_built() -> None:
    """A path such as ``file.py:Class`` may lead anywhere."""
    with pytest.raises(UserError, match="must be a subclass of DynamicSchedulePolicyBase"):
        construct_policy(dict)  # type: ignore[arg-type]
