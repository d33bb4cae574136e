"""Settings that every test shares: the Hypothesis profiles.

``HYPOTHESIS_PROFILE`` names a profile; without it the variable ``CI`` selects
``ci``, and its absence ``dev``.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Generation speed is a property of the machine, not of the code: no profile fails a test for it.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("dev", _UNTIMED, max_examples=50)
settings.register_profile("ci", _UNTIMED, max_examples=100, derandomize=True, database=None)
settings.register_profile("nightly", _UNTIMED, max_examples=2_000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)
