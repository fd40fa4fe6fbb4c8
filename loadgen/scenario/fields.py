"""Numbers, times and counts as a scenario writes them, each checked as it is read."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from loadgen.scenario.abort import parse_abort_rule
from loadgen.scenario.objective import parse_objective
from loadgen.units import format_duration, parse_duration_s, parse_rate, parse_share

_COUNT = re.compile(r"([0-9][0-9_,]*)\s*(requests?|req)")


def _duration(value: object) -> object:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return parse_duration_s(value)
    raise ValueError("must be a duration like 30s, 500ms or 1m30s")


def _rate(value: object) -> object:
    if isinstance(value, str | int | float):
        return parse_rate(value)
    raise ValueError("must be a rate like 4/s or 90/min")


def _rate_or_zero(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"0+(\.0*)?\s*(/.*)?", value.strip()):
        return 0.0
    if isinstance(value, int | float) and not isinstance(value, bool) and value == 0:
        return 0.0
    return _rate(value)


def _share(value: object) -> object:
    if isinstance(value, str | int | float):
        return parse_share(value)
    raise ValueError("must be a share like 30% or 0.3")


def _workers(value: object) -> object:
    if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError("must be 1 or more, or auto")


def _abort_text(text: str) -> str:
    return parse_abort_rule(text).text


def _objective_text(text: str) -> str:
    return parse_objective(text).text


def _finite_json(value: Any) -> Any:  # noqa: ANN401 - free-form by design: it ends up as JSON
    for path, leaf in _leaves(value):
        if leaf is not None and not isinstance(leaf, str | int | float | bool):
            raise ValueError(f"{path or 'the value'} cannot be written as JSON; put it in quotes")
        if isinstance(leaf, float) and leaf - leaf != 0:
            raise ValueError(f"{path or 'the value'} must be a finite number")
    return value


def _leaves(value: object, path: str = "") -> list[tuple[str, object]]:
    if isinstance(value, Mapping):
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}")]
    if isinstance(value, list | tuple):
        return [leaf for i, item in enumerate(value) for leaf in _leaves(item, f"{path}[{i}]")]
    return [(path.lstrip("."), value)]


Count = Annotated[int, Field(strict=True, ge=1)]
CountOrZero = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
SecondsOrZero = Annotated[float, BeforeValidator(_duration), Field(ge=0)]
Rate = Annotated[float, BeforeValidator(_rate), Field(gt=0)]
RateOrZero = Annotated[float, BeforeValidator(_rate_or_zero), Field(ge=0)]
Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]
Switch = Annotated[bool, Field(strict=True)]
Objective = Annotated[str, AfterValidator(_objective_text)]
Workers = Annotated[int | Literal["auto"], BeforeValidator(_workers)]
Abort = Annotated[str, AfterValidator(_abort_text)]
FreeForm = Annotated[dict[str, Any], AfterValidator(_finite_json)]


class Part(BaseModel):
    """What all parts share: frozen, no unknown keys, file keys or field names alike."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Span(Part):
    """How long a phase lasts: a time, a count, or both (it ends when both are reached)."""

    seconds: NotNegative | None = None
    requests: CountOrZero | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        if isinstance(value, Mapping | Span):
            return value
        parts = list(value) if isinstance(value, list | tuple) else [value]
        found: dict[str, float | int] = {}
        for part in parts:
            key, amount = _span_part(part)
            if key in found:
                raise ValueError("two of a kind; give one time, one count, or one of each")
            found[key] = amount
        if not found:
            raise ValueError("is empty; write it like 30s, 200 requests, or a list of both")
        return found

    @property
    def plain(self) -> str | list[str]:
        """As the file writes it."""
        parts = []
        if self.seconds is not None:
            parts.append(write_duration(self.seconds))
        if self.requests is not None:
            parts.append(f"{self.requests} request{'' if self.requests == 1 else 's'}")
        return parts[0] if len(parts) == 1 else parts


def _span_part(part: object) -> tuple[str, float | int]:
    if isinstance(part, int | float) and not isinstance(part, bool):
        raise ValueError(f"{part} of what? write '{part} requests' or '{part}s'")
    if not isinstance(part, str):
        raise ValueError("write it like 30s, 200 requests, or a list of both")
    text = part.strip().lower()
    if count := _COUNT.fullmatch(text):
        return "requests", int(re.sub("[_,]", "", count[1]))
    if re.fullmatch(r"[0-9.]+", text):
        raise ValueError(f"{text} of what? write '{text} requests' or '{text}s'")
    try:
        return "seconds", parse_duration_s(text)
    except ValueError:
        hint = "a time like 30s or a count like 200 requests is needed"
        raise ValueError(f"'{part}' will not do: {hint}") from None


def write_rate(per_second: float) -> str:
    """Write a rate so that reading it gives the same number: 4/s."""
    return f"{per_second!r}".removesuffix(".0") + "/s"


def write_duration(seconds: float) -> str:
    """Write seconds so that reading them gives the same number: 30s, 1m30s, 0.0123456s."""
    text = format_duration(seconds)
    if parse_duration_s(text) == seconds:
        return text
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
