"""A page loads nothing from another host: readers stay unseen, and the site works off line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

_LOADED = {
    "audio": "src",
    "embed": "src",
    "iframe": "src",
    "img": "src",
    "link": "href",
    "object": "data",
    "script": "src",
    "source": "src",
    "video": "src",
}
_IN_CSS = re.compile(r"""(?:url\(|@import)\s*['"]?((?:https?:)?//[^'")\s;]+)""")


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that loads from elsewhere; MkDocs calls this once, at the end.

    Raises:
        PluginError: A page or a style sheet does; the message names each.
    """
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)} loads {address}"
        for path in sorted(site.rglob("*"))
        if path.suffix in {".html", ".css"}
        for address in foreign_addresses(path.read_text(encoding="utf-8"), path.suffix)
    ]
    if found:
        raise PluginError("\n".join(["the site must load nothing from another host:", *found]))


def foreign_addresses(text: str, suffix: str) -> tuple[str, ...]:
    """Return the addresses on other hosts that a page or a style sheet loads by itself.

    Args:
        text: Content of the file.
        suffix: ``.html`` or ``.css``. A link that a reader has to follow is none.
    """
    if suffix == ".css":
        return tuple(_IN_CSS.findall(text))
    parser = _Loads()
    parser.feed(text)
    return tuple(parser.addresses())


class _Loads(HTMLParser):
    """Collects what the elements of a page load."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element loads; the parser calls this for each."""
        address = dict(attrs).get(_LOADED.get(tag, ""))
        if address is not None:
            self._loaded.append(address)

    def addresses(self) -> Iterator[str]:
        """Yield those on other hosts."""
        for address in self._loaded:
            if re.match(r"(https?:)?//", address):
                yield address
