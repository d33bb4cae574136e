"""The worked example of the documentation runs as it stands there."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "foreign_loop.py"


def test_the_example_lends_and_trains() -> None:
    """Every batch is trained, and the first cycle waits on lent GPUs."""
    story = runpy.run_path(str(EXAMPLE))["main"]()
    assert len(story) == 16
    waited_s = [float(line.split("waited ")[1].split(" s")[0]) for line in story]
    assert waited_s[0] > 0
