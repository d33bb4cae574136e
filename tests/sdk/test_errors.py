"""Errors: their wording and the hints in it."""

from __future__ import annotations

from swingshift.sdk.errors import (
    CallOrderError,
    ConfigError,
    PolicyError,
    SwingshiftError,
    UnknownNameError,
    UserError,
    did_you_mean,
)


def test_an_unknown_name_says_what_is_known_and_which_is_near() -> None:
    """The message names the kind of thing, what was given, the nearest name and all names."""
    error = UnknownNameError("policy", "defualt", ("static_fully_async", "default"))
    assert str(error) == (
        "unknown policy 'defualt'; did you mean 'default'?; known: default, static_fully_async"
    )


def test_an_unknown_name_among_none_says_so() -> None:
    """With nothing registered there is nothing to list and nothing to suggest."""
    assert str(UnknownNameError("executor", "local", ())) == "unknown executor 'local'; known: none"


def test_a_far_name_gets_no_suggestion() -> None:
    """A suggestion is made only where it is likely to be meant."""
    assert did_you_mean("zzz", ("default", "fixed_ratio")) == ""
    assert did_you_mean("fixed-ratio", ("default", "fixed_ratio")) == (
        "; did you mean 'fixed_ratio'?"
    )


def test_errors_are_grouped_by_whose_fault_they_are() -> None:
    """What a user can mend is a UserError; faults of plug-ins and of the system are not."""
    assert issubclass(UserError, SwingshiftError)
    assert issubclass(ConfigError, UserError)
    assert issubclass(UnknownNameError, UserError)
    assert not issubclass(PolicyError, UserError)
    assert not issubclass(CallOrderError, UserError)
