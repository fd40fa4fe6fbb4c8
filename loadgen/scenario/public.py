"""A scenario written out again: as resolved, safe to show, and itself a valid scenario file."""

import re
from collections.abc import Mapping
from typing import Any

from loadgen.scenario.fields import Span, write_duration
from loadgen.scenario.model import RATE_ONLY_KEYS, Level, Limits, Scenario, Target
from loadgen.scenario.url import MASK

_ONE_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def public_dict(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario with header values and URL credentials masked.

    A value from the environment stands as ``${NAME}``; a header whose text is more than one such
    reference is masked whole, since the rest may be private too.
    """
    plain = _plain_scenario(scenario)
    for path, text in scenario.references.items():
        _put(plain, path, text)
    headers = plain["target"].get("headers", {})
    for name, text in headers.items():
        by_name = ("target", "headers", name) in scenario.references
        if not (by_name and _ONE_REFERENCE.fullmatch(text)):
            headers[name] = MASK
    url = scenario.references.get(("target", "url"))
    if url is not None:
        plain["target"]["url"] = _masked_reference_url(url)
    return plain


def _masked_reference_url(text: str) -> str:
    """Mask credentials that stand as plain text beside a reference."""
    text = re.sub(r"(?<=://)[^/@]*@", f"{MASK}@", text)
    return re.sub(r"([?&](?!api-version=)[^=&]+=)(?!\$\{)[^&]*", rf"\g<1>{MASK}", text)


def _plain_scenario(scenario: Scenario) -> dict[str, Any]:
    each, prompts = scenario.each_level, scenario.prompts
    plain: dict[str, Any] = {
        "name": scenario.name,
        "target": _plain_target(scenario.target),
        "prompts": {
            "source": prompts.source,
            "input_tokens": prompts.input_tokens.plain,
            "output_tokens": prompts.output_tokens.plain,
            "shared_prefix_tokens": prompts.shared_prefix_tokens,
        },
        "levels": [_plain_level(level) for level in scenario.levels],
        "each_level": {"measure": each.measure.plain, "drain": write_duration(each.drain_s)},
        "rounds": scenario.rounds,
        "objectives": list(scenario.objectives),
        "seed": scenario.seed,
        "nonce": scenario.nonce,
        "limits": _plain_limits(scenario.limits),
    }
    if each.warmup != Span():  # the default is said by silence: it differs from level to level
        plain["each_level"] = {"warmup": each.warmup.plain, **plain["each_level"]}
    for key in ("request", "conditions"):
        if free := getattr(scenario, key):
            plain[key] = _copy(free)
    return plain


def _plain_target(target: Target) -> dict[str, Any]:
    plain = target.model_dump(exclude_none=True)
    if not target.insecure:
        del plain["insecure"]
    plain["url"] = target.masked_url
    if not target.headers:
        del plain["headers"]
    return plain


def _plain_level(level: Level) -> dict[str, Any]:
    hidden = set(RATE_ONLY_KEYS) if level.concurrency is not None else set()
    plain = level.model_dump(exclude_none=True, exclude=hidden)
    if level.rate is not None:
        plain["rate"] = f"{level.rate!r}".removesuffix(".0") + "/s"
    return plain


def _plain_limits(limits: Limits) -> dict[str, Any]:
    return {
        "connect": write_duration(limits.connect_s),
        "first_token": write_duration(limits.first_token_s),
        "idle": write_duration(limits.idle_s),
        **({} if limits.total_s is None else {"total": write_duration(limits.total_s)}),
        "max_event_mb": limits.max_event_mb,
        "retries": limits.retries,
    }


def _copy(value: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    if isinstance(value, Mapping):
        return {str(key): _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def _put(tree: Any, path: tuple[str | int, ...], value: object) -> None:  # noqa: ANN401
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value
