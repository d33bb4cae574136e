"""Lengths of prompts and responses: log-normal, alike within a prompt, cut; or observed; seeded."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict

import attrs
import numpy as np
import numpy.typing as npt

from swingshift.executors.simulated.costs.observed import ObservedPhase, check_phases
from swingshift.executors.simulated.costs.schedule import Schedule
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import InvalidValueError, finite, integer

BLOCK_PROMPTS = 1024
_KEPT_BLOCKS = 8
_DIFFICULTY, _RESPONSES, _PROMPTS, _OBSERVED = range(4)


@attrs.frozen(kw_only=True)
class PromptLengths:
    """Prompt lengths in tokens, log-normal and cut at both ends.

    The defaults suit short problems in mathematics; assumed.

    Args:
        mean_tokens: Mean after the cut.
        sigma: Standard deviation of the logarithm.
        min_tokens: Shortest prompt.
        max_tokens: Longest prompt.
    """

    mean_tokens: float = attrs.field(default=150.0, validator=finite(gt=0))
    sigma: float = attrs.field(default=0.5, validator=finite(ge=0))
    min_tokens: int = attrs.field(default=16, validator=integer(ge=1))
    max_tokens: int = attrs.field(default=1024, validator=integer(ge=1))

    def __attrs_post_init__(self) -> None:
        _require_between(self.mean_tokens, self.min_tokens, self.max_tokens)

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm before the cut; solved anew each time it is asked for."""
        return solve_log_mean(self.mean_tokens, self.sigma, self.min_tokens, self.max_tokens)


@attrs.frozen(kw_only=True)
class LengthModel:
    """Lengths of prompts and of their responses.

    The logarithm of a response's length is ``log_mean + difficulty_sigma * z_prompt +
    response_sigma * z_response``, then cut to the limits. ``log_mean`` is such that
    ``mean_tokens`` is the mean after the cut. A response of ``max_tokens`` is one that was cut off.

    Two spreads instead of one and a correlation, so that each can be moved by itself; the
    correlation within a prompt is `prompt_correlation`. The defaults match public
    DAPO-Math-17k runs (mean 12,300 to 13,500 tokens, the longest of a group 1.42 to 1.45 times the
    mean): groups of 8 give 1.43, with 0.9 % of the responses cut at 64,000 tokens and a median of
    9,600.

    Args:
        mean_tokens: Mean response length after the cut, where the schedule's factor is 1.
        difficulty_sigma: Spread of log-length between prompts.
        response_sigma: Spread of log-length among the responses to one prompt.
        min_tokens: Shortest response.
        max_tokens: Limit at which a response is cut.
        prompt: Lengths of the prompts.
        schedule: Factor on response lengths before the cut, by prompt index. Where it is not 1 the
            mean moves by it only as far as the limits let it.
        observed: Lengths that were seen, to draw from in place of everything above; empty for none.

    Raises:
        ConfigError: The mean does not lie between its limits.
        InvalidValueError: The phases of observed lengths do not cover the run one after the other,
            or other keys are given beside them.
    """

    mean_tokens: float = attrs.field(default=13_000.0, validator=finite(gt=0))
    difficulty_sigma: float = attrs.field(default=0.75, validator=finite(ge=0))
    response_sigma: float = attrs.field(default=0.285, validator=finite(ge=0))
    min_tokens: int = attrs.field(default=16, validator=integer(ge=1))
    max_tokens: int = attrs.field(default=64_000, validator=integer(ge=1))
    prompt: PromptLengths = attrs.field(factory=PromptLengths)
    schedule: Schedule = attrs.field(factory=Schedule)
    observed: tuple[ObservedPhase, ...] = ()

    def __attrs_post_init__(self) -> None:
        _require_between(self.mean_tokens, self.min_tokens, self.max_tokens)
        if self.observed:
            check_phases(self.observed)
            self._refuse_distribution()

    @property
    def longest_prompt_tokens(self) -> int:
        """Length of the longest prompt that there can be."""
        if not self.observed:
            return self.prompt.max_tokens
        return max(sample.prompt_tokens for phase in self.observed for sample in phase.samples)

    @property
    def log_mean(self) -> float:
        """Mean of the logarithm before the cut; solved anew each time it is asked for."""
        return solve_log_mean(self.mean_tokens, self.sigma, self.min_tokens, self.max_tokens)

    @property
    def sigma(self) -> float:
        """Standard deviation of log-length over all responses."""
        return math.hypot(self.difficulty_sigma, self.response_sigma)

    @property
    def prompt_correlation(self) -> float:
        """Correlation of the log-lengths of two responses to one prompt; 0 where nothing varies."""
        return (self.difficulty_sigma / self.sigma) ** 2 if self.sigma else 0.0

    def _refuse_distribution(self) -> None:
        unused = LengthModel()
        for field in attrs.fields(LengthModel):
            given = getattr(self, field.name)
            if field.name != "observed" and given != getattr(unused, field.name):
                allowed = "nothing beside observed, which takes its place"
                raise InvalidValueError(field.name, given, allowed)


@attrs.frozen
class _Block:
    """The lengths of consecutive prompts."""

    prompts: list[int]
    responses: list[tuple[int, ...]]


class LengthSource:
    """Look lengths up by prompt index.

    A length depends on the seed, the prompt and the response index only: not on the order of the
    questions nor on how many responses a prompt has. Drawn in blocks of `BLOCK_PROMPTS` prompts, of
    which the last few used are kept.
    """

    def __init__(self, model: LengthModel, *, seed: int, responses_per_prompt: int) -> None:
        """Prepare an empty source.

        Args:
            model: The distributions.
            seed: At least 0.
            responses_per_prompt: At least 1.
        """
        integer(ge=0).check("seed", seed)
        integer(ge=1).check("responses_per_prompt", responses_per_prompt)
        self._model = model
        self._seed = seed
        self._responses_per_prompt = responses_per_prompt
        self._log_mean = model.log_mean
        self._prompt_log_mean = model.prompt.log_mean
        self._blocks: OrderedDict[int, _Block] = OrderedDict()

    def lengths(self, prompt_index: int) -> tuple[int, ...]:
        """Return the lengths in tokens of all responses to one prompt."""
        block, offset = divmod(prompt_index, BLOCK_PROMPTS)
        return self._block(block).responses[offset]

    def prompt_tokens(self, prompt_index: int) -> int:
        """Return the length in tokens of one prompt."""
        block, offset = divmod(prompt_index, BLOCK_PROMPTS)
        return self._block(block).prompts[offset]

    def _block(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None:
            block = self._blocks[index] = self._draw(index)
            if len(self._blocks) > _KEPT_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(index)
        return block

    def _draw(self, block: int) -> _Block:
        return self._draw_observed(block) if self._model.observed else self._draw_modelled(block)

    def _draw_observed(self, block: int) -> _Block:
        phases = self._model.observed
        first = block * BLOCK_PROMPTS
        draws = self._generator(_OBSERVED, block).random(BLOCK_PROMPTS).tolist()
        drawn = []
        for index, draw in enumerate(draws, start=first):
            after = bisect_right(phases, index, key=lambda phase: phase.start)
            samples = phases[after - 1].samples
            drawn.append(samples[int(draw * len(samples))])
        wanted = range(self._responses_per_prompt)
        return _Block(
            [sample.prompt_tokens for sample in drawn],
            [
                tuple(seen[i % len(seen)] for i in wanted)
                for seen in (sample.response_tokens for sample in drawn)
            ],
        )

    def _draw_modelled(self, block: int) -> _Block:
        model = self._model
        logs = self._log_mean + model.difficulty_sigma * self._normals(_DIFFICULTY, block, 1)
        # One row per response index: row r is the same however many rows follow it.
        logs = logs + model.response_sigma * self._normals(
            _RESPONSES, block, self._responses_per_prompt
        )
        if not model.schedule.is_constant:
            first = block * BLOCK_PROMPTS
            factors = [model.schedule.factor(first + i) for i in range(BLOCK_PROMPTS)]
            logs = logs + np.log(factors)
        responses = _whole_tokens(logs, model.min_tokens, model.max_tokens)
        prompt = model.prompt
        prompts = self._prompt_log_mean + prompt.sigma * self._normals(_PROMPTS, block, 1)[0]
        return _Block(
            _whole_tokens(prompts, prompt.min_tokens, prompt.max_tokens).tolist(),
            [tuple(row) for row in responses.T.tolist()],
        )

    def _normals(self, stream: int, block: int, rows: int) -> npt.NDArray[np.float64]:
        return self._generator(stream, block).standard_normal((rows, BLOCK_PROMPTS))

    def _generator(self, stream: int, block: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, stream, block]))


def clipped_log_normal_mean(log_mean: float, sigma: float, low: float, high: float) -> float:
    """Return the mean of a log-normal variable whose values are cut to ``[low, high]``.

    With a = (ln low - mu) / sigma and b = (ln high - mu) / sigma it is
    low * Phi(a) + exp(mu + sigma^2 / 2) * (Phi(b - sigma) - Phi(a - sigma)) + high * (1 - Phi(b)).

    Args:
        log_mean: Mean of the logarithm, before the cut.
        sigma: Standard deviation of the logarithm, at least 0.
        low: Lower limit, above 0.
        high: Upper limit, at least ``low``.
    """
    if sigma == 0.0:
        return min(high, max(low, math.exp(log_mean)))
    a = (math.log(low) - log_mean) / sigma
    b = (math.log(high) - log_mean) / sigma
    inside = math.exp(log_mean + 0.5 * sigma * sigma) * (_phi(b - sigma) - _phi(a - sigma))
    return low * _phi(a) + inside + high * _phi(-b)


def solve_log_mean(mean: float, sigma: float, low: float, high: float) -> float:
    """Return the ``log_mean`` for which `clipped_log_normal_mean` is ``mean``, by bisection.

    Args:
        mean: Mean after the cut, between the limits.
        sigma: Standard deviation of the logarithm, at least 0.
        low: Lower limit, above 0.
        high: Upper limit.
    """
    lower, upper = math.log(low) - 10.0 * sigma, math.log(high) + 10.0 * sigma
    for _ in range(100):
        middle = 0.5 * (lower + upper)
        if clipped_log_normal_mean(middle, sigma, low, high) < mean:
            lower = middle
        else:
            upper = middle
    return 0.5 * (lower + upper)


def _require_between(mean: float, low: int, high: int) -> None:
    """Raise `ConfigError` unless a mean lies between its limits."""
    if not low < mean < high:
        raise ConfigError(
            f"mean_tokens={mean:g} must lie between min_tokens={low} and max_tokens={high}"
        )


def _phi(z: float) -> float:
    """Return the standard normal distribution function; through erfc, which keeps the far tails."""
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def _whole_tokens(logs: npt.NDArray[np.float64], low: int, high: int) -> npt.NDArray[np.int64]:
    """Return lengths rounded to whole tokens; cut before the exponential, which could overflow."""
    lengths = np.exp(np.clip(logs, math.log(low), math.log(high)))
    return np.rint(lengths).astype(np.int64)
