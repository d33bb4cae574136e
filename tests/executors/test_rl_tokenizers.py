"""Tokenizers: one token per character, and those that come in directories."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.executors.tokenizer_files import write_tokenizer

from swingshift.executors.rl.tokenizers import character_tokenizer, load_tokenizer
from swingshift.sdk.errors import UserError

ALPHABET = "0123456789+="
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant' }}{% endif %}"
)


@given(st.text(ALPHABET))
def test_characters_come_back_as_they_went(text: str) -> None:
    """One token for each, none of them special."""
    tokenizer = character_tokenizer(ALPHABET)
    ids = tokenizer.encode(text)

    assert len(ids) == len(text)
    assert all(2 <= token < tokenizer.vocab_size for token in ids)
    assert tokenizer.decode(ids) == text


def test_characters_have_fixed_numbers() -> None:
    """<pad>, <eos>, then the alphabet in its order: weights outlive the process."""
    tokenizer = character_tokenizer("ab=")

    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.vocab_size) == (0, 1, 5)
    assert tokenizer.encode("=ab") == [4, 2, 3]


def test_the_end_is_not_in_the_text_but_padding_is() -> None:
    """A model that generates padding has not given the right answer."""
    tokenizer = character_tokenizer("ab")

    assert tokenizer.decode([2, 3, 1]) == "ab"
    assert tokenizer.decode([2, 0, 3]) == "a<pad>b"


def test_a_character_without_a_token_is_named() -> None:
    """No unknown token stands in for it."""
    with pytest.raises(UserError, match=r"'12-3' has characters without a token: '-'; known: '12"):
        character_tokenizer("123").encode("12-3")


def test_characters_have_no_chat_template() -> None:
    """Messages are refused with what to do."""
    with pytest.raises(UserError, match="no chat template; write prompts as text"):
        character_tokenizer("ab").encode_messages([{"role": "user", "content": "a"}])


def test_a_directory_gives_its_tokenizer(tmp_path: Path) -> None:
    """Ids, size and special tokens are the directory's; the end stands in for missing padding."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))

    assert tokenizer.encode("two one") == [5, 4]
    assert tokenizer.decode([5, 4, 0]) == "two one"
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.vocab_size) == (0, 0, 6)


def test_messages_go_through_the_chat_template(tmp_path: Path) -> None:
    """Up to where the answer begins."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path, TEMPLATE))

    assert tokenizer.encode_messages([{"role": "user", "content": "one two"}]) == [1, 3, 4, 5, 2]


def test_messages_without_a_template_are_refused(tmp_path: Path) -> None:
    """The error names the directory and what to do."""
    tokenizer = load_tokenizer(write_tokenizer(tmp_path))

    with pytest.raises(UserError, match=r"refuses the messages: .*; write the prompt as text"):
        tokenizer.encode_messages([{"role": "user", "content": "one"}])


def test_only_directories_are_looked_at(tmp_path: Path) -> None:
    """A name from a hub is no directory: nothing is downloaded."""
    with pytest.raises(UserError, match=r"no directory 'some/model'.*nothing is downloaded"):
        load_tokenizer("some/model")
    with pytest.raises(UserError, match=r"does not load: .*expected tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    """No response could ever end."""
    with pytest.raises(UserError, match="no end-of-text token; name one as eos_token"):
        load_tokenizer(write_tokenizer(tmp_path, eos=None))
