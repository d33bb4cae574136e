"""Lengths that were seen in a run, to draw from in place of a distribution."""

from __future__ import annotations

from itertools import pairwise

import attrs

from swingshift.sdk.validators import InvalidValueError, integer, to_int_tuple, tuple_of


@attrs.frozen(kw_only=True)
class ObservedSample:
    """One prompt and its responses, whose lengths belong together.

    Args:
        prompt_tokens: Length of the prompt.
        response_tokens: Length of each response, at least one; a run that asks for more responses
            begins again with the first.

    Raises:
        InvalidValueError: There is no response, or a length is below 1.
    """

    prompt_tokens: int = attrs.field(validator=integer(ge=1))
    response_tokens: tuple[int, ...] = attrs.field(
        converter=to_int_tuple, validator=tuple_of(integer(ge=1))
    )

    def __attrs_post_init__(self) -> None:
        if not self.response_tokens:
            raise InvalidValueError("response_tokens", (), "one length or more")


@attrs.frozen(kw_only=True)
class ObservedPhase:
    """The samples of a part of a run; lengths change while a model learns.

    Args:
        start: Prompt index from which they are drawn, until the next phase begins.
        samples: What is drawn from, at least one; each is as likely as another. Samples at evenly
            spaced quantiles do as well as all that were seen.

    Raises:
        InvalidValueError: There is no sample.
    """

    start: int = attrs.field(default=0, validator=integer(ge=0))
    samples: tuple[ObservedSample, ...]

    def __attrs_post_init__(self) -> None:
        if not self.samples:
            raise InvalidValueError("samples", (), "one sample or more")


def check_phases(phases: tuple[ObservedPhase, ...]) -> None:
    """Refuse phases that leave a prompt without lengths, or give it two.

    Raises:
        InvalidValueError: The first does not start at 0, or the others not one after the other.
    """
    starts = [phase.start for phase in phases]
    if starts[0] != 0 or any(later <= earlier for earlier, later in pairwise(starts)):
        raise InvalidValueError("observed", starts, "phases that start at 0 and then ever later")
