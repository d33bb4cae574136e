"""The policy base class: defaults, and state that survives a restart."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import ClassVar

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.snapshots import SNAPSHOT, PlainPolicy

from swingshift.sdk.errors import PolicyError
from swingshift.sdk.policy import DynamicSchedulePolicyBase, Rebalance, RebalanceScope
from swingshift.sdk.validators import InvalidValueError

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 5))
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


class Keeper(PlainPolicy):
    """Keeps whatever it is given."""

    def __init__(self, kept: object = None, name: str = "keeper") -> None:
        self.kept = kept
        self.name = name


class NamingKeeper(Keeper):
    """Saves one of its attributes; the other is configuration."""

    state_attributes: ClassVar[tuple[str, ...] | None] = ("kept",)


@attrs.define
class SlottedPolicy(PlainPolicy):
    """Keeps its attributes in slots, one of them private."""

    ratio: float = 0.5
    _history: tuple[float, ...] = ()


def through_json(state: Mapping[str, object]) -> dict[str, object]:
    """Return a state as a checkpoint file would give it back."""
    restored: dict[str, object] = json.loads(json.dumps(state, allow_nan=False))
    return restored


def test_the_base_class_neither_rebalances_nor_learns() -> None:
    """A policy without state needs no ``__init__`` and only three methods."""
    policy = PlainPolicy()

    assert policy.request_rebalance(1, SNAPSHOT) is None
    policy.update_after_step(1, SNAPSHOT)
    assert policy.state_dict() == {}
    policy.load_state_dict({})


def test_the_three_questions_are_required() -> None:
    """A policy that leaves one out cannot be built."""
    with pytest.raises(TypeError, match="should_deactivate"):
        DynamicSchedulePolicyBase()  # type: ignore[abstract]


def test_a_rebalance_moves_everything_unless_told_otherwise() -> None:
    """The decision is a value."""
    assert Rebalance() == Rebalance(RebalanceScope.ALL)
    assert Rebalance(RebalanceScope.EXCESS).scope is RebalanceScope.EXCESS
    with pytest.raises(InvalidValueError, match="scope must be a RebalanceScope"):
        Rebalance("all")  # type: ignore[arg-type]


@given(VALUES)
def test_state_comes_back_as_it_was(kept: object) -> None:
    """Values keep their types through JSON: tuples, bounded deques and infinities included."""
    restored = Keeper()
    restored.load_state_dict(through_json(Keeper(kept).state_dict()))

    assert restored.kept == kept
    assert repr(restored.kept) == repr(kept)


def test_state_shares_nothing_with_the_policy() -> None:
    """Neither a saved nor a loaded state changes when the policy learns on."""
    policy, restored = Keeper({"waits": [1, [2]]}), Keeper()
    state = policy.state_dict()
    restored.load_state_dict(state)
    for keeper in (policy, restored):
        assert isinstance(keeper.kept, dict)
        keeper.kept["waits"][1].append(3)

    assert state["kept"] == {"waits": [1, [2]]}


def test_attributes_in_slots_are_state_too() -> None:
    """A policy written as an attrs class loses nothing."""
    policy, restored = SlottedPolicy(0.7, (1.0, 2.0)), SlottedPolicy()

    restored.load_state_dict(through_json(policy.state_dict()))

    assert restored == policy
    assert restored.state_dict() == policy.state_dict()


def test_named_attributes_alone_are_state() -> None:
    """Configuration of a resumed run wins over that of the saved one."""
    restored = NamingKeeper(name="new")

    restored.load_state_dict(NamingKeeper(3, name="old").state_dict())

    assert (restored.kept, restored.name) == (3, "new")


@pytest.mark.parametrize(
    "kept",
    [
        {1, 2},
        object(),
        OrderedDict(a=1),
        {1: "a"},
        {"__kind__": "tuple"},
        RebalanceScope.ALL,
        b"bytes",
    ],
)
def test_what_json_cannot_carry_is_refused_by_name(kept: object) -> None:
    """Nothing is saved as something else; the message says what may be kept."""
    with pytest.raises(PolicyError, match=r"Keeper\.kept\[0\] cannot be saved.*override"):
        Keeper([kept]).state_dict()


def test_a_state_of_other_attributes_is_refused() -> None:
    """Missing and unknown keys are errors, and leave the policy as it was."""
    policy = Keeper(1)

    with pytest.raises(PolicyError, match="the state of Keeper is 'kept', 'name'; got 'kept'"):
        policy.load_state_dict({"kept": 2})
    with pytest.raises(PolicyError, match="'extra'"):
        policy.load_state_dict({"kept": 2, "name": "x", "extra": 3})

    assert (policy.kept, policy.name) == (1, "keeper")


def test_a_damaged_state_is_refused_as_a_whole() -> None:
    """One value of unknown kind, and nothing is taken over."""
    policy = Keeper(1)

    with pytest.raises(PolicyError, match="unknown kind 'set'"):
        policy.load_state_dict({"name": "x", "kept": {"__kind__": "set", "items": []}})

    assert policy.name == "keeper"


def test_not_a_number_is_kept() -> None:
    """Even NaN, which equals nothing, comes back."""
    restored = Keeper()
    restored.load_state_dict(through_json(Keeper(math.nan).state_dict()))

    assert isinstance(restored.kept, float)
    assert math.isnan(restored.kept)
