"""Entry points: how the parts find one another without importing one another."""

from __future__ import annotations

from importlib.metadata import EntryPoint, distribution

import pytest

ENTRY_POINTS = sorted(
    (
        point
        for point in distribution("swingshift").entry_points
        if point.group == "console_scripts" or point.group.startswith("swingshift.")
    ),
    key=lambda point: (point.group, point.name),
)


@pytest.mark.parametrize("point", ENTRY_POINTS, ids=lambda point: f"{point.group}:{point.name}")
def test_every_entry_point_resolves_to_something_callable(point: EntryPoint) -> None:
    """A name in the packaging metadata always leads to an object."""
    assert callable(point.load())


def test_the_built_in_plugs_are_registered() -> None:
    """Built-in parts use the groups that third parties use."""
    names = {(point.group, point.name) for point in ENTRY_POINTS}

    assert names >= {
        ("console_scripts", "swingshift"),
        ("swingshift.policies", "default"),
        ("swingshift.policies", "fixed_ratio"),
        ("swingshift.policies", "static_fully_async"),
        ("swingshift.executors", "simulated"),
        ("swingshift.commands", "bench"),
    }
