"""How a task reads what an adapter keeps: the tokens behind a handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class PayloadReader(Protocol):
    """Gives the tokens of responses; implemented by the adapter that holds them."""

    def response_tokens(self, handle: str) -> Sequence[int]:
        """Return all token ids after the prompt, the end-of-text token included if there is one.

        Called when a response is scored; the payload stays where it is.

        Args:
            handle: As in `swingshift.sdk.executor.Episode`.
        """
        ...
