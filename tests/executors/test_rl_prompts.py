"""Files of prompts: what is read from them, and what is told when they do not fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from pyarrow import Table, parquet  # type: ignore[import-untyped]  # it has no types

from swingshift.executors.rl.prompts import PromptFileError, PromptRow, read_prompts

Row = Mapping[str, object]

PLAIN: Row = {"prompt": "2+2=", "reward_model": {"ground_truth": "4"}}
CHAT: Row = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}],
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "data_source": "sums",
    "extra_info": {"index": 7},
}


def write(path: Path, rows: Sequence[Row]) -> str:
    """Write rows as the file's suffix says, and return its path."""
    if path.suffix == ".parquet":
        parquet.write_table(Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def refusal(path: str, **options: str) -> str:
    """Return what the user is told."""
    with pytest.raises(PromptFileError) as caught:
        read_prompts(path, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_both_kinds_of_file_give_the_same_rows(tmp_path: Path, name: str) -> None:
    """Messages, nested answers and whatever the reward is told, in the order of the file."""
    path = write(tmp_path / name, [CHAT, {**CHAT, "data_source": "more sums"}])

    first, second = read_prompts(path)

    assert first == PromptRow(
        prompt=(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2+2?"},
        ),
        ground_truth="4",
        data_source="sums",
        extra_info={"index": 7},
        place=first.place,
    )
    assert second.data_source == "more sums"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_text_prompts_need_an_answer_and_nothing_else(tmp_path: Path, name: str) -> None:
    """What is missing is empty."""
    (row,) = read_prompts(write(tmp_path / name, [PLAIN]))

    assert (row.prompt, row.ground_truth, row.data_source, row.extra_info) == ("2+2=", "4", "", {})


def test_a_row_knows_its_place(tmp_path: Path) -> None:
    """Rows of a table count from 0, lines from 1, blank ones too."""
    table = write(tmp_path / "rows.parquet", [PLAIN, PLAIN])
    lines = tmp_path / "rows.jsonl"
    lines.write_text(f"\n{json.dumps(PLAIN)}\n\n", encoding="utf-8")

    assert read_prompts(table)[1].place == f"{table}, row 1"
    assert [row.place for row in read_prompts(str(lines))] == [f"{lines}, line 2"]


def test_the_prompt_may_have_another_name(tmp_path: Path) -> None:
    """Other columns are left alone, whatever they hold."""
    row = {"question": "2+2=", "prompt": 3, "reward_model": {"ground_truth": ["4", "four"]}}

    (read,) = read_prompts(write(tmp_path / "rows.parquet", [row]), "question")

    assert (read.prompt, read.ground_truth) == ("2+2=", ["4", "four"])


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"prompt": 5}, "line 1, column prompt: got 5; expected text, or a list of messages"),
        ({"prompt": ""}, "line 1, column prompt: got ''"),
        ({"prompt": [{"role": "user"}]}, "column prompt: got [{'role': 'user'}]"),
        ({"reward_model": "4"}, "column reward_model: got '4'; expected a section with ground"),
        ({"reward_model": {"ground_truth": None}}, "column reward_model: got {'ground_truth': N"),
        ({"data_source": 1}, "column data_source: got 1; expected a string"),
        ({"extra_info": [1]}, "column extra_info: got [1]; expected a section"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, columns: Row, told: str) -> None:
    """File, row, column, what was there and what would do."""
    path = write(tmp_path / "rows.jsonl", [{**PLAIN, **columns}])

    assert refusal(path).startswith(f"{path}, line 1, column ")
    assert told in refusal(path)


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl"])
def test_a_missing_column_is_told_with_those_there_are(tmp_path: Path, name: str) -> None:
    """A near name is suggested, and the key that names another column."""
    path = write(tmp_path / name, [{"prompts": "2+2=", "reward_model": {"ground_truth": "4"}}])

    assert (
        "no column 'prompt'; did you mean 'prompts'?; columns: prompts, reward_model; "
        "prompt_key names another" in refusal(path)
    )
    assert "no column 'question'" in refusal(path, prompt_key="question")


def test_an_answer_is_never_missing(tmp_path: Path) -> None:
    """Without it nothing can be scored."""
    path = write(tmp_path / "rows.parquet", [{"prompt": "2+2="}])

    assert "no column 'reward_model'; columns: prompt" in refusal(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("rows.csv", b"prompt", "unknown kind; expected a .parquet or .jsonl file"),
        ("rows.jsonl", b"", "has no rows"),
        ("rows.jsonl", b"{}x", "line 1: Extra data"),
        ("rows.jsonl", b"[1]", "line 1: got [1]; expected one JSON object"),
        ("rows.jsonl", b"\xff\xfe", "is not UTF-8"),
        ("rows.parquet", b"prompt", "is no readable parquet file"),
    ],
)
def test_a_file_that_is_not_what_it_should_be_is_named(
    tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    """Never a traceback of a library."""
    (tmp_path / name).write_bytes(content)

    assert told in refusal(str(tmp_path / name))


def test_a_file_that_is_not_there_is_named() -> None:
    """Nothing is guessed."""
    assert refusal("nowhere.jsonl").startswith("no file nowhere.jsonl")
