"""Text to token ids and back: tokenizers from directories, and one token per character."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from swingshift.sdk.errors import UserError

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerBase

Message: TypeAlias = Mapping[str, str]
"""One message of a conversation: ``role`` and ``content``."""

_PAD, _EOS = "<pad>", "<eos>"


class Tokenizer(Protocol):
    """What a task needs of a tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends a response."""
        ...

    @property
    def pad_token_id(self) -> int:
        """The token that fills up batches."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many tokens there are; ids lie below it."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text that begins a sequence."""
        ...

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        """Return a conversation by the chat template, up to where the model's answer begins.

        Raises:
            UserError: There is no template, or it refuses the messages.
        """
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, without the special ones."""
        ...


def character_tokenizer(alphabet: str) -> Tokenizer:
    """Return a tokenizer with one token per character, and ``<pad>`` and ``<eos>`` before them.

    Padding that a model generates shows in the decoded text, so that it is no right answer.

    Args:
        alphabet: Every character once.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # noqa: PLC0415

    names = (_PAD, _EOS, *alphabet)
    backend = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([_EOS])
    return _CharacterTokenizer(backend, alphabet)


def load_tokenizer(directory: str) -> Tokenizer:
    """Return the tokenizer of a directory in the Hugging Face format; no code in it is run.

    Raises:
        UserError: There is no such directory, or no usable tokenizer in it.
    """
    if not Path(directory).is_dir():
        raise UserError(
            f"no directory {directory!r}; expected one with tokenizer files (nothing is downloaded)"
        )
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        loaded = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # what a library raises on files that are not as it expects
        raise UserError(
            f"the tokenizer in {directory} does not load: {_one_line(error)}; "
            "expected tokenizer.json and tokenizer_config.json as transformers writes them"
        ) from error
    if len(loaded) <= 1:
        raise UserError(
            f"{directory} has no tokenizer: what transformers makes of it knows {len(loaded)} "
            "tokens; expected tokenizer.json and tokenizer_config.json as transformers writes them"
        )
    if loaded.eos_token_id is None:
        raise UserError(
            f"the tokenizer in {directory} has no end-of-text token; "
            "name one as eos_token in its tokenizer_config.json"
        )
    return _DirectoryTokenizer(loaded, directory)


class _CharacterTokenizer:
    """One token per character."""

    eos_token_id = 1
    pad_token_id = 0

    def __init__(self, backend: tokenizers.Tokenizer, alphabet: str) -> None:
        self._backend = backend
        self._alphabet = alphabet
        self.vocab_size: int = backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        unknown = sorted(set(text) - set(self._alphabet))
        if unknown:
            raise UserError(
                f"{text!r} has characters without a token: {''.join(unknown)!r}; "
                f"known: {self._alphabet!r}"
            )
        return self._backend.encode(text).ids

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        raise UserError(
            "a tokenizer with one token per character has no chat template; "
            "write prompts as text, or name a directory with a tokenizer"
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(list(ids))


class _DirectoryTokenizer:
    """A tokenizer of transformers."""

    def __init__(self, loaded: PreTrainedTokenizerBase, directory: str) -> None:
        self._loaded = loaded
        self._directory = directory
        self.eos_token_id = int(loaded.eos_token_id)
        pad = loaded.pad_token_id
        self.pad_token_id = self.eos_token_id if pad is None else int(pad)
        self.vocab_size = len(loaded)

    def encode(self, text: str) -> list[int]:
        return cast("list[int]", self._loaded.encode(text))

    def encode_messages(self, messages: Sequence[Message]) -> list[int]:
        try:
            ids = self._loaded.apply_chat_template(
                [dict(message) for message in messages],
                add_generation_prompt=True,
                return_dict=False,
            )
        except Exception as error:  # templates are programs: they raise what they like
            raise UserError(
                f"the chat template of the tokenizer in {self._directory} refuses the messages: "
                f"{_one_line(error)}; write the prompt as text, or name a tokenizer with a chat "
                "template that takes them"
            ) from error
        return cast("list[int]", ids)

    def decode(self, ids: Sequence[int]) -> str:
        return cast("str", self._loaded.decode(list(ids), skip_special_tokens=True))


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
