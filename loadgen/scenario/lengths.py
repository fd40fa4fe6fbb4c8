"""Amounts that are fixed or drawn, as a scenario writes them: lengths in tokens, think times."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from loadgen.scenario.fields import (
    Count,
    NotNegative,
    Part,
    Positive,
    SecondsOrZero,
    write_duration,
)

AtLeastOne = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]

_NEEDS = {
    "fixed": ("mean",),
    "normal": ("mean", "spread"),
    "lognormal": ("median", "sigma"),
    "uniform": ("min", "max"),
    "natural": (),
}
_EXAMPLE = {
    "fixed": "{distribution: fixed, mean: 512}",
    "normal": "{distribution: normal, mean: 512, spread: 128}",
    "lognormal": "{distribution: lognormal, median: 300, sigma: 1.1}",
    "uniform": "{distribution: uniform, min: 100, max: 2000}",
}
_SHAPE = ("mean", "spread", "median", "sigma")


class Length(Part):
    """A number of tokens (or of turns): a whole number of at least 1, fixed or drawn.

    fixed: ``mean``. normal: ``mean`` and ``spread``, the standard deviation. lognormal: ``median``
    and ``sigma``, the standard deviation of the natural logarithm. uniform: every whole number
    from ``min`` to ``max`` alike. In all but uniform, ``min`` and ``max`` clip what was drawn.
    natural: no number is asked for; the answer takes the length it takes.
    """

    distribution: Literal["fixed", "normal", "lognormal", "uniform", "natural"] = "fixed"
    mean: AtLeastOne | None = None
    spread: NotNegative = 0.0
    median: AtLeastOne | None = None
    sigma: Positive | None = None
    min: Count | None = None
    max: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: object) -> object:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return {"mean": value}
        if isinstance(value, str) and value.strip().lower() == "natural":
            return {"distribution": "natural"}
        if isinstance(value, Mapping):
            return _with_distribution(value)
        if isinstance(value, Length):
            return value
        raise ValueError("must be a number of tokens like 512, or {mean: 512, spread: 128}")

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        kind = self.distribution
        given = {name for name in (*_SHAPE, "min", "max") if getattr(self, name) not in (None, 0.0)}
        if missing := [name for name in _NEEDS[kind] if name not in given]:
            raise ValueError(f"{kind} needs {' and '.join(missing)}, like {_EXAMPLE[kind]}")
        clips = () if kind == "natural" else ("min", "max")
        if strange := sorted(given - {*_NEEDS[kind], *clips}):
            raise ValueError(f"{' and '.join(strange)} cannot go with distribution: {kind}")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min ({self.min}) must not be above max ({self.max})")
        return self

    @property
    def natural(self) -> bool:
        """Say that no number is asked for."""
        return self.distribution == "natural"

    @property
    def always_one(self) -> bool:
        """Say that it is 1 without exception."""
        return self.distribution == "fixed" and self.clip(self.mean or 1) == 1

    @property
    def expected(self) -> float:
        """The mean of what is drawn, clipping included; rounding to whole numbers is neglected."""
        low, high = float(self.min or 1), float(self.max or math.inf)
        match self.distribution:
            case "uniform":
                return (low + high) / 2
            case "normal":
                return _clipped_normal(self.mean or 1.0, self.spread, low=low, high=high)
            case "lognormal":
                return _clipped_lognormal(self.median or 1.0, self.sigma or 0.0, low=low, high=high)
        return float(self.clip(self.mean or 1.0))

    def clip(self, drawn: float) -> int:
        """Round to a whole number within ``min`` and ``max``, never below 1."""
        number = max(round(drawn), self.min or 1)
        return number if self.max is None else min(number, self.max)

    @property
    def plain(self) -> int | str | dict[str, Any]:
        """As the file writes it."""
        if self.natural:
            return "natural"
        keys = ("mean", "spread", "median", "sigma", "min", "max")
        given = {key: _whole(getattr(self, key)) for key in keys if getattr(self, key) is not None}
        if self.distribution == "fixed":
            if given == {"mean": self.mean, "spread": 0} and self.mean == int(self.mean or 0):
                return int(self.mean or 0)
            return given
        if self.distribution == "normal":
            return given
        del given["spread"]
        return {"distribution": self.distribution, **given}


def _with_distribution(value: Mapping[str, Any]) -> dict[str, Any]:
    """Name the distribution where mean and spread alone say it; one without spread is fixed."""
    named = dict(value)
    spread = named.get("spread")
    if "distribution" not in named and not spread:
        named["distribution"] = "fixed"
    elif "distribution" not in named:
        named["distribution"] = "normal"
    elif named["distribution"] == "normal" and spread == 0 and "mean" in named:
        named["distribution"] = "fixed"
    return named


def _clipped_normal(mean: float, spread: float, *, low: float, high: float) -> float:
    """E[min(max(X, low), high)] of a normal X."""
    a, b = (low - mean) / spread, (high - mean) / spread
    inside = mean * (_normal_cdf(b) - _normal_cdf(a)) - spread * (_density(b) - _density(a))
    return _edges(_normal_cdf(a), _normal_cdf(b), low=low, high=high) + inside


def _clipped_lognormal(median: float, sigma: float, *, low: float, high: float) -> float:
    """E[min(max(X, low), high)] of a lognormal X; without clipping median · exp(sigma² / 2)."""
    a, b = math.log(low / median) / sigma, math.log(high / median) / sigma
    whole = median * math.exp(sigma * sigma / 2)
    inside = whole * (_normal_cdf(b - sigma) - _normal_cdf(a - sigma))
    return _edges(_normal_cdf(a), _normal_cdf(b), low=low, high=high) + inside


def _edges(below: float, up_to: float, *, low: float, high: float) -> float:
    return low * below + (0.0 if math.isinf(high) else high * (1 - up_to))


def _normal_cdf(z: float) -> float:
    return math.erfc(-z / math.sqrt(2)) / 2


def _density(z: float) -> float:
    return 0.0 if math.isinf(z) else math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _whole(number: float) -> float:
    return int(number) if number == int(number) else number


class ThinkTime(Part):
    """A pause before the next turn: fixed, or normal with this mean and spread, never below 0."""

    mean_s: SecondsOrZero = Field(validation_alias="mean")
    spread_s: SecondsOrZero = Field(default=0.0, validation_alias="spread")

    @model_validator(mode="before")
    @classmethod
    def _from_duration(cls, value: object) -> object:
        if isinstance(value, Mapping | ThinkTime):
            return value
        return {"mean": value}

    @property
    def expected_s(self) -> float:
        """The mean of what is drawn."""
        if not self.spread_s:
            return self.mean_s
        return _clipped_normal(self.mean_s, self.spread_s, low=0.0, high=math.inf)

    @property
    def plain(self) -> str | dict[str, str]:
        """As the file writes it."""
        if not self.spread_s:
            return write_duration(self.mean_s)
        return {"mean": write_duration(self.mean_s), "spread": write_duration(self.spread_s)}
