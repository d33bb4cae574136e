"""What a result looks like: the document, the tables, the plots, the folder."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import attrs
import pytest
from rich.console import Console
from tests.benchmarks.small_world import report, small_result, small_scenario

from swingshift.benchmarks.document import report_document, result_document, to_json
from swingshift.benchmarks.plots import PLOTS, draw_metric, draw_sensitivity
from swingshift.benchmarks.report import write_report
from swingshift.benchmarks.result import BenchmarkResult, summarise
from swingshift.benchmarks.scenario_section import ComparisonSection, SensitivitySection
from swingshift.benchmarks.sensitivity import Sensitivity, SensitivityRow, Shift
from swingshift.benchmarks.tables import (
    Table,
    parameters_table,
    runs_table,
    scenario_line,
    sensitivity_table,
    to_markdown,
    to_rich,
    verdicts_table,
)
from swingshift.benchmarks.wording import show_number

LABELS = {"fixed": "Fixed", "lending": "Lending"}
PNG = b"\x89PNG\r\n\x1a\n"


def study() -> Sensitivity:
    """Return a study with a limit, a failure and a parameter that is 0."""
    rows = (
        SensitivityRow(
            key="executor.training.mfu",
            value=0.3,
            is_fitted=True,
            lower=Shift(value=0.24, is_clipped=False, reductions=(-0.034,)),
            higher=Shift(value=0.36, is_clipped=False, reductions=(0.0123,)),
        ),
        SensitivityRow(
            key="executor.transfer.network_efficiency",
            value=0.9,
            is_fitted=False,
            lower=Shift(value=0.72, is_clipped=False, reductions=None, problem="no replica"),
            higher=Shift(value=1.0, is_clipped=True, reductions=(-0.00001,)),
        ),
    )
    return Sensitivity(
        section=SensitivitySection(prompts=2000),
        comparisons=(ComparisonSection(run="lending", versus="fixed"),),
        rows=rows,
        zeros=("executor.variation.noise_sigma",),
    )


@pytest.fixture
def result(tmp_path: Path) -> BenchmarkResult:
    """Return the result that nothing ran for."""
    return small_result(tmp_path)


def shown(table: Table, width: int) -> str:
    """Return a table as a terminal of a width shows it."""
    console = Console(width=width, file=io.StringIO())
    console.print(to_rich(table))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_document_has_the_documented_shape(result: BenchmarkResult) -> None:
    """The names, nesting and units that programs rely on, exactly."""
    document = json.loads(to_json(result_document(result)))
    run = document["runs"][1]
    assert document.keys() == {"scenario", "seeds", "runs", "comparisons"}
    assert document["seeds"] == 2
    assert run.pop("metrics") == {
        "dynamic_resource/mq_size": {"mean": 2.0, "std": 0.0},
        "dynamic_resource/train_resource_utilization": {"mean": 0.5, "std": 0.0},
        "timing_s/step": {"mean": 40.0, "std": 0.0},
    }
    assert run == {
        "name": "lending",
        "policy": "default",
        "trained_samples": {"mean": 40.0, "std": 0.0},
        "unused_samples": {"mean": 4.0, "std": 0.0},
        "wall_clock_s": {"mean": 80.0, "std": 0.0},
    }
    assert document["comparisons"] == [
        {
            "run": "lending",
            "versus": "fixed",
            "wall_clock_reduction": pytest.approx(0.2),
            "published": 0.2,
        }
    ]


def test_document_refuses_what_json_does_not_have(result: BenchmarkResult) -> None:
    """A figure that is not a number is an error here, not in whoever reads the file."""
    document = result_document(result)
    document["comparisons"][0]["wall_clock_reduction"] = math.nan
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(document)


def test_report_document_adds_verdicts_and_sensitivity(result: BenchmarkResult) -> None:
    """It holds everything that the other one holds, and the rest of the report."""
    document = report_document(result, study())
    assert result_document(result).items() <= document.items()
    assert [row["holds"] for row in document["expectations"]] == [True, True, True]
    lower = document["sensitivity"][0]["lower"]
    assert lower == {"value": 0.24, "is_clipped": False, "reductions": [-0.034]}
    assert document["sensitivity"][1]["lower"]["reductions"] is None


@pytest.mark.parametrize("width", [80, 120])
def test_tables_show_every_figure(result: BenchmarkResult, width: int) -> None:
    """No figure is cut off on a narrow terminal."""
    text = shown(runs_table(result), width) + shown(verdicts_table(result), width)
    for figure in ("100.0 s", "80.0 s", "2 samples", "50.0 %", "-20.0 %", "Lending", "default"):
        assert figure in text
    assert "…" not in text


def test_long_names_leave_room_for_figures(result: BenchmarkResult) -> None:
    """On 80 columns a policy from a file and long labels are broken, figures and words are not."""
    fixed, lending = result.runs
    policy = "studies/of/mine/policies.py:APolicyWithAVeryLongNameThatSaysWhatItDoes"
    run = attrs.evolve(lending.run, policy=policy, label="lending sixteen GPUs")
    slower = tuple(
        attrs.evolve(report, wall_clock_s=90_000.0 + 4000.0 * seed)
        for seed, report in enumerate(lending.reports)
    )
    long = attrs.evolve(lending, run=run, reports=slower)
    lines = shown(runs_table(attrs.evolve(result, runs=(fixed, long, long))), 80).splitlines()
    assert max(map(len, lines)) <= 80
    (clock,) = (line.split() for line in lines if "Wall clock" in line)
    assert clock[-8:] == ["25.6", "±", "0.8", "h"] * 2
    cells = " ".join(lines)
    assert "Policy" in cells
    assert "APolicyWith" in cells
    assert "studies" not in cells


def test_sensitivity_is_readable_on_80_columns() -> None:
    """Large and small values and every shift are shown whole."""
    first, second = study().rows
    rows = (
        attrs.evolve(first, key="executor.gpu.memory_bandwidth_bytes_per_s", value=1.48e14),
        attrs.evolve(second, key="executor.transfer.host_link_efficiency", value=2e-5),
    )
    wide = attrs.evolve(study(), rows=rows, comparisons=study().comparisons * 2)
    wide = attrs.evolve(
        wide,
        rows=tuple(
            attrs.evolve(
                row,
                lower=attrs.evolve(row.lower, reductions=(-0.111, -0.222)),
                higher=attrs.evolve(row.higher, reductions=(0.111, 0.222)),
            )
            for row in rows
        ),
    )
    text = shown(sensitivity_table(wide, LABELS), 80)
    for words in ("148e12", "20e-6", "-11.1 / +11.1", "-22.2 / +22.2*", "(fitted)"):
        assert words in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.335, "0.335"),
        (13_000.0, "13000"),
        (1.48e14, "148e12"),
        (96e9, "96e9"),
        (1.0e6, "1e6"),
        (2e-5, "20e-6"),
        (-3.2e-7, "-320e-9"),
    ],
)
def test_numbers_are_short_and_can_be_copied_into_a_file(value: float, text: str) -> None:
    """Large and small ones have an exponent that is a multiple of three."""
    assert show_number(value) == text
    assert float(text) == value


def test_verdicts_say_what_was_missed(tmp_path: Path) -> None:
    """A row that does not hold stands out, and is counted."""
    result = small_result(
        tmp_path,
        "benchmark.comparisons=[{run: lending, versus: fixed, published: 0.9, tolerance: 0}]",
    )
    assert [verdict.result for verdict in result.missed] == ["Wall clock vs Fixed"]
    assert [row[-1] for row in verdicts_table(result).rows] == ["NO", "yes", "yes"]


def test_without_anything_published_only_figures_are_shown(tmp_path: Path) -> None:
    """Someone's own scenario has no empty columns."""
    result = small_result(
        tmp_path,
        "benchmark.comparisons=[{run: lending, versus: fixed}]",
        "benchmark.expectations=[]",
    )
    table = verdicts_table(result)
    assert (table.title, table.columns) == ("Comparisons", ("Result", "Run", "Here"))
    assert table.rows == (("Wall clock vs Fixed", "Lending", "-20.0 %"),)


def test_sensitivity_is_in_points_with_its_limits() -> None:
    """Down and up stand side by side; limits, failures and zeros are told below."""
    table = sensitivity_table(study(), LABELS)
    assert table.columns == ("Parameter", "Value", "vs Fixed")
    assert table.rows == (
        ("training.mfu (fitted)", "0.3", "-3.4 / +1.2"),
        ("transfer.network_efficiency", "0.9", "failed / +0.0*"),
    )
    assert "2,000 prompts per run, 1 common seed." in table.note
    assert "transfer.network_efficiency to 1." in table.note
    assert "because they are 0: variation.noise_sigma." in table.note
    assert "Failed with transfer.network_efficiency=0.72: no replica." in table.note


def test_parameters_name_their_source(tmp_path: Path) -> None:
    """Fitted ones are marked; where nothing is said, nothing is made up."""
    rows = {row[0]: row[1:] for row in parameters_table(small_scenario(tmp_path)).rows}
    assert rows["training.mfu"] == ("0.3", "fitted to the published results")
    assert rows["gpu.memory_bytes"] == ("96e9", "datasheet")
    assert rows["cold_start_s"] == ("90", "")


def test_the_size_is_told_in_a_line(tmp_path: Path) -> None:
    """How many runs, seeds and prompts; a quick answer says that it is rough."""
    scenario = small_scenario(tmp_path)
    assert scenario_line(scenario) == "2 runs x 2 seeds, 44 prompts each."
    quick = attrs.evolve(scenario, is_quick=True, runs=scenario.runs[:1])
    assert scenario_line(quick).startswith("1 run x 2 seeds, 44 prompts each; quick: fewer")


def test_markdown_keeps_cells_apart(result: BenchmarkResult) -> None:
    """A bar in a cell does not become a column."""
    table = attrs.evolve(runs_table(result), columns=("a|b", "c", "d"))
    assert to_markdown(table).splitlines()[2] == "| a\\|b | c | d |"


@pytest.mark.parametrize("cycles", [2, 150])
@pytest.mark.parametrize("plot", PLOTS, ids=lambda plot: plot.file)
def test_every_plot_of_the_specification_is_drawn(
    plot: object, cycles: int, tmp_path: Path
) -> None:
    """Short runs as they are, long ones smoothed, also when seeds differ in length."""
    spec = next(item for item in PLOTS if item is plot)
    scenario = small_scenario(tmp_path)
    series = [{item.metric: 0.5 + index % 3 for item in PLOTS} for index in range(cycles)]
    reports = [report(cycles=series), report(cycles=series[1:])] * 2
    path = draw_metric(spec, summarise(scenario, reports), tmp_path)
    assert path == tmp_path / f"{spec.file}.png"
    content = path.read_bytes()
    assert content.startswith(PNG)
    assert len(content) > 5_000


def test_nothing_to_draw_is_no_file(tmp_path: Path) -> None:
    """A metric that no run has, and a study without parameters, have no plot."""
    empty = summarise(small_scenario(tmp_path), [report()] * 4)
    assert draw_metric(PLOTS[0], empty, tmp_path) is None
    assert draw_sensitivity(attrs.evolve(study(), rows=()), LABELS, tmp_path) is None


def test_the_report_is_a_folder_that_stands_alone(result: BenchmarkResult, tmp_path: Path) -> None:
    """The summary shows every plot that was drawn, by a name relative to it."""
    folder = tmp_path / "new" / "report"
    files = write_report(result, study(), folder)
    assert {path.name for path in files} == {path.name for path in folder.iterdir()}
    summary = (folder / "summary.md").read_text(encoding="utf-8")
    for path in folder.glob("*.png"):
        assert f"]({path.name})" in summary
    assert {"step_time.png", "mq_size.png", "sensitivity.png", "result.json"} <= {
        path.name for path in files
    }
    assert json.loads((folder / "result.json").read_text(encoding="utf-8"))["sensitivity"]
    for words in ("A small world.", "fitted to the published results", "vs Fixed"):
        assert words in summary
