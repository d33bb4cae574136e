"""Policies that live in a file of the user's: ``my_policy.py:MyPolicy``."""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import TypeGuard

from swingshift.sdk.errors import UserError, did_you_mean
from swingshift.sdk.policy import DynamicSchedulePolicyBase


def is_file_reference(name_or_path: str) -> bool:
    """Return whether a policy is asked for by its file rather than by a registered name."""
    return any(mark in name_or_path for mark in (":", "/")) or name_or_path.endswith(".py")


def policy_class_in_file(reference: str) -> type[DynamicSchedulePolicyBase]:
    """Return the policy class that ``file.py:Class`` names.

    The file runs once per process, as a module of its own; it can import what lies beside it.

    Raises:
        UserError: The file is missing or fails, or the class is missing or not a policy.
    """
    file, colon, class_name = reference.rpartition(":")
    if not colon:
        file, class_name = reference, ""
    path = Path(file)
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"no policy file {file!r}; expected a registered name or file.py:Class")
    try:
        module = _load(path.resolve())
    except (Exception, SystemExit) as error:
        failure = describe_failure(error, path.resolve())
        raise UserError(f"policy file {file} does not import: {failure}") from error
    policies = _policy_names_in(module)
    known = f"policies in it: {', '.join(policies) or 'none'}"
    if not class_name:
        example = policies[0] if policies else "Class"
        raise UserError(f"policy file {file}: which class? Write {file}:{example}; {known}")
    found: object = getattr(module, class_name, None)
    if found is None:
        hint = did_you_mean(class_name, policies)
        raise UserError(f"policy file {file} has no class {class_name!r}{hint}; {known}")
    if not _is_policy_class(found):
        raise UserError(
            f"policy {reference}: expected a subclass of DynamicSchedulePolicyBase, got "
            f"{found!r}; {known}"
        )
    if found.__abstractmethods__:
        raise UserError(
            f"policy {reference} must define {', '.join(sorted(found.__abstractmethods__))}"
        )
    return found


def describe_failure(error: BaseException, file: Path | None) -> str:
    """Return an exception in one line, with the last line of a file that it passed through.

    Args:
        error: What was raised.
        file: The absolute path of the user's own code; None when it has no file.
    """
    line = error.lineno if isinstance(error, SyntaxError) else None
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename == str(file):
            line = frame.lineno
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    message = " ".join(f"{type(error).__name__}: {text}".split())
    return message if line is None else f"line {line}: {message}"


# Kept, because a second class from the same file could not register under the same name.
@functools.cache
def _load(path: Path) -> ModuleType:
    # Unique, so that files of one name in different folders do not replace each other.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    loader = SourceFileLoader(name, str(path))
    spec = ModuleSpec(name, loader, origin=str(path))
    spec.has_location = True
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importable(path.parent):
            loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    # Last, so that nothing in the folder can stand in for a library.
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _policy_names_in(module: ModuleType) -> tuple[str, ...]:
    """Return the classes that can be built, those that were only imported last."""
    found = {name: item for name, item in vars(module).items() if _is_policy_class(item)}
    names = [name for name, item in found.items() if not item.__abstractmethods__]
    return tuple(sorted(names, key=lambda name: found[name].__module__ != module.__name__))


def _is_policy_class(item: object) -> TypeGuard[type[DynamicSchedulePolicyBase]]:
    return isinstance(item, type) and issubclass(item, DynamicSchedulePolicyBase)
