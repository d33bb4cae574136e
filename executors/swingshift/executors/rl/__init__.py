"""What adapters share about learning: tasks and episodes."""

from swingshift.executors.rl.task import EpisodeRequest, SingleTurn, Task, Turn

__all__ = ["EpisodeRequest", "SingleTurn", "Task", "Turn"]
