"""How modelled durations vary from call to call: noise, outliers and a schedule, multiplied."""

from __future__ import annotations

import hashlib
import math

import attrs
import numpy as np

from swingshift.executors.simulated.costs.schedule import Schedule
from swingshift.sdk.validators import finite, integer

_NOISE, _OUTLIERS = range(2)


@attrs.frozen(kw_only=True)
class Variation:
    """What a duration is multiplied with; the default leaves it as it is.

    Args:
        noise_sigma: Standard deviation of the logarithm of a log-normal factor whose mean is 1.
        outlier_probability: How likely a call is an outlier.
        outlier_factor: What the duration of an outlier is multiplied with; means grow with it.
        schedule: Factor by the number of calls made before on the same stream.
    """

    noise_sigma: float = attrs.field(default=0.0, validator=finite(ge=0))
    outlier_probability: float = attrs.field(default=0.0, validator=finite(ge=0, le=1))
    outlier_factor: float = attrs.field(default=1.0, validator=finite(gt=0))
    schedule: Schedule = attrs.field(factory=Schedule)


class VariationSource:
    """Draw factors, each stream from random numbers of its own.

    The n-th factor of a stream depends on the seed, the stream's name and n; neither calls on other
    streams nor another kind of variation being switched on shift it.
    """

    def __init__(self, variation: Variation, *, seed: int) -> None:
        """Start all streams anew.

        Args:
            variation: What to draw from.
            seed: At least 0.
        """
        integer(ge=0).check("seed", seed)
        self._variation = variation
        self._seed = seed
        self._calls: dict[str, int] = {}
        self._generators: dict[tuple[str, int], np.random.Generator] = {}

    def factor(self, stream: str) -> float:
        """Return the next factor of a stream, above 0.

        Called once per modelled duration.

        Args:
            stream: A name that stays the same from run to run, such as ``"fit_step"`` or
                ``"sync/replica-3"``.
        """
        variation = self._variation
        calls = self._calls.get(stream, 0)
        self._calls[stream] = calls + 1
        factor = variation.schedule.factor(calls)
        sigma = variation.noise_sigma
        if sigma > 0.0:
            z = float(self._generator(stream, _NOISE).standard_normal())
            factor *= math.exp(sigma * z - 0.5 * sigma * sigma)
        if variation.outlier_probability > 0.0:
            draw = float(self._generator(stream, _OUTLIERS).random())
            if draw < variation.outlier_probability:
                factor *= variation.outlier_factor
        return factor

    def _generator(self, stream: str, source: int) -> np.random.Generator:
        generator = self._generators.get((stream, source))
        if generator is None:
            digest = hashlib.blake2b(stream.encode(), digest_size=8).digest()
            seed = [self._seed, int.from_bytes(digest, "big"), source]
            generator = np.random.Generator(np.random.PCG64(seed))
            self._generators[stream, source] = generator
        return generator
