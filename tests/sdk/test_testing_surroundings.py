"""What a policy could read besides its arguments: held still, or changed, and put back."""

from __future__ import annotations

import datetime as dt
import random
import time
from datetime import datetime
from time import monotonic

from tests.sdk.policy_doubles import SpecificationExample

from swingshift.sdk.testing.surroundings import Surroundings


class ReadsEverything(SpecificationExample):
    """Its module has names of its own for a clock and for the calendar."""

    def read(self) -> list[object]:
        return [
            time.time(),
            time.monotonic_ns(),
            time.localtime(),
            time.strftime("%Y-%m-%d %H:%M:%S"),
            time.ctime(),
            time.asctime(),
            time.clock_gettime(time.CLOCK_MONOTONIC),
            time.clock_gettime_ns(time.CLOCK_REALTIME),
            monotonic(),
            datetime.now(),
            dt.datetime.now(dt.UTC),
            datetime.today(),
            random.random(),
        ]


def test_still_surroundings_do_not_change() -> None:
    """Neither while they are held nor from one time to the next."""
    policy = ReadsEverything()
    surroundings = Surroundings(policy)

    with surroundings.still():
        first = policy.read()
    with surroundings.still():
        assert policy.read() == first
        assert policy.read()[:-1] == first[:-1]


def test_other_surroundings_differ_in_everything_and_run() -> None:
    """Whatever it reads, a policy sees another value."""
    policy = ReadsEverything()
    surroundings = Surroundings(policy)

    with surroundings.still():
        still = policy.read()
    with surroundings.elsewhere():
        first, second = policy.read(), policy.read()

    for readings in zip(still, first, second, strict=True):
        assert len({repr(reading) for reading in readings}) == 3


def test_everything_is_put_back() -> None:
    """Also the state of the global generator."""
    originals = (time.time, time.localtime, monotonic, datetime, dt.datetime)
    drawn = random.getstate()

    with Surroundings(ReadsEverything()).elsewhere():
        assert monotonic is not originals[2]
        random.random()

    assert (time.time, time.localtime, monotonic, datetime, dt.datetime) == originals
    assert random.getstate() == drawn


def test_a_real_date_is_still_a_date() -> None:
    """And a time that is given is still the one that counts."""
    real = dt.datetime(2026, 7, 10, tzinfo=dt.UTC)

    with Surroundings(ReadsEverything()).still():
        assert isinstance(real, dt.datetime)
        assert isinstance(datetime.now(), dt.datetime)
        assert datetime.utcnow() == datetime(2001, 9, 9, 1, 46, 40)  # type: ignore[deprecated]
        assert dt.date.today() == dt.date(2001, 9, 9)
        assert time.gmtime(0).tm_year == 1970
        assert time.strftime("%Y", time.gmtime(0)) == "1970"
        assert time.asctime(time.gmtime(0)) == "Thu Jan  1 00:00:00 1970"
