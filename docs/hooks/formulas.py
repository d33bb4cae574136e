"""Formulas in ``math`` fences become MathML, which browsers show without a script or a font."""

from __future__ import annotations

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig

_FENCES = "pymdownx.superfences"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Give ``math`` fences to `as_mathml`; MkDocs calls this once, before the first page."""
    fence = {"name": "math", "class": "formula", "format": as_mathml}
    config.mdx_configs[_FENCES] = {"custom_fences": [fence]}
    return config


def as_mathml(
    source: str,
    language: str,
    class_name: str,
    options: dict[str, object],
    md: object,
    **_more: object,
) -> str:
    """Return the HTML of one formula; the Markdown extension calls this for each fence.

    Args:
        source: LaTeX.
        language: The fence's language.
        class_name: Class of the element around the formula.
        options: What else stands in the fence's first line; not used.
        md: The converter that asks; not used.
    """
    return f'<div class="{class_name}">{convert(source, display="block")}</div>'
