"""A process whose memory can be looked at: offloads a model of 40 MB and says what it saw.

``python -m tests.executors.offloading_process DIRECTORY`` prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.executors.local_training import batch, build_engine

from swingshift.executors.local.memory import give_back, resident_bytes
from swingshift.executors.local.training import TrainingEngine
from swingshift.executors.local.weights import digest
from swingshift.executors.rl.options import LearningOptions, ModelOptions
from swingshift.sdk.executor import TrainingPart

MODEL = ModelOptions(
    config={
        "hidden_size": 256,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
)


def main(directory: Path) -> dict[str, object]:
    """Train once, move each part away and back, and return what it took and freed."""
    engine = build_engine(directory, LearningOptions(learning_rate=1e-3), model=MODEL)
    engine.fit(batch())
    before = _digests(engine)
    freed: dict[str, int] = {}
    for part in TrainingPart:
        # what is free already is not what offloading frees
        give_back()
        resident = resident_bytes(os.getpid())
        engine.offload(part)
        freed[part.value] = resident - resident_bytes(os.getpid())
    files = sorted(path.name for path in directory.iterdir())
    for part in TrainingPart:
        engine.reload(part)
    return {
        "freed": freed,
        "sizes": {part.value: engine._parts[part].bytes for part in TrainingPart},
        "files_while_away": files,
        "files_afterwards": [path.name for path in directory.iterdir()],
        "is_unchanged": _digests(engine) == before,
    }


def _digests(engine: TrainingEngine) -> tuple[str, str]:
    return digest(engine.weights()), digest(engine._optimizer.state())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))))
