"""Hold each part to its floor: statements with branches, and branches alone.

Usage: check_coverage.py COVERAGE_JSON
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

FLOORS = {"sdk": 98.0, "policies": 98.0, "executors": 90.0, "contrib": 90.0, "benchmarks": 90.0}
COUNTS = ("num_statements", "covered_lines", "num_branches", "covered_branches")


def percent(covered: int, total: int) -> float:
    return 100.0 * covered / total if total else 100.0


def combined(counts: Counter[str]) -> float:
    return percent(
        counts["covered_lines"] + counts["covered_branches"],
        counts["num_statements"] + counts["num_branches"],
    )


def branches(counts: Counter[str]) -> float:
    return percent(counts["covered_branches"], counts["num_branches"])


def main(report: Path) -> int:
    files = {
        Path(name): Counter({key: entry["summary"][key] for key in COUNTS})
        for name, entry in json.loads(report.read_text(encoding="utf-8"))["files"].items()
    }
    below = 0
    for part, floor in FLOORS.items():
        mine = {path: counts for path, counts in files.items() if path.parts[0] == part}
        total = sum(mine.values(), Counter[str]())
        passed = min(combined(total), branches(total)) >= floor
        print(
            f"coverage {part:<10} {combined(total):6.2f} %, branches {branches(total):6.2f} %, "
            f"floor {floor:.0f} %: {'ok' if passed else 'BELOW THE FLOOR'}"
        )
        if not passed:
            below += 1
            for path, counts in sorted(mine.items(), key=lambda item: combined(item[1])):
                if combined(counts) < floor:
                    print(f"    {combined(counts):6.2f} %  {path}")
    if below:
        print("coverage: lines that were missed: .venv/bin/coverage report", file=sys.stderr)
    return 1 if below else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
