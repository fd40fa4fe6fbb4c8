"""A scenario written out again: as resolved, safe to show, and itself a valid scenario file."""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from loadgen.scenario.fields import Span, write_duration, write_rate
from loadgen.scenario.levels import RATE_ONLY_KEYS, EachLevel, Level
from loadgen.scenario.model import Limits, MixPart, Prompts, Quality, Scenario, Target
from loadgen.scenario.private import is_secret_name, mask, mask_command
from loadgen.scenario.server import READY_WITHIN_S, Server
from loadgen.scenario.servers import LAID, differences
from loadgen.scenario.url import MASK

_BEFORE_SERVERS = ("name", "target", "server")
_ONE_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def public_dict(scenario: Scenario) -> dict[str, Any]:
    """Return the scenario with header values and URL credentials masked.

    A value from the environment stands as ``${NAME}``; a header whose text is more than one such
    reference is masked whole, since the rest may be private too.
    """
    plain = _plain_scenario(scenario)
    for path, text in scenario.references.items():
        if path[0] != "servers":
            _put(plain, path, text)
    headers = plain["target"].get("headers", {})
    for name, text in headers.items():
        by_name = ("target", "headers", name) in scenario.references
        if not (by_name and _ONE_REFERENCE.fullmatch(text)):
            headers[name] = MASK
    url = scenario.references.get(("target", "url"))
    if url is not None:
        plain["target"]["url"] = _masked_reference_url(url)
    for name in ("server", "gpu"):
        page = scenario.references.get(("telemetry", name))
        if page is not None:
            plain["telemetry"][name] = _masked_reference_url(page)
    if "server" in plain:
        plain["server"] = _masked_server(plain["server"])
    return _with_servers(plain, scenario) if scenario.servers else plain


def _with_servers(plain: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Add what each of several servers lays over the scenario's own parts, beside them."""
    own = _with_defaults(plain, scenario)
    servers = {}
    for name, made in scenario.variants():
        parts = _with_defaults(public_dict(made), made)
        given = [part for part in LAID if part in scenario.servers[name].model_fields_set]
        over = {part: differences(own.get(part, {}), parts.get(part)) for part in given}
        servers[name] = {part: found for part, found in over.items() if found != {}}
    first: dict[str, Any] = {key: plain[key] for key in _BEFORE_SERVERS if key in plain}
    return {**first, "servers": servers, **plain}


def _with_defaults(plain: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Return the parts that are laid over; in them stands also what else is said by silence."""
    target = {"insecure": scenario.target.insecure, "allow_public": scenario.target.allow_public}
    parts = {part: plain.get(part, {}) for part in ("request", "conditions")}
    parts["target"] = {**target, **plain["target"]}
    if scenario.server is not None:
        within = write_duration(scenario.server.ready_within_s)
        parts["server"] = {"ready_within": within, **plain["server"]}
    return parts


def _masked_server(plain: dict[str, Any]) -> dict[str, Any]:
    """Mask what a command or a variable says in plain text that is private by its name."""
    if "command" in plain:
        words = plain["command"]
        words = shlex.split(words) if isinstance(words, str) else list(words)
        plain["command"] = mask_command([str(word) for word in words])
    for name, text in plain.get("variables", {}).items():
        hidden = is_secret_name(name) and not _ONE_REFERENCE.fullmatch(text)
        plain["variables"][name] = MASK if hidden else mask(text)
    return plain


def _masked_reference_url(text: str) -> str:
    """Mask credentials that stand as plain text beside a reference."""
    text = re.sub(r"(?<=://)[^/@]*@", f"{MASK}@", text)
    return re.sub(r"([?&](?!api-version=)[^=&]+=)(?!\$\{)[^&]*", rf"\g<1>{MASK}", text)


def _plain_scenario(scenario: Scenario) -> dict[str, Any]:
    plain: dict[str, Any] = {"name": scenario.name, "target": _plain_target(scenario.target)}
    if scenario.server is not None:
        plain["server"] = _plain_server(scenario.server)
    if scenario.one_kind is not None:
        plain["prompts"] = _plain_prompts(scenario.one_kind)
    else:
        plain["mix"] = [_plain_part(part) for part in scenario.mix]
    plain["levels"] = [_plain_level(level) for level in scenario.levels]
    plain["each_level"] = _plain_each(scenario.each_level, scenario.levels)
    for key in ("rounds", "level_order", "objectives", "abort_if", "workers", "seed", "nonce"):
        value = getattr(scenario, key)
        if (key, value) not in (("abort_if", ()), ("workers", 1), ("level_order", "listed")):
            plain[key] = list(value) if isinstance(value, tuple) else value
    if scenario.quality is not None:
        plain["quality"] = _plain_quality(scenario.quality)
    plain["telemetry"] = scenario.telemetry.plain
    plain["limits"] = _plain_limits(scenario.limits)
    for key in ("request", "conditions"):
        if free := getattr(scenario, key):
            plain[key] = _copy(free)
    return plain


def _plain_prompts(prompts: Prompts) -> dict[str, Any]:
    """Write what was given, and the defaults that a reader would want to see."""
    given = {key for key in prompts.model_fields_set if getattr(prompts, key) is not None}
    shown = {"source", "order"} if prompts.source == "dataset" else {"source"}
    if prompts.source == "synthetic" and prompts.cache_hit_share is None:
        shown.add("shared_prefix_tokens")
    if prompts.conversational:
        shown |= {"think_time", "history"}
    keys = [key for key in Prompts.model_fields if key in given | shown]
    plain = {key: _plain_value(getattr(prompts, key)) for key in keys}
    return {**plain, "history": prompts.repeats} if prompts.source == "replay" else plain


def _plain_value(value: Any) -> Any:  # noqa: ANN401 - a number, a text or a part
    if hasattr(value, "plain"):
        return value.plain
    return value.model_dump(exclude_none=True) if isinstance(value, BaseModel) else value


def _plain_part(part: MixPart) -> dict[str, Any]:
    objectives = {"objectives": list(part.objectives)} if part.objectives else {}
    weight = int(part.weight) if part.weight == int(part.weight) else part.weight
    return {
        "name": part.name,
        "weight": weight,
        "prompts": _plain_prompts(part.prompts),
        **objectives,
    }


def _plain_each(each: EachLevel, levels: Sequence[Level]) -> dict[str, Any]:
    plain: dict[str, Any] = {"drain": write_duration(each.drain_s)}
    # segments and logs say how long they are measured; the default, written, would cut a log short
    follows_a_log = any(level.lasts_as_the_log for level in levels)
    given = "measure" in each.model_fields_set
    if given if follows_a_log else any(level.segments is None for level in levels):
        plain = {"measure": each.measure.plain, **plain}
    warmup = each.warmup
    if all(level.lasts_as_the_log for level in levels):
        warmup = each.warmup_of(levels[0])
    if warmup != Span():  # the default is said by silence: it differs from level to level
        plain = {"warmup": warmup.plain, **plain}
    if each.truncate != "mser-5":
        plain["truncate"] = each.truncate
    return {**plain, "cooldown": write_duration(each.cooldown_s)} if each.cooldown_s else plain


def _plain_target(target: Target) -> dict[str, Any]:
    plain = target.model_dump(exclude_none=True)
    for key in ("insecure", "allow_public"):
        if not plain[key]:
            del plain[key]
    plain["url"] = target.masked_url
    if not target.headers:
        del plain["headers"]
    return plain


def _plain_server(server: Server) -> dict[str, Any]:
    plain = server.model_dump(exclude_none=True, exclude={"files", "ready_within_s"})
    if server.profile is not None:
        plain["file"] = list(server.compose_files)
    if server.command is not None:
        plain["command"] = list(server.command)
    if not server.variables:
        del plain["variables"]
    if server.ready_within_s != READY_WITHIN_S:
        plain["ready_within"] = write_duration(server.ready_within_s)
    return plain


def _plain_level(level: Level) -> dict[str, Any]:
    hidden = {"segments", "max_gap_s", "jitter", "once"}
    if level.closed:
        hidden |= {*RATE_ONLY_KEYS}
    if level.speed is not None:
        hidden |= {"arrivals", "burstiness"}
    plain = level.model_dump(exclude_none=True, exclude=hidden)
    if level.max_gap_s is not None:
        plain["max_gap"] = write_duration(level.max_gap_s)
    if level.jitter:
        plain["jitter"] = True
    if level.once:
        plain["once"] = True
    if level.rate is not None:
        plain["rate"] = write_rate(level.rate)
    if level.segments is not None:
        plain = {"segments": [part.plain for part in level.segments], **plain}
    return plain


def _plain_quality(quality: Quality) -> dict[str, Any]:
    asked = {"pass": True} if quality.share is None else {"share": f"{quality.share * 100:.12g}%"}
    return {"set": quality.golden, **asked}


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
