"""Speed and memory, measured and printed: ``python -m swingshift.benchmarks.perf``. Not a test."""
