"""What adapters share about learning: tasks and episodes."""

from swingshift.executors.rl.task import (
    EpisodeRequest,
    EpisodeRestartError,
    EpisodeRunner,
    SingleTurn,
    Task,
    Turn,
)

__all__ = [
    "EpisodeRequest",
    "EpisodeRestartError",
    "EpisodeRunner",
    "SingleTurn",
    "Task",
    "Turn",
]
