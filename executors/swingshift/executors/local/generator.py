"""Continuous batching over a Hugging Face causal LM: requests of different ages in one batch.

The library's own ``generate`` begins and ends a batch as a whole. Here requests join and leave
between two decode steps: the rows of the batch are aligned at their newest token, so that the KV
cache of all of them grows by one column a step, and what a shorter row lacks on its left is masked.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicLayer

from swingshift.sdk.errors import ConfigError
from swingshift.sdk.executor import FinishReason, Progress, VersionSpan

# Tokens of one prefill: bounds its memory, and the pause that it makes for running requests.
_PREFILL_TOKENS = 8192
_GREEDY = 0.0


@attrs.frozen(kw_only=True)
class Ask:
    """One attempt at one response, as the engine sees it.

    Attributes:
        key: Names it among those in the engine.
        context: Token ids of the prompt and of everything after it.
        max_new_tokens: Tokens it may add, at least 1.
    """

    key: int
    context: Sequence[int]
    max_new_tokens: int


@attrs.frozen(kw_only=True)
class Answer:
    """What became of an `Ask`.

    Attributes:
        key: Of the `Ask`.
        tokens: Token ids it added; an end-of-sequence token is the last of them.
        log_probs: Of each token, under the distribution it was drawn from.
        spans: The tokens by parameter version.
        finish_reason: Why it ended.
    """

    key: int
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    spans: tuple[VersionSpan, ...]
    finish_reason: FinishReason


class _Row:
    """A request that waits or runs."""

    __slots__ = ("ask", "log_probs", "tokens", "versions")

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.tokens: list[int] = []
        self.log_probs: list[float] = []
        # [version, tokens], oldest first
        self.versions: list[list[int]] = []

    @property
    def length(self) -> int:
        return len(self.ask.context) + len(self.tokens)

    def add(self, token: int, log_prob: float, version: int) -> None:
        self.tokens.append(token)
        self.log_probs.append(log_prob)
        if self.versions and self.versions[-1][0] == version:
            self.versions[-1][1] += 1
        else:
            self.versions.append([version, 1])

    def answer(self, reason: FinishReason) -> Answer:
        return Answer(
            key=self.ask.key,
            tokens=tuple(self.tokens),
            log_probs=tuple(self.log_probs),
            spans=tuple(VersionSpan(version, tokens) for version, tokens in self.versions),
            finish_reason=reason,
        )


class Generator:
    """The requests of one engine. Synchronous: whoever owns it calls `step` while there is work.

    Attributes:
        version: Parameter version that tokens are booked under.
        generated_tokens: Tokens drawn so far.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        eos_token_id: int,
        temperature: float,
        max_running: int,
        seed: int,
        ignore_eos: bool = False,
    ) -> None:
        """Start without requests.

        Args:
            model: In evaluation mode; its weights may change between steps.
            eos_token_id: Ends a response.
            temperature: Of the distribution that tokens are drawn from; 0 takes the likeliest, and
                its log-prob at temperature 1.
            max_running: Requests decoded at once.
            seed: Of the draws.
            ignore_eos: Let every response run to its budget.

        Raises:
            ConfigError: A layer of the model keeps something else than all keys and values.
        """
        self._model = model
        self._eos = eos_token_id
        self._temperature = temperature
        self._max_running = max_running
        self._ignore_eos = ignore_eos
        layers = DynamicCache(config=model.config).layers
        if not all(type(layer) is DynamicLayer for layer in layers):
            raise ConfigError(
                f"executor.model: {model.config.model_type} is not supported: rows of different"
                " age share a batch, which needs full attention in every layer"
            )
        self._device = model.device
        # the library renamed the argument
        parameters = inspect.signature(type(model).forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._random = torch.Generator(device=self._device).manual_seed(seed)
        self._waiting: deque[_Row] = deque()
        self._rows: list[_Row] = []
        self._cache: DynamicCache | None = None
        # 1 where a column of the cache belongs to the row
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=self._device)
        self.version = -1
        self.generated_tokens = 0

    @property
    def progress(self) -> Progress:
        """Requests that run and wait, and the context of those that run."""
        return Progress(len(self._rows), len(self._waiting), sum(row.length for row in self._rows))

    @property
    def has_work(self) -> bool:
        """Whether a step would do something."""
        return bool(self._rows or self._waiting)

    def add(self, ask: Ask) -> None:
        """Take a request; it begins with the next step that has room for it."""
        self._waiting.append(_Row(ask))

    def abort(self, keys: Sequence[int] | None = None) -> list[Answer]:
        """Let go of requests, of all without ``keys``, and return what they have."""
        named = None if keys is None else set(keys)

        def is_named(row: _Row) -> bool:
            return named is None or row.ask.key in named

        aborted = [row for row in (*self._rows, *self._waiting) if is_named(row)]
        self._waiting = deque(row for row in self._waiting if not is_named(row))
        self._keep([index for index, row in enumerate(self._rows) if not is_named(row)])
        return [row.answer(FinishReason.ABORT) for row in aborted]

    def drop_cache(self) -> None:
        """Free the KV cache; requests that run go on later, with their context computed anew.

        Called before weights change, and before the engine sleeps.
        """
        self._waiting.extendleft(reversed(self._rows))
        self._keep([])

    @torch.inference_mode()
    def step(self, *, admits: bool = True) -> list[Answer]:
        """Draw one more token for each running request and begin waiting ones; return who ended.

        Args:
            admits: Begin waiting requests.
        """
        ended: list[Answer] = []
        if self._rows:
            ended += self._advance(self._decode())
        if admits:
            for batch in self._admissions():
                first = len(self._rows)
                ended += self._advance(self._prefill(batch), first)
        return ended

    def _admissions(self) -> Iterator[list[_Row]]:
        """Take waiting requests, as many as there is room for, in batches."""
        while self._waiting and len(self._rows) < self._max_running:
            batch: list[_Row] = []
            longest = 0
            while self._waiting and len(self._rows) + len(batch) < self._max_running:
                longest = max(longest, self._waiting[0].length)
                if batch and longest * (len(batch) + 1) > _PREFILL_TOKENS:
                    break
                batch.append(self._waiting.popleft())
            yield batch

    def _prefill(self, batch: list[_Row]) -> Tensor:
        """Compute the context of requests, put them into the batch; return their next logits."""
        width = max(row.length for row in batch)
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        for index, row in enumerate(batch):
            context = (*row.ask.context, *row.tokens)
            ids[index, width - len(context) :] = torch.tensor(context)
            mask[index, width - len(context) :] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        cache = DynamicCache(config=self._model.config)
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        self._merge(cache, mask)
        self._rows += batch
        return logits

    def _decode(self) -> Tensor:
        newest = torch.tensor([[row.tokens[-1]] for row in self._rows], device=self._device)
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(-1, keepdim=True) - 1
        return self._forward(newest, self._mask, positions, self._cache)

    def _forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache | None
    ) -> Tensor:
        """Return the logits after the last column; the cache takes in the new ones."""
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: cache},
        )
        logits: Tensor = output.logits[:, -1]
        return logits

    def _advance(self, logits: Tensor, first: int = 0) -> list[Answer]:
        """Draw a token for each row from ``first`` on; let go of those that end with it."""
        tokens, log_probs = self._draw(logits.float())
        rows = self._rows[first:]
        self.generated_tokens += len(rows)
        ended: list[Answer] = []
        kept = list(range(first))
        for index, (row, token, log_prob) in enumerate(
            zip(rows, tokens, log_probs, strict=True), start=first
        ):
            row.add(token, log_prob, self.version)
            if token == self._eos and not self._ignore_eos:
                ended.append(row.answer(FinishReason.STOP))
            elif len(row.tokens) >= row.ask.max_new_tokens:
                ended.append(row.answer(FinishReason.LENGTH))
            else:
                kept.append(index)
        self._keep(kept)
        return ended

    def _draw(self, logits: Tensor) -> tuple[list[int], list[float]]:
        if self._temperature == _GREEDY:
            log_probs = logits.log_softmax(-1)
            tokens = log_probs.argmax(-1, keepdim=True)
        else:
            log_probs = (logits / self._temperature).log_softmax(-1)
            tokens = torch.multinomial(log_probs.exp(), 1, generator=self._random)
        drawn = log_probs.gather(-1, tokens)
        return tokens[:, 0].tolist(), drawn[:, 0].tolist()

    def _keep(self, indices: list[int]) -> None:
        """Go on with these rows alone, and with no more columns than the longest needs."""
        if len(indices) == len(self._rows):
            return
        self._rows = [self._rows[index] for index in indices]
        if not indices or self._cache is None:
            self._cache = None
            self._mask = self._mask.new_zeros(0, 0)
            return
        selected = torch.tensor(indices, device=self._device)
        mask = self._mask[selected]
        width = int(mask.sum(-1).max())
        self._mask = mask[:, -width:]
        for layer in _layers(self._cache):
            layer.keys = layer.keys[selected, :, -width:]
            layer.values = layer.values[selected, :, -width:]

    def _merge(self, cache: DynamicCache, mask: Tensor) -> None:
        """Append the rows of a prefill to the batch, aligned at their newest token."""
        if self._cache is None:
            self._cache, self._mask = cache, mask
            return
        width = max(self._mask.shape[1], mask.shape[1])
        self._mask = torch.cat([_widen(self._mask, width), _widen(mask, width)])
        for layer, joining in zip(_layers(self._cache), _layers(cache), strict=True):
            layer.keys = torch.cat([_widen(layer.keys, width, -2), _widen(joining.keys, width, -2)])
            layer.values = torch.cat(
                [_widen(layer.values, width, -2), _widen(joining.values, width, -2)]
            )


class _Layer(Protocol):
    """A layer of the cache: tensors of rows x heads x columns x width."""

    keys: Tensor
    values: Tensor


def _layers(cache: DynamicCache) -> list[_Layer]:
    return cast("list[_Layer]", cache.layers)


def _widen(tensor: Tensor, width: int, dimension: int = -1) -> Tensor:
    """Return a tensor with zeros put before a dimension, so that it is ``width`` long."""
    missing = width - tensor.shape[dimension]
    if missing == 0:
        return tensor
    padding = (missing, 0) if dimension == -1 else (0, 0, missing, 0)
    return torch.nn.functional.pad(tensor, padding)
