"""What is added to the pages when the site is built."""

from __future__ import annotations

import pytest
from docs.hooks.formulas import as_mathml
from docs.hooks.same_host import foreign_addresses
from docs.hooks.tables import TABLES, on_page_markdown, parameters, sections
from mkdocs.exceptions import PluginError
from tests.docs.documents import ROOT

from swingshift.benchmarks.scenario_section import BenchmarkSection
from swingshift.executors.simulated.options import SimulatedOptions
from swingshift.sdk.config import RunConfig
from swingshift.sdk.metrics import METRICS, Aggregation, GpuState


@pytest.mark.parametrize(
    ("kind", "prefix"),
    [(RunConfig, ""), (SimulatedOptions, "executor"), (BenchmarkSection, "benchmark")],
)
def test_every_parameter_says_what_it_takes_and_means(kind: type, prefix: str) -> None:
    """A reader of the configuration reference never meets an empty cell."""
    silent = [
        parameter.key
        for key, section in sections(kind, prefix)
        for parameter in parameters(section, key)
        if not (parameter.allowed and parameter.description)
    ]

    assert silent == []


def test_reference_has_every_section_and_its_keys() -> None:
    """Sections below sections, in lists and behind ``null`` are described too."""
    table = "\n".join(TABLES["simulated executor"]())

    for heading in (
        "`executor.model`",
        "`executor.lengths.schedule.regimes[]`",
        "`executor.measured.engine.decode.steps[]`",
        "`executor.measured.fit_step.NAME`",
    ):
        assert f"### {heading}\n" in table
    assert "| `mfu` | `0.3` | a finite number > 0 and <= 1 | Share of peak FLOP/s" in table
    assert "The same keys as in [`executor.lengths.schedule`]" in table


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_as_many_cells_in_each_row(name: str) -> None:
    """Nothing in a cell breaks the table."""
    widths: set[int] = set()
    for line in TABLES[name]():
        if not line.startswith("|"):
            widths.clear()
            continue
        widths.add(line.replace("\\|", "").count("|"))
        assert len(widths) == 1, line


def test_metrics_table_has_every_metric() -> None:
    """With the way it aggregates; the catalogue is the reference."""
    table = "\n".join(TABLES["metrics"]())

    for name, spec in METRICS.items():
        assert f"| `{name}` | {spec.unit} | {in_words(spec.aggregation)} |" in table


def test_metrics_page_explains_the_words_of_its_table() -> None:
    """Every way to aggregate, and every state of a GPU that the ledger knows, has its row."""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")

    assert [kind for kind in Aggregation if f"\n| {in_words(kind)} | " not in page] == []
    assert [state for state in GpuState if f"\n| `{state}` | " not in page] == []


def in_words(aggregation: Aggregation) -> str:
    """Return what tables call a way to aggregate."""
    return aggregation.replace("_", " ")


def test_a_page_gets_its_tables() -> None:
    """A line of its own asks for one; everything else stays."""
    page = on_page_markdown("before\n\n<!-- table: laws -->\n\nafter")

    assert page.startswith("before\n\n| law |")
    assert page.endswith("\n\nafter")


def test_an_unknown_table_ends_the_build() -> None:
    """A misspelt name would leave a hole in the page."""
    with pytest.raises(PluginError, match=r"there is no table 'law'; there are: .*laws"):
        on_page_markdown("<!-- table: law -->")


def test_formulas_become_mathml() -> None:
    """A browser shows them without a script."""
    html = as_mathml(r"\frac{a}{b}", "math", "formula", {}, None)

    assert html.startswith('<div class="formula"><math ')
    assert "<mfrac>" in html


@pytest.mark.parametrize(
    ("text", "suffix", "found"),
    [
        ('<script src="https://cdn.example/a.js"></script>', ".html", ["https://cdn.example/a.js"]),
        ('<link rel="preconnect" href="//fonts.example">', ".html", ["//fonts.example"]),
        ('<img src="pictures/a.svg"><script src="a.js"></script>', ".html", []),
        ('<a href="https://example.org">followed by a reader</a>', ".html", []),
        (
            "p { background: url('https://example.org/a.png') }",
            ".css",
            ["https://example.org/a.png"],
        ),
        ("p { background: url(data:image/svg+xml;x) }", ".css", []),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_found(
    text: str, suffix: str, found: list[str]
) -> None:
    """A link that a reader follows is no load."""
    assert list(foreign_addresses(text, suffix)) == found
