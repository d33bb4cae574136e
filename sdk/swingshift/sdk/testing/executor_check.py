"""Check an executor against every promise of its contract."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import attrs

from swingshift.sdk.errors import UserError
from swingshift.sdk.executor import Executor
from swingshift.sdk.testing.executor_checks.catalogue import PROMISE_NAMES, PROMISES
from swingshift.sdk.testing.executor_checks.promise import BrokenPromise, NotOffered, Promise
from swingshift.sdk.testing.executor_checks.stage import Stage
from swingshift.sdk.testing.executor_subject import ExecutorUnderTest, NotObservedError
from swingshift.sdk.testing.report import CheckReport, CheckResult, Verdict, checked_excuses

_ExecutorT = TypeVar("_ExecutorT", bound=Executor)
_START = "start()"


def check_executor(
    subject: ExecutorUnderTest[_ExecutorT],
    *,
    expected_failures: Mapping[str, str] | None = None,
    checks: Iterable[str] | None = None,
) -> CheckReport:
    """Return a verdict on every promise of the executor contract, each breach with its calls.

    Authors of an adapter call it in a test, and ``assert_sound()`` on the report. Each check has an
    executor and an event loop of its own; every call has a deadline, so that it ends even if the
    executor hangs. What the executor does not offer, and what the back door does not show, is
    reported as not judged. Once an executor cannot be started, no further one is.

    Args:
        subject: The executor, and the author's back door to it.
        expected_failures: Promises the executor is known to break, with the reason. One that holds
            is a violation too.
        checks: Names of promises to judge, or of whole groups, by default all; excuses for others
            are not considered.

    Returns:
        The report; ``print`` shows it.

    Raises:
        UnknownNameError: There is no check of that name.
        UserError: ``subject.make`` does not return a new executor at each call.
        InvalidValueError: An excuse has no reason.
    """
    chosen = PROMISE_NAMES if checks is None else _names(checks)
    excuses = checked_excuses("check", chosen, expected_failures, PROMISE_NAMES)
    trial = _Trial(subject)
    results = tuple(
        trial.result(promise, excuses.get(promise.name, ""))
        for promise in PROMISES
        if promise.name in chosen
    )
    return CheckReport(subject=trial.class_name, results=results)


def _names(checks: Iterable[str]) -> tuple[str, ...]:
    """Return the names of promises, with those of a group in place of its own name."""
    names: list[str] = []
    for check in checks:
        members = [name for name in PROMISE_NAMES if name.partition(".")[0] == check]
        names.extend(members or [check])
    return tuple(names)


@attrs.define
class _Trial(Generic[_ExecutorT]):
    """Judges one promise after the other."""

    subject: ExecutorUnderTest[_ExecutorT]
    class_name: str = ""
    start_fault: str = ""
    _last: _ExecutorT | None = None

    def result(self, promise: Promise, excuse: str) -> CheckResult:
        """Return the verdict on one promise."""
        if self.start_fault:
            reason = f"{_START} fails: {self.start_fault}"
            return _not_judged(promise, reason, excuse)
        with asyncio.Runner(loop_factory=self.subject.loop_factory) as runner:
            try:
                breach = runner.run(self._breach(promise))
            except (NotOffered, NotObservedError) as reason:
                return _not_judged(promise, str(reason), excuse)
        return CheckResult.of(promise.name, promise.text, breach, excuse)

    async def _breach(self, promise: Promise) -> tuple[str, str] | None:
        stage = self._stage()
        witness = stage.executor
        try:
            await promise.judge(stage)
        except (NotOffered, NotObservedError):
            raise
        except BrokenPromise as error:
            message = str(error)
        except Exception as error:
            call = witness.call_that_raised(error)
            # not the executor's: a fault of the kit, or of the author's back door
            if call is None:
                raise
            message = f"{call} raised {type(error).__name__}: {error}"
        else:
            return None
        finally:
            calls = "; ".join(witness.calls)
            await stage.close()
        if calls == _START and not witness.is_started:
            self.start_fault = message
        return message, calls

    def _stage(self) -> Stage:
        subject = self.subject
        executor = subject.make()
        if executor is self._last:
            raise UserError("make returned the same executor twice; it must make a new one")
        self._last, self.class_name = executor, type(executor).__name__
        return Stage(
            executor,
            subject.observe(executor),
            prompts=subject.prompts,
            responses=subject.responses_per_prompt,
            max_new_tokens=subject.max_new_tokens,
            moment_s=subject.moment_s,
            deadline_s=subject.deadline_s,
            memory_tolerance_bytes=subject.memory_tolerance_bytes,
        )


def _not_judged(promise: Promise, reason: str, excuse: str) -> CheckResult:
    return CheckResult(
        check=promise.name,
        promise=promise.text,
        verdict=Verdict.NOT_JUDGED,
        message=reason,
        excuse=excuse,
    )
