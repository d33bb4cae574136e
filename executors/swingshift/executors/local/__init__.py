"""The adapter for one machine: torch in worker processes, on CPU cores or GPUs."""
