"""Tokenizers in directories, as people have them, only small."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def write_tokenizer(directory: Path, template: str | None = None, eos: str | None = "<e>") -> str:
    """Write a tokenizer of a few words, as transformers does, and return where."""
    words = ["<e>", "user", "assistant", ":", "one", "two"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    loaded = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # not typed in full
        tokenizer_object=backend, eos_token=eos
    )
    loaded.chat_template = template
    loaded.save_pretrained(str(directory))
    return str(directory)
