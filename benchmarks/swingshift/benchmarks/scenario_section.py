"""The ``benchmark`` section of a scenario file: what is run, compared, expected and explained."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from swingshift.sdk.validators import (
    Validator,
    finite,
    integer,
    optional,
    text,
    to_float,
    to_optional_float,
    tuple_of,
)


def _is_overrides(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_sources(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        text().accepts(key) and text().accepts(item) for key, item in value.items()
    )


_OVERRIDES: Validator[Mapping[str, object]] = Validator(
    "a section of full dotted keys, each with a value", _is_overrides
)
_SOURCES: Validator[Mapping[str, str]] = Validator(
    "a section of full dotted keys, each with a sentence", _is_sources
)
_STATISTIC: Validator[str] = Validator(
    "'mean' or 'median'", lambda value: value in ("mean", "median")
)
_NAMES = tuple_of(text())


def _help(words: str) -> dict[str, str]:
    return {"help": words}


def _number(default: float | None, words: str, limits: Validator[float]) -> float | None:
    return attrs.field(
        default=default,
        converter=to_optional_float,
        validator=optional(limits),
        metadata=_help(words),
    )


@attrs.frozen(kw_only=True)
class RunSection:
    """One of the configurations that are compared."""

    label: str = attrs.field(default="", metadata=_help("What tables call it; empty: its name."))
    overrides: Mapping[str, object] = attrs.field(
        factory=dict,
        validator=_OVERRIDES,
        metadata=_help("Where it differs from the file: full dotted keys and their values."),
    )


@attrs.frozen(kw_only=True)
class ComparisonSection:
    """How much less wall clock one run takes than another."""

    run: str = attrs.field(validator=text(), metadata=_help("Name of the run."))
    versus: str = attrs.field(validator=text(), metadata=_help("Name of what it is held against."))
    published: float | None = _number(
        None, "The published reduction, 0.153 for 15.3 %; null: there is none.", finite(le=1.0)
    )
    tolerance: float | None = _number(
        None, "How far from it the reduction may be, 0.02 for 2 points.", finite(ge=0.0)
    )

    def __attrs_post_init__(self) -> None:
        if self.tolerance is not None and self.published is None:
            raise ValueError("tolerance says how far from published; expected both, or neither")


@attrs.frozen(kw_only=True)
class BoundSection:
    """A limit: a number, or what the same statistic is for another run, plus a number."""

    value: float = attrs.field(
        default=0.0,
        converter=to_float,
        validator=finite(),
        metadata=_help("The limit, or what is added to the other run's value."),
    )
    run: str | None = attrs.field(
        default=None, validator=optional(text()), metadata=_help("Name of the other run.")
    )


@attrs.frozen(kw_only=True)
class ExpectationSection:
    """What a metric of one run should be, over the cycles of all seeds."""

    result: str = attrs.field(validator=text(), metadata=_help("What is looked at, in words."))
    run: str = attrs.field(validator=text(), metadata=_help("Name of the run."))
    metric: str = attrs.field(validator=text(), metadata=_help("Name of the metric."))
    statistic: str = attrs.field(
        default="mean",
        validator=_STATISTIC,
        metadata=_help("mean: over cycles, then seeds; median: over the cycles of all seeds."),
    )
    published: str = attrs.field(default="", metadata=_help("What was published, in words."))
    at_least: BoundSection | None = attrs.field(default=None, metadata=_help("Lower limit."))
    at_most: BoundSection | None = attrs.field(default=None, metadata=_help("Upper limit."))
    above: BoundSection | None = attrs.field(
        default=None, metadata=_help("Lower limit, itself not reached.")
    )
    below: BoundSection | None = attrs.field(
        default=None, metadata=_help("Upper limit, itself not reached.")
    )

    def __attrs_post_init__(self) -> None:
        if not self.bounds:
            raise ValueError("no limit; expected at least one of at_least, at_most, above, below")

    @property
    def bounds(self) -> Mapping[str, BoundSection]:
        """The limits that are set, by their key."""
        named = {
            "at_least": self.at_least,
            "at_most": self.at_most,
            "above": self.above,
            "below": self.below,
        }
        return {key: bound for key, bound in named.items() if bound is not None}


@attrs.frozen(kw_only=True)
class SensitivitySection:
    """How far the reductions move when a parameter of the modelled world moves."""

    prompts: int = attrs.field(
        default=2000,
        validator=integer(ge=1),
        metadata=_help("Prompts of each run; never more than the run itself has."),
    )
    seeds: int = attrs.field(
        default=1, validator=integer(ge=1), metadata=_help("Seeds, the same for every value.")
    )
    change: float = attrs.field(
        default=0.2,
        converter=to_float,
        validator=finite(gt=0.0, le=0.9),
        metadata=_help("Share of its value by which a parameter moves, down and up."),
    )
    keys: tuple[str, ...] = attrs.field(
        default=(),
        validator=_NAMES,
        metadata=_help(
            "Full dotted keys below executor; a section stands for the real numbers in it, and an "
            "empty list for all real numbers."
        ),
    )


@attrs.frozen(kw_only=True)
class BenchmarkSection:
    """Everything in a scenario file that is not the configuration of a run."""

    description: str = attrs.field(
        default="", metadata=_help("What the scenario is, in a sentence.")
    )
    seeds: int = attrs.field(
        default=4, validator=integer(ge=1), metadata=_help("Runs of each configuration.")
    )
    quick: Mapping[str, object] = attrs.field(
        factory=dict,
        validator=_OVERRIDES,
        metadata=_help("Overrides for --quick: full dotted keys, benchmark.seeds included."),
    )
    runs: Mapping[str, RunSection] = attrs.field(
        factory=dict, metadata=_help("The configurations that are compared, by name.")
    )
    comparisons: tuple[ComparisonSection, ...] = attrs.field(
        default=(), metadata=_help("Which run is held against which.")
    )
    expectations: tuple[ExpectationSection, ...] = attrs.field(
        default=(), metadata=_help("What the metrics of the runs should be.")
    )
    fitted: tuple[str, ...] = attrs.field(
        default=(),
        validator=_NAMES,
        metadata=_help("Parameters below executor that were fitted to the published results."),
    )
    sources: Mapping[str, str] = attrs.field(
        factory=dict,
        validator=_SOURCES,
        metadata=_help("Where the figures come from, by parameter or by section of them."),
    )
    sensitivity: SensitivitySection | None = attrs.field(
        default=None,
        metadata=_help("The study that a run in full and as written makes; null: none."),
    )
