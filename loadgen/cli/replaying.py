"""How the command line of a replay becomes a scenario."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cli.logs import CLOSED_LOOP_SLOTS
from loadgen.cli.options import settings_of

if TYPE_CHECKING:
    from loadgen.scenario.model import Scenario
    from loadgen.scenario.problems import Problem
    from loadgen.scenario.prompts import Prompts
    from loadgen.scenario.settings import Setting

_PROMPTS = ("format", "time_unit", "window", "sample", "max_context", "over_context", "roles",
            "failed", "history", "match_output_length", "keep_model", "strict_input")  # fmt: skip
_OF_THE_LOG = ("concurrency", "max_in_flight", "at_cap")
"""Flags that ``run`` has as well, and that mean the log's own level here."""
_LEVELS = ("speed", "max_gap", "jitter", "max_in_flight", "at_cap")


def replay_scenario(log: Path, options: dict[str, Any]) -> "Scenario":
    """Make the scenario of one command line."""
    from loadgen.scenario.load import scenario_from_flags
    from loadgen.scenario.settings import EACH, Setting

    course = {key: value for key, value in options.items() if key not in _OF_THE_LOG}
    settings = [*log_settings(log, options), *settings_of(course)]
    overrides = options["overrides"]
    scenario = scenario_from_flags(settings, overrides=overrides, environ=os.environ)
    if not closed(options):
        return scenario
    told = scenario.each_level.model_fields_set
    if "measure" not in told:
        settings.append(Setting(path=("levels", EACH, "once"), value=True, origin="--closed-loop"))
    elif "warmup" not in told:
        warmup = ("each_level", "warmup")
        settings.append(Setting(path=warmup, value="0 requests", origin="--closed-loop"))
    return scenario_from_flags(settings, overrides=overrides, environ=os.environ)


def log_settings(log: Path, options: Mapping[str, Any]) -> list["Setting | Problem"]:
    """Turn the flags of a log into values of the scenario."""
    from loadgen.scenario.settings import EACH, Setting

    found: list[Setting | Problem] = [
        Setting(path=("name",), value=_name(log), origin="LOG"),
        Setting(path=("prompts",), value={"source": "replay"}, origin="LOG"),
        Setting(path=("prompts", "file"), value=str(log), origin="LOG"),
    ]
    found += [
        Setting(path=("prompts", name), value=options[name], origin=_flag(name))
        for name in _PROMPTS
        if options.get(name) is not None
    ]
    found += [_column(text) for text in options.get("columns", ())]
    found.append(_load(options))
    found += [
        Setting(path=("levels", EACH, name), value=options[name], origin=_flag(name))
        for name in _LEVELS
        if options.get(name) is not None
    ]
    return found


def log_prompts(log: Path, options: Mapping[str, Any]) -> "Prompts":
    """Return the prompts that the flags of a log alone amount to."""
    return replay_scenario(log, {**options, "url": "http://localhost", "overrides": ()}).prompts


def closed(options: Mapping[str, Any]) -> bool:
    """Say whether a log is replayed without its times."""
    return bool(options.get("closed_loop")) or options.get("concurrency") is not None


def _name(log: Path) -> str:
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", log.name.split(".")[0]).strip("-._")[:40]
    return f"replay-{stem or 'log'}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _column(text: str) -> "Setting | Problem":
    from loadgen.scenario.settings import Setting

    what, equals, name = text.partition("=")
    if not equals or not name:
        return (), f"--column {what}: has no '=NAME'; write it like time=ts"
    path = ("prompts", "columns", what.strip().replace("-", "_"))
    return Setting(path=path, value=name.strip(), origin=f"--column {what.strip()}")


def _load(options: Mapping[str, Any]) -> "Setting":
    from loadgen.scenario.settings import Setting

    if not closed(options):
        return Setting(path=("levels",), value=[{"speed": 1}], origin="replay")
    slots = str(options.get("concurrency") or CLOSED_LOOP_SLOTS).split(",")
    levels = [{"concurrency": int(one) if one.strip().isdecimal() else one} for one in slots]
    return Setting(path=("levels",), value=levels, origin="--concurrency")
