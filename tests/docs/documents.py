"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = tuple(sorted((ROOT / "docs").glob("*.md")))
DOCUMENTS = (*PAGES, *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/README.md")))
FRAGMENT = "<!-- fragment -->"

_BLOCK = re.compile(
    r"^((?:<!-- \w+ -->\n)?) *```(\w+)[^\n]*\n(.*?)^ *```$", re.MULTILINE | re.DOTALL
)
_INCLUDED = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)


class Block(NamedTuple):
    """A fenced block; ``is_fragment`` says that it cannot run by itself."""

    language: str
    text: str
    is_fragment: bool


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """Yield the blocks of a page in some languages, with what they include."""
    for mark, language, text in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            whole = _INCLUDED.sub(lambda found: (ROOT / found[1]).read_text(), text)
            yield Block(language, whole, FRAGMENT in mark)


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command that a page shows.

    What a command prints is left out, and so are the variables set for it.
    """
    for block in blocks(page, "bash", "console"):
        lines = block.text.splitlines()
        if block.language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            words = shlex.split(line, comments=True)
            if words:
                yield list(dropwhile(lambda word: "=" in word, words))
    for words in re.findall(r"`((?:make|swingshift) [a-z][a-z -]*)`", page.read_text("utf-8")):
        yield words.split()
