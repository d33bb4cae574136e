"""The tutorial tells what happens to whoever follows it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.documents import ROOT, blocks

PAGE = ROOT / "docs/write-a-policy.md"
COLUMNS = "90"


def follow(console: str, folder: Path) -> int:
    """Run the last command of a block, compare what it prints, and return its exit status."""
    command, _, shown = console.rpartition("$ swingshift ")[2].partition("\n")
    run = subprocess.run(
        [Path(sys.executable).with_name("swingshift"), *command.split()],
        cwd=folder,
        env={"COLUMNS": COLUMNS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert comparable(run.stdout) == comparable(shown), run.stderr
    return run.returncode


def comparable(text: str) -> list[str]:
    """Return the words of an output without the figures of the simulated run."""
    return re.sub(r"simulated run: .*?times", "simulated run", text, flags=re.DOTALL).split()


@pytest.mark.slow
def test_the_page_shows_what_its_commands_print(tmp_path: Path) -> None:
    """From the first file over the unsound policy to the sound one; figures of `bench` apart."""
    start, _bench, unsound, sound = (block.text for block in blocks(PAGE, "console"))
    method, whole_file, _test = (block.text for block in blocks(PAGE, "python"))
    policy = tmp_path / "my_study" / "my_policy.py"

    assert follow(start, tmp_path) == 0
    policy.write_text(policy.read_text().partition("    def update_after_step")[0] + method)
    assert follow(unsound, tmp_path) == 1
    policy.write_text(whole_file)
    assert follow(sound, tmp_path) == 0
