"""Policies in files: what loads, and what each mistake is told."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from swingshift.executors.app.policy_files import policy_class_in_file
from swingshift.sdk.errors import UserError

POLICY = """
from swingshift.policies.fixed_ratio import FixedRatioDynamicSchedulePolicy
from swingshift.sdk import DynamicSchedulePolicyBase, register_policy

@register_policy("from_file_{name}")
class Mine(FixedRatioDynamicSchedulePolicy):
    pass

class Unfinished(DynamicSchedulePolicyBase):
    pass

LIMIT = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a policy file in it."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.py", POLICY.format(name=tmp_path.name))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text), encoding="utf-8")


def refusal(reference: str) -> str:
    """Return the one line with which a reference is refused."""
    with pytest.raises(UserError) as caught:
        policy_class_in_file(reference)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_class_is_found_by_relative_and_absolute_path(folder: Path) -> None:
    """The file runs once: both are one class, whose registered name is not taken twice."""
    found = policy_class_in_file("mine.py:Mine")

    assert found.__name__ == "Mine"
    assert policy_class_in_file(f"{folder}/mine.py:Mine") is found


def test_files_of_one_name_are_two_modules(folder: Path) -> None:
    """A second my_policy.py elsewhere does not replace the first."""
    write(folder / "other" / "mine.py", POLICY.format(name="elsewhere"))
    first, second = policy_class_in_file("mine.py:Mine"), policy_class_in_file("other/mine.py:Mine")

    assert first is not second
    assert sys.modules[first.__module__].__dict__["Mine"] is first


def test_what_lies_beside_the_file_can_be_imported(folder: Path) -> None:
    """A policy of two files works, and the path is afterwards as it was."""
    write(folder / "beside_the_policy.py", "SHARE = 0.5\n")
    write(folder / "two.py", "from beside_the_policy import SHARE\nfrom mine import Mine\n")
    path = list(sys.path)

    assert policy_class_in_file("two.py:Mine").__name__ == "Mine"
    assert sys.path == path


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("absent.py:Mine", "no policy file 'absent.py'; expected a registered name or file.py:Cla"),
        ("mine.txt:Mine", "no policy file 'mine.txt'; expected a registered name or file.py:Class"),
        ("mine.py", "policy file mine.py: which class? Write mine.py:Mine; policies in it: Mine, "),
        (
            "mine.py:Mina",
            "policy file mine.py has no class 'Mina'; did you mean 'Mine'?; policies ",
        ),
        ("mine.py:LIMIT", "policy mine.py:LIMIT: expected a subclass of DynamicSchedulePolicyBase"),
        ("mine.py:Unfinished", "policy mine.py:Unfinished must define deactivate_wait_samples, "),
    ],
)
def test_reference_that_names_no_policy_is_refused(
    folder: Path, reference: str, message: str
) -> None:
    """The error says what to write instead."""
    assert refusal(reference).startswith(message)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import os\n\nundefined()\n", "line 3: NameError: name 'undefined' is not defined"),
        ("import os\ndef (:\n", "line 2: SyntaxError: invalid syntax"),
        ("import not_installed_here\n", "line 1: ModuleNotFoundError: No module named 'not_inst"),
        ("\n\nraise SystemExit(3)\n", "line 3: SystemExit: 3"),
        ("import json\njson.loads('')\n", "line 2: JSONDecodeError: Expecting value"),
    ],
)
def test_file_that_fails_is_refused_with_its_own_line(
    folder: Path, source: str, message: str
) -> None:
    """The line is that of the user's file, however deep the failure lies."""
    write(folder / "bad.py", source)

    assert refusal("bad.py:X").startswith(f"policy file bad.py does not import: {message}")


def test_file_without_policies_says_so(folder: Path) -> None:
    """An empty file is not taken for a policy."""
    write(folder / "empty.py", "")

    assert refusal("empty.py").endswith("Write empty.py:Class; policies in it: none")
