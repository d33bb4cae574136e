"""The speed report: what is measured and how it is told. No test looks at a time."""

from __future__ import annotations

import io
import json
from importlib.resources import files
from pathlib import Path

import pytest
from rich.console import Console

from swingshift.benchmarks.perf import __main__ as perf
from swingshift.benchmarks.perf import parts, simulator
from swingshift.benchmarks.perf.figure import Figure, Measured, Target, best_of
from swingshift.sdk.errors import UserError

TINY = perf.Sizes(prompts=128, memory_prompts=256, pairs=200, cycles=20, imports=1, repetitions=2)


@pytest.fixture(scope="module")
def figures() -> tuple[Figure, ...]:
    """Return everything, measured at a size too small to mean much."""
    return tuple(perf.measure(TINY))


def figure(is_met: bool) -> Figure:
    """Return a figure that meets its target, or does not."""
    return Figure(
        name="steps",
        measured=Measured(value=20_000.0 if is_met else 20.0, spread=0.125, repetitions=3),
        unit="steps/s",
        how="steps per CPU second",
        target=Target(limit=15_000, is_floor=True),
        detail="7 MB",
    )


def printed(figures: tuple[Figure, ...], columns: int) -> str:
    console = Console(width=columns, file=io.StringIO())
    with console.capture() as captured:
        console.print(perf.table_of(figures))
    return captured.get()


def test_best_of_keeps_the_best_and_its_spread() -> None:
    """More is better for a rate and less for a duration; the spread is a share of the best."""
    rates, durations = iter([80.0, 100.0, 90.0]), iter([2.0, 3.0, 4.0])

    assert best_of(3, lambda: next(rates), highest=True) == Measured(
        value=100.0, spread=0.2, repetitions=3
    )
    assert best_of(3, lambda: next(durations), highest=False) == Measured(
        value=2.0, spread=1.0, repetitions=3
    )


def test_targets_are_floors_or_ceilings() -> None:
    """A rate reaches its floor exactly; a duration stays below its ceiling."""
    floor, ceiling = Target(limit=15_000, is_floor=True), Target(limit=0.1, is_floor=False)

    assert (str(floor), floor.is_met(15_000), floor.is_met(14_999)) == (">= 15,000", True, False)
    assert (str(ceiling), ceiling.is_met(0.09), ceiling.is_met(0.1)) == ("< 0.1", True, False)


@pytest.mark.slow
def test_everything_that_has_a_target_is_measured(figures: tuple[Figure, ...]) -> None:
    """Speed and memory of a run, the balancer small and large, every built-in policy, imports."""
    targets = {item.name: str(item.target) for item in figures if item.target is not None}

    assert targets == {
        "simulator with run log": ">= 15,000",
        "memory kept per request": "< 100",
        "balancer, 4 replicas": ">= 100,000",
        "balancer, 1280 replicas": ">= 100,000",
        "asking default": "< 50",
        "asking fixed_ratio": "< 50",
        "asking static_fully_async": "< 50",
        "import swingshift.sdk": "< 0.1",
    }
    assert all(item.measured.value > 0 for item in figures if item.unit != "bytes")


@pytest.mark.slow
def test_simulator_is_held_against_the_skeleton_of_one_run(figures: tuple[Figure, ...]) -> None:
    """The ratio is that of the two rates beside it, whatever the machine."""
    rate = {item.name: item.measured.value for item in figures}

    assert rate["beside the skeleton"] == pytest.approx(
        rate["simulator with run log"] / rate["skeleton of the path"]
    )


@pytest.mark.slow
def test_import_names_what_it_loads(
    figures: tuple[Figure, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dependency more than attrs is named."""
    assert figures[-1].detail == "attrs is the only dependency loaded"

    monkeypatch.setattr(parts, "IMPORTED", ("attrs",))
    assert parts.import_figure(1).detail == "loads attrs and, against the rule, attr"


def test_scenario_without_lending_is_refused(tmp_path: Path) -> None:
    """What is measured needs the whole loop, so a run that never lends is no measure of it."""
    path = tmp_path / "static.yaml"
    template = files("swingshift.executors.app") / "templates" / "scenario.yaml.template"
    text = template.read_text(encoding="utf-8")
    path.write_text(text.replace("_resource_scheduling: true", "_resource_scheduling: false"))

    with pytest.raises(UserError, match=r"no run of scenario '.*static.yaml' lends GPUs"):
        simulator.dynamic_config(str(path), 10)


@pytest.mark.parametrize("columns", [80, 120])
def test_table_says_value_spread_target_and_verdict(columns: int) -> None:
    """One line for a figure, with the number of the note that explains it."""
    text = printed((figure(True), figure(False)), columns)
    lines = [" ".join(line.split()) for line in text.splitlines()]

    assert "1 steps 20,000 steps/s 12 % of 3 >= 15,000 met" in lines
    assert "1 steps 20 steps/s 12 % of 3 >= 15,000 missed" in lines


def test_program_prints_notes_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missed target is said, not punished."""
    monkeypatch.setattr(perf, "measure", lambda sizes: iter([figure(False)]))

    assert perf.main(["--json", str(tmp_path / "perf.json"), "--repetitions", "2"]) == 0
    assert " 1 steps per CPU second. Here: 7 MB." in capsys.readouterr().out
    (written,) = json.loads((tmp_path / "perf.json").read_text())["figures"]
    assert (written["name"], written["value"], written["is_met"]) == ("steps", 20.0, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--scenario", "publishd"],
            "error: unknown scenario 'publishd'; did you mean 'published'",
        ),
        (["--repetitions", "0"], "--repetitions: 0 is not allowed; expected at least 1"),
    ],
)
def test_program_refuses_in_words(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the command line does: status 2 and no traceback."""
    with pytest.raises(SystemExit) as end:
        perf.main(arguments)

    assert end.value.code == 2
    assert message in capsys.readouterr().err
