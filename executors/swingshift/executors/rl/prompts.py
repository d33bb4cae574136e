"""Prompts from files: parquet or JSON lines, with the columns that verl's data files have."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import attrs

from swingshift.executors.rl.tokenizers import Message
from swingshift.sdk.errors import UserError, did_you_mean

_REWARD_MODEL, _DATA_SOURCE, _EXTRA_INFO = "reward_model", "data_source", "extra_info"


class PromptFileError(UserError):
    """A file of prompts cannot be used."""


@attrs.frozen(kw_only=True)
class PromptRow:
    """One prompt with what its reward needs.

    Attributes:
        prompt: Text, or the messages of a conversation.
        ground_truth: What the reward function compares a response with; a string as a rule.
        data_source: Name of the data set, for reward functions that serve several; may be empty.
        extra_info: Whatever else the reward function is told.
        place: Where the prompt comes from, for errors.
    """

    prompt: str | tuple[Message, ...]
    ground_truth: object
    data_source: str = ""
    extra_info: Mapping[str, object] = attrs.field(factory=dict)
    place: str


def read_prompts(path: str, prompt_key: str = "prompt") -> tuple[PromptRow, ...]:
    """Return the prompts of a file, in its order.

    Args:
        path: A ``.parquet`` file, or a ``.jsonl`` file with one object a line. ``prompt`` is text
            or a list of messages, ``reward_model.ground_truth`` anything but null; ``data_source``
            and ``extra_info`` may be missing.
        prompt_key: The column to read as ``prompt``.

    Raises:
        PromptFileError: The file is missing, of another kind or empty, or a row of it does not fit.
    """
    file = Path(path)
    if file.suffix not in (".parquet", ".jsonl"):
        raise PromptFileError(f"{path} is of unknown kind; expected a .parquet or .jsonl file")
    if not file.is_file():
        raise PromptFileError(f"no file {path}; expected a .parquet or .jsonl file with prompts")
    read = _parquet_rows if file.suffix == ".parquet" else _json_rows
    rows = tuple(_row(place, columns, prompt_key) for place, columns in read(file, prompt_key))
    if not rows:
        raise PromptFileError(f"{path} has no rows; expected at least one prompt")
    return rows


def _parquet_rows(file: Path, prompt_key: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield rows by their index from 0, as data frames count; only columns that are used."""
    from pyarrow import ArrowException, parquet  # type: ignore[import-untyped]  # noqa: PLC0415

    try:
        with parquet.ParquetFile(file) as opened:
            present: list[str] = opened.schema_arrow.names
            wanted = (prompt_key, _REWARD_MODEL, _DATA_SOURCE, _EXTRA_INFO)
            used = [name for name in wanted if name in present]
            rows: list[dict[str, object]] = opened.read(columns=used).to_pylist()
    except ArrowException as error:
        raise PromptFileError(f"{file} is no readable parquet file: {error}") from error
    _require_columns(str(file), present, prompt_key)
    for index, columns in enumerate(rows):
        yield f"{file}, row {index}", columns


def _json_rows(file: Path, prompt_key: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield rows by their line from 1, as editors count."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{file} is not UTF-8: {error}; expected JSON lines") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{file}, line {number}"
        try:
            columns: object = json.loads(line)
        except json.JSONDecodeError as error:
            raise PromptFileError(f"{place}: {error}; expected one JSON object") from error
        if not isinstance(columns, dict):
            raise _refused(place, columns, "one JSON object")
        _require_columns(place, list(columns), prompt_key)
        yield place, columns


def _require_columns(place: str, present: list[str], prompt_key: str) -> None:
    for name in (prompt_key, _REWARD_MODEL):
        if name not in present:
            hint = did_you_mean(name, present)
            other = "; prompt_key names another" if name == prompt_key else ""
            raise PromptFileError(
                f"{place}: no column {name!r}{hint}; columns: {', '.join(present)}{other}"
            )


def _row(place: str, columns: Mapping[str, object], prompt_key: str) -> PromptRow:
    reward_model = columns[_REWARD_MODEL]
    if not isinstance(reward_model, Mapping) or reward_model.get("ground_truth") is None:
        allowed = "a section with ground_truth, the answer that the reward function looks for"
        raise _refused(f"{place}, column {_REWARD_MODEL}", reward_model, allowed)
    source = columns.get(_DATA_SOURCE)
    if not isinstance(source, str | None):
        raise _refused(f"{place}, column {_DATA_SOURCE}", source, "a string")
    extra_info = columns.get(_EXTRA_INFO)
    if not isinstance(extra_info, Mapping | None):
        raise _refused(f"{place}, column {_EXTRA_INFO}", extra_info, "a section")
    return PromptRow(
        prompt=_prompt(f"{place}, column {prompt_key}", columns[prompt_key]),
        ground_truth=reward_model["ground_truth"],
        data_source=source or "",
        extra_info=extra_info or {},
        place=place,
    )


def _prompt(place: str, given: object) -> str | tuple[Message, ...]:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, list) and given and all(map(_is_message, given)):
        return tuple(cast("list[Message]", given))
    raise _refused(place, given, "text, or a list of messages with role and content, both strings")


def _is_message(item: object) -> bool:
    return isinstance(item, Mapping) and all(
        isinstance(item.get(name), str) for name in ("role", "content")
    )


def _refused(place: str, given: object, allowed: str) -> PromptFileError:
    return PromptFileError(f"{place}: got {reprlib.repr(given)}; expected {allowed}")
