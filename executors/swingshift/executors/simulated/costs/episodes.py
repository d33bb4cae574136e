"""Episodes of several turns: how many, how long tools take between them and what they return."""

from __future__ import annotations

import hashlib
import math
from statistics import NormalDist

import attrs

from swingshift.executors.simulated.costs.lengths import solve_log_mean
from swingshift.sdk.errors import ConfigError
from swingshift.sdk.validators import finite, integer

_TURNS, _PAUSES, _OBSERVATIONS = range(3)
_NORMAL = NormalDist()


@attrs.frozen(kw_only=True)
class ToolPauses:
    """Seconds between two turns while tools run, log-normal.

    The defaults suit running short programs in a shared sandbox; assumed.

    Args:
        mean_s: Mean; 0 for tools that answer at once.
        sigma: Standard deviation of the logarithm.
    """

    mean_s: float = attrs.field(default=2.0, validator=finite(ge=0))
    sigma: float = attrs.field(default=1.0, validator=finite(ge=0))


@attrs.frozen(kw_only=True)
class ObservationLengths:
    """Tokens that a tool returns, log-normal and cut at both ends.

    The defaults suit the printed output of short programs; assumed.

    Args:
        mean_tokens: Mean after the cut.
        sigma: Standard deviation of the logarithm.
        min_tokens: Shortest output, chat template included.
        max_tokens: Limit at which an output is cut.
    """

    mean_tokens: float = attrs.field(default=100.0, validator=finite(gt=0))
    sigma: float = attrs.field(default=0.8, validator=finite(ge=0))
    min_tokens: int = attrs.field(default=8, validator=integer(ge=1))
    max_tokens: int = attrs.field(default=512, validator=integer(ge=1))

    def __attrs_post_init__(self) -> None:
        if not self.min_tokens < self.mean_tokens < self.max_tokens:
            raise ConfigError(
                f"mean_tokens={self.mean_tokens:g} must lie between min_tokens={self.min_tokens} "
                f"and max_tokens={self.max_tokens}"
            )


@attrs.frozen(kw_only=True)
class EpisodeModel:
    """Turns of an episode, and what happens between them; the default is a single turn.

    The number of turns is ``min_turns`` plus a geometric number, cut at ``max_turns``; with
    ``mean_turns`` equal to ``min_turns`` it is fixed. The tokens that a response generates are
    those of the length model whatever the number of turns, in equal shares.

    Args:
        min_turns: Fewest turns.
        mean_turns: Mean number of turns before the cut, at least ``min_turns``.
        max_turns: Most turns.
        pause: How long tools take between two turns.
        observation: How much they return.
    """

    min_turns: int = attrs.field(default=1, validator=integer(ge=1))
    mean_turns: float = attrs.field(default=1.0, validator=finite(ge=1))
    max_turns: int = attrs.field(default=16, validator=integer(ge=1))
    pause: ToolPauses = attrs.field(factory=ToolPauses)
    observation: ObservationLengths = attrs.field(factory=ObservationLengths)

    def __attrs_post_init__(self) -> None:
        if not self.min_turns <= self.mean_turns <= self.max_turns:
            raise ConfigError(
                f"mean_turns={self.mean_turns:g} must lie between min_turns={self.min_turns} and "
                f"max_turns={self.max_turns}"
            )

    @property
    def is_single_turn(self) -> bool:
        """Whether every episode is one turn."""
        return self.mean_turns == 1.0


class EpisodeSource:
    """Look up the course of an episode.

    Each answer depends on the seed, the prompt, the response and the turn only: not on the order of
    the questions, nor on what was asked for before.
    """

    def __init__(self, model: EpisodeModel, *, seed: int) -> None:
        """Prepare the distributions.

        Args:
            model: The distributions.
            seed: At least 0.
        """
        integer(ge=0).check("seed", seed)
        self._model = model
        self._seed = seed
        further = model.mean_turns - model.min_turns
        # logarithm of the probability of one turn more
        self._log_more = math.log(further / (1.0 + further)) if further else -math.inf
        lengths = model.observation
        self._log_tokens = solve_log_mean(
            lengths.mean_tokens, lengths.sigma, lengths.min_tokens, lengths.max_tokens
        )

    @property
    def is_single_turn(self) -> bool:
        """Whether every episode is one turn."""
        return self._model.is_single_turn

    def turns(self, prompt_index: int, response_index: int) -> int:
        """Return how many turns an episode has, unless its budget ends it before."""
        model = self._model
        draw = self._uniform(_TURNS, prompt_index, response_index, 0)
        return min(model.max_turns, model.min_turns + int(math.log(draw) / self._log_more))

    def turn_end(
        self, response_tokens: int, prompt_index: int, response_index: int, turn: int
    ) -> int:
        """Return how many tokens a response has generated when a turn of it ends by itself.

        Args:
            response_tokens: What it generates in all.
            prompt_index: The prompt.
            response_index: Which of its responses.
            turn: From 0.
        """
        turns = self.turns(prompt_index, response_index)
        return response_tokens * min(turn + 1, turns) // turns

    def pause_s(self, prompt_index: int, response_index: int, turn: int) -> float:
        """Return the seconds that tools take before a turn, which is 1 or above."""
        pause = self._model.pause
        z = self._normal(_PAUSES, prompt_index, response_index, turn)
        return pause.mean_s * math.exp(pause.sigma * z - 0.5 * pause.sigma * pause.sigma)

    def observation_tokens(self, prompt_index: int, response_index: int, turn: int) -> int:
        """Return the tokens that are put before a turn, which is 1 or above."""
        lengths = self._model.observation
        z = self._normal(_OBSERVATIONS, prompt_index, response_index, turn)
        # cut before the exponential, which could overflow
        log_tokens = min(math.log(lengths.max_tokens), self._log_tokens + lengths.sigma * z)
        return max(lengths.min_tokens, round(math.exp(log_tokens)))

    def _normal(self, *key: int) -> float:
        return _NORMAL.inv_cdf(self._uniform(*key))

    def _uniform(self, *key: int) -> float:
        """Return a number between 0 and 1, both excluded, that depends on the seed and the key.

        A hash in place of a generator: one number is needed at a time, and seeding a generator
        takes longer than all the rest of a turn.
        """
        text = ",".join(map(str, (self._seed, *key)))
        digest = hashlib.blake2b(text.encode(), digest_size=6).digest()
        return (int.from_bytes(digest, "big") + 0.5) / 2.0**48
