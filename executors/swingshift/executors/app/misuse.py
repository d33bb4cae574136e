"""What is wrong with a command line, in one line like that of every other error of a user's."""

from __future__ import annotations

import re
from typing import cast

import typer

from swingshift.sdk.errors import UnknownNameError

# The parser is click's: imported by some versions of typer, a part of others.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""The class of every error about a command line."""

_NO_COMMAND = re.compile(r"no such command '([^']*)'")


def describe_misuse(error: Exception) -> str:
    """Return what cannot be used, what would have been, and the nearest valid name.

    Args:
        error: A `USAGE_ERROR`.

    Returns:
        One line; empty where help was shown because there were no arguments.
    """
    # Of what this class has, the others have all but the parameter.
    usage = cast("typer.BadParameter", error)
    message = _one_sentence(usage.format_message())
    context = usage.ctx
    if context is None or not message:
        return message
    named = _NO_COMMAND.match(message)
    if named is not None:
        return str(UnknownNameError("command", named[1], getattr(context.command, "commands", ())))
    if hasattr(error, "possibilities"):
        options = [name for item in context.command.params for name in item.opts if name[0] == "-"]
        known = [*options, *context.help_option_names]
        return str(UnknownNameError("option", getattr(error, "option_name", ""), known))
    see = f"see {context.command_path} {context.help_option_names[-1]}"
    if not isinstance(error, typer.BadParameter) or error.param is None:
        return f"{message}; {see}"
    option = max(error.param.opts, key=len)
    name = option if option.startswith("-") else error.param.metavar or option.upper()
    if hasattr(error, "param_type"):
        words = _one_sentence(getattr(error.param, "help", None) or "an argument")
        return f"{name}: missing ({words}); {see}"
    return f"{name}: {_refused(error)}; {see}"


def _refused(error: typer.BadParameter) -> str:
    """Return a value that was refused, where the error knows it, and what was expected."""
    words = _one_sentence(error.message)
    checks = getattr(error.__cause__, "errors", None)
    if checks is None:
        return words
    expected = words.removeprefix("input should be ").partition(", unable to ")[0]
    if expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return f"{checks()[0]['input']!r} is not allowed; expected {expected}"


def _one_sentence(text: str) -> str:
    """Return a text in one line, as a part of a sentence."""
    line = " ".join(text.split()).rstrip(".")
    return line[:1].lower() + line[1:]
