"""What a run would need to go on elsewhere, apart from what the adapter keeps itself.

`TrainingRun` hands a `RunState` to its checkpoint hook after a weight sync and before it ends
BLOCKED. Everything in it is JSON: payloads are named by handle and stay with the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import attrs

from swingshift.sdk.executor import Sample


@attrs.frozen(kw_only=True)
class RunState:
    """A run between two steps.

    Attributes:
        reason: Why it was taken: ``sync``, or what blocked the run.
        version: Parameter version of the last weight sync.
        global_step: Fit steps done.
        trained_samples: Samples trained.
        next_sample: Position in the data: the first prompt not submitted yet.
        in_flight: Prompts submitted and neither queued nor given up.
        queue: Finished samples not trained yet, oldest first.
        given_up: Samples given up.
        policy: `DynamicSchedulePolicyBase.state_dict`; None without a policy.
    """

    reason: str
    version: int
    global_step: int
    trained_samples: int
    next_sample: int
    in_flight: tuple[int, ...]
    queue: tuple[Sample, ...]
    given_up: int
    policy: Mapping[str, object] | None

    def state_dict(self) -> dict[str, object]:
        """Return the state as JSON-able values."""
        return {
            "reason": self.reason,
            "version": self.version,
            "global_step": self.global_step,
            "trained_samples": self.trained_samples,
            "next_sample": self.next_sample,
            "in_flight": list(self.in_flight),
            "queue": [_plain(sample) for sample in self.queue],
            "given_up": self.given_up,
            "policy": None if self.policy is None else dict(self.policy),
        }


def _plain(sample: Sample) -> dict[str, object]:
    return {
        "sample_id": sample.sample_id,
        "prompt": list(sample.prompt),
        "rewards": list(sample.rewards),
        "episodes": [
            {field.name: getattr(episode, field.name) for field in attrs.fields(type(episode))}
            for episode in sample.episodes
        ],
    }


CheckpointHook: TypeAlias = Callable[[RunState], None]
"""Takes the state; called between steps, so it may write a file but should be quick."""
