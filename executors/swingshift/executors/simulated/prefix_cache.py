"""Contexts that a replica still has in its KV cache from requests that left it."""

from __future__ import annotations


class PrefixCache:
    """What a request need not compute again when it comes back to the replica it was on last.

    A context stays until the weights change or the room is needed: those left longest ago go
    first. Simplified in three ways: requests do not share prefixes, room is looked at when a
    request comes or goes and not while running ones grow, and what is aborted in the middle of its
    prefill counts as computed.
    """

    def __init__(self) -> None:
        """Start empty."""
        # request -> tokens of its context, left longest ago first
        self._contexts: dict[str, int] = {}
        self._tokens = 0

    def put(self, request_id: str, tokens: int, room_tokens: float) -> None:
        """Keep the context of a request that left.

        Args:
            request_id: The request; an older context of it is forgotten.
            tokens: Its context.
            room_tokens: Tokens of the KV cache that running requests leave free.
        """
        self._tokens += tokens - self._contexts.pop(request_id, 0)
        self._contexts[request_id] = tokens
        self._fit(room_tokens)

    def take(self, request_id: str, room_tokens: float) -> int:
        """Return the tokens kept of a request, 0 for none, and keep them no longer.

        Args:
            request_id: The request; what it has becomes part of what is running.
            room_tokens: Tokens of the KV cache that running requests leave free.
        """
        self._fit(room_tokens)
        tokens = self._contexts.pop(request_id, 0)
        self._tokens -= tokens
        return tokens

    def clear(self) -> None:
        """Forget everything: keys and values of other weights are of no use."""
        self._contexts.clear()
        self._tokens = 0

    def _fit(self, room_tokens: float) -> None:
        while self._tokens > room_tokens and self._contexts:
            self._tokens -= self._contexts.pop(next(iter(self._contexts)))
