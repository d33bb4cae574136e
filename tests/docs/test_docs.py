"""The documentation is true: its commands exist, its Python runs, its policies keep the contract.

`make docs` checks the rest: links, and that the navigation has every page.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
import textwrap
from pathlib import Path
from typing import TypeGuard

import pytest
import typer
from omegaconf import OmegaConf
from tests.docs.documents import DOCUMENTS, PAGES, ROOT, blocks, commands

from swingshift.benchmarks.runner import SEGMENT_BYTES
from swingshift.benchmarks.scenario import load_scenario
from swingshift.executors.app.assembly import execute
from swingshift.executors.app.cli import make_app
from swingshift.executors.app.configuration import load_config
from swingshift.executors.app.run_log import RunLogWriter
from swingshift.executors.simulated.costs.hardware import GpuSpec
from swingshift.executors.simulated.costs.model import ModelSpec
from swingshift.sdk import DynamicSchedulePolicyBase, registry
from swingshift.sdk.testing import check_policy

SHELL = {".", "cd", "pip", "pre-commit"}
STARTER = ROOT / "executors/swingshift/executors/app/templates/scenario.yaml.template"


def by_name(path: Path) -> str:
    """Name a page in a test's id."""
    return path.relative_to(ROOT).as_posix()


def make_targets() -> set[str]:
    """Return what can be made."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", DOCUMENTS, ids=by_name)
def test_commands_exist_and_take_what_they_are_given(page: Path) -> None:
    """Whoever types a command as it is shown is understood."""
    for words in commands(page):
        program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
        if program == "make":
            assert set(arguments) <= make_targets(), words
        elif program == "swingshift":
            parse(arguments)
        elif program == "python":
            assert arguments[0] == "-m"
            assert importlib.util.find_spec(arguments[1]), words
        elif program not in SHELL:
            assert (Path(sys.prefix) / "bin" / program).is_file(), words


def parse(arguments: list[str]) -> None:
    """Parse a command line of ours without running it; the parser raises what it would say."""
    application = typer.main.get_command(make_app())
    if arguments[0].startswith("-"):
        return
    names = application.list_commands(typer.Context(application))  # type: ignore[attr-defined]
    assert arguments[0] in names
    command = application.get_command(typer.Context(application), arguments[0])  # type: ignore[attr-defined]
    if arguments[1:]:
        command.make_context(arguments[0], arguments[1:])


@pytest.fixture
def in_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go to a folder with a run log, and forget the policies that pages register."""
    config = load_config(STARTER, ["rollout.total_rollout_steps=64"])
    with RunLogWriter(tmp_path / "run.jsonl") as log:
        execute(config, event_sinks=[log])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_decorated", dict(registry._decorated))


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_study")
@pytest.mark.parametrize("page", DOCUMENTS, ids=by_name)
def test_python_runs_and_its_policies_keep_the_contract(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run one after the other; fragments only have to be Python."""
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(page, "python")):
        file = tmp_path / f"block_{number}.py"
        file.write_text(block.text)
        if block.is_fragment:
            compile(textwrap.dedent(block.text), str(file), "exec")
            continue
        before = dict(names)
        names |= runpy.run_path(str(file), init_globals=names)
        for name, value in names.items():
            if is_policy(value) and before.get(name) is not value:
                check_policy(value, max_examples=30).assert_sound()


def is_policy(value: object) -> TypeGuard[type[DynamicSchedulePolicyBase]]:
    """Return whether a value is the class of a policy that can be built."""
    return (
        isinstance(value, type)
        and issubclass(value, DynamicSchedulePolicyBase)
        and not value.__abstractmethods__
    )


def test_yaml_of_the_scenario_page_is_a_scenario(tmp_path: Path) -> None:
    """The parts of the example make a file that can be run."""
    path = tmp_path / "example.yaml"
    texts = [part.text for part in blocks(ROOT / "docs/scenarios.md", "yaml")]
    # what stands in place of the example's machine has a test of its own
    parts = [OmegaConf.create(text) for text in texts if "measured:" not in text]
    OmegaConf.save(OmegaConf.merge(*parts), path)

    assert [run.name for run in load_scenario(str(path)).runs] == ["half", "lent"]


def test_scenario_page_names_every_option_and_preset() -> None:
    """Whoever reads it alone knows what ``bench`` can be told, and what goes by a name."""
    page = (ROOT / "docs/scenarios.md").read_text(encoding="utf-8")
    application = typer.main.get_command(make_app())
    bench = application.get_command(typer.Context(application), "bench")  # type: ignore[attr-defined]
    options = [name for item in bench.params for name in item.opts if name.startswith("--")]

    assert [name for name in options if f"| `{name}" not in page] == []
    assert [name for name in (*GpuSpec.presets, *ModelSpec.presets) if name not in page] == []


@pytest.mark.parametrize("page", ["run-log.md", "scenarios.md"])
def test_pages_say_when_a_log_goes_on_in_another_file(page: str) -> None:
    """In the size that ``bench`` really gives its logs."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")

    assert re.findall(r"(\d+) MiB", text) == [str(SEGMENT_BYTES >> 20)]


@pytest.mark.parametrize("page", DOCUMENTS, ids=by_name)
def test_json_can_be_read(page: Path) -> None:
    """An example is a document, or a document per line."""
    for block in blocks(page, "json"):
        try:
            json.loads(block.text)
        except json.JSONDecodeError:
            for line in block.text.splitlines():
                json.loads(line)


@pytest.mark.parametrize("page", DOCUMENTS, ids=by_name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    """Read as files, without the site, the documents lead to each other too."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "//" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", DOCUMENTS, ids=by_name)
def test_no_page_speaks_of_one_machine(page: Path) -> None:
    """Paths of the machine it was written on mean nothing elsewhere."""
    found = re.findall(
        r"(?<![\w.~])/(?:work|root|home|tmp|opt)\b", page.read_text(encoding="utf-8")
    )

    assert not found


def test_pages_are_found() -> None:
    """None of the above passes because there is nothing to look at."""
    assert len(PAGES) > 10
    assert sum(len(list(commands(page))) for page in DOCUMENTS) > 30
    assert sum(len(list(blocks(page, "python"))) for page in DOCUMENTS) > 5
