"""Validators: what Python lets pass by accident is refused by name."""

from __future__ import annotations

import math
import pickle
from collections import deque

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swingshift.sdk.errors import SwingshiftError
from swingshift.sdk.validators import (
    InvalidValueError,
    Validator,
    boolean,
    finite,
    instance_of,
    integer,
    optional,
    text,
    to_float,
    to_float_tuple,
    to_int_tuple,
    to_optional_float,
    to_tuple,
    tuple_of,
)

HUGE = 10**400


@attrs.frozen(kw_only=True)
class Example:
    share: float = attrs.field(default=0.5, converter=to_float, validator=finite(ge=0, le=1))
    waits_s: tuple[float, ...] = attrs.field(
        default=(), converter=to_float_tuple, validator=tuple_of(finite(ge=0))
    )


@pytest.mark.parametrize(
    ("validator", "accepted", "refused"),
    [
        (finite(), (0, -1.5, 1e308), (True, math.nan, math.inf, -math.inf, HUGE, "1", None)),
        (finite(ge=0, le=1), (0, 1.0), (-1e-9, 1.7, math.nan)),
        (finite(gt=0), (0.5,), (0, -0.1)),
        (integer(), (0, -5, HUGE), (True, 1.0, math.nan, "1")),
        (integer(ge=1, le=3), (1, 3), (0, 4, True)),
        (boolean(), (True, False), (0, 1, "true", None)),
        (text(), ("a", " a "), ("", "  ", 1)),
        (instance_of(Example), (Example(),), (Example, 1)),
        (tuple_of(integer()), ((), (1, 2)), ([1], (1, True), "12")),
        (optional(integer()), (None, 1), (True, 1.0)),
    ],
)
def test_a_validator_tells_right_from_wrong(
    validator: Validator[object], accepted: tuple[object, ...], refused: tuple[object, ...]
) -> None:
    """Every validator accepts its values alone; booleans are no numbers, and NaN is none."""
    for value in accepted:
        validator.check("value", value)
    for value in refused:
        with pytest.raises(InvalidValueError, match=r"^value"):
            validator.check("value", value)


@pytest.mark.parametrize(
    ("allowed", "words"),
    [
        (finite().allowed, "a finite number"),
        (finite(gt=0, le=1).allowed, "a finite number > 0 and <= 1"),
        (optional(integer(ge=1)).allowed, "an integer >= 1, or none"),
    ],
)
def test_a_validator_has_words_for_what_it_allows(allowed: str, words: str) -> None:
    """The words complete the sentence "must be ..."."""
    assert allowed == words


def test_the_error_names_attribute_given_and_allowed() -> None:
    """One line holds all a reader needs to repair the value."""
    with pytest.raises(InvalidValueError) as caught:
        Example(share=1.7)

    assert str(caught.value) == "share must be a finite number >= 0 and <= 1; got 1.7 (float)"
    assert (caught.value.name, caught.value.given) == ("share", 1.7)
    assert isinstance(caught.value, SwingshiftError)


def test_the_error_of_a_sequence_names_the_element() -> None:
    """Of many values the wrong one is shown, with its place."""
    with pytest.raises(InvalidValueError, match=r"^waits_s\[2\] must be .* >= 0; got nan"):
        Example(waits_s=[1.0, 2.0, math.nan])
    with pytest.raises(InvalidValueError, match=r"^waits_s must be a sequence"):
        Example(waits_s=3.0)  # type: ignore[arg-type]


def test_the_error_survives_pickling() -> None:
    """A worker process can report it."""
    error = InvalidValueError("share", 1.7, "less")

    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_converters_change_only_what_they_know() -> None:
    """Whole numbers and lists are welcome; everything else reaches the validator as given."""
    assert to_float(3) == 3.0
    assert type(to_float(3)) is float
    assert to_float(True) is True
    assert to_float(HUGE) == HUGE
    assert to_optional_float(None) is None
    assert to_optional_float(2) == 2.0
    assert to_tuple(["a"]) == ("a",)
    assert to_int_tuple(deque([1, 2])) == (1, 2)
    assert to_float_tuple((1, 2.5)) == (1.0, 2.5)
    assert to_tuple("12") == "12"  # type: ignore[comparison-overlap]


@given(st.lists(st.floats(0, 1e300) | st.integers(0, 10**300)))
def test_every_list_of_numbers_becomes_a_tuple_of_floats(waits_s: list[float]) -> None:
    """Conversion and validation agree on every finite number, however large."""
    example = Example(waits_s=waits_s)

    assert all(type(wait_s) is float for wait_s in example.waits_s)
    assert example.waits_s == tuple(map(float, waits_s))
