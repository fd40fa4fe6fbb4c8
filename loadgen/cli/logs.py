"""The flags that say how a log is read and replayed, and what was found in one, as text."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loadgen.errors import UsageError

if TYPE_CHECKING:
    from loadgen.analysis.summary import Distribution, Summary
    from loadgen.scenario.model import Scenario

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

CLOSED_LOOP_SLOTS = 8

_LATENESS = (("lateness", "lateness"), ("slot_wait", "of it waiting for a place"),
             ("send_lag", "the client's own"))  # fmt: skip

_READING: list[Callable[[Any], Any]] = [
    click.option("--format", metavar="NAME", help="Of the log: mooncake, litellm, … [auto]"),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="WHAT=NAME",
        help="A column of a log of your own: time=ts, input_tokens=n_in, prompt=q; repeatable.",
    ),
    click.option("--time-unit", metavar="UNIT", help="Of times that are numbers: s, ms, us, ns."),
    click.option(
        "--window", metavar="A..B", help="Only what came then: 10m..20m, or 10:00..10:30 (UTC)."
    ),
    click.option("--sample", metavar="SHARE", help="A share of the conversations: 0.1, 10%."),
    click.option(
        "--max-context", type=int, metavar="N", help="Leave out what has more tokens than this."
    ),
    click.option(
        "--over-context", metavar="WHAT", help="With --max-context: skip, truncate, send."
    ),
    click.option("--roles", metavar="WHAT", help="Roles that do not alternate: send, merge, skip."),
    click.option("--failed", metavar="WHAT", help="Requests that failed in the log: skip, send."),
    click.option("--strict-input", is_flag=True, default=None, help="Refuse a log with a bad row."),
]
_PACE: list[Callable[[Any], Any]] = [
    click.option("--speed", type=float, metavar="X", help="So many times as fast. [1]"),
    click.option("--max-gap", metavar="T", help="Cut longer gaps of the log to this: 60s."),
    click.option(
        "--jitter", is_flag=True, default=None, help="Spread times that lie on a grid within it."
    ),
]
_SAYING: list[Callable[[Any], Any]] = [
    click.option("--history", metavar="KIND", help="Later turns repeat replies: recorded, live."),
    click.option(
        "--match-output-length",
        is_flag=True,
        default=None,
        help="Ask for answers as long as the recorded ones.",
    ),
    click.option(
        "--keep-model", is_flag=True, default=None, help="Ask for the models that the log names."
    ),
]
_SLOTS: list[Callable[[Any], Any]] = [
    click.option("--max-in-flight", type=int, metavar="N", help="The most at once. [1024]"),
    click.option("--at-cap", metavar="POLICY", help="When all are taken: wait, drop."),
    click.option(
        "--closed-loop",
        is_flag=True,
        help=f"Without the log's times: as fast as -c slots get through it. [{CLOSED_LOOP_SLOTS}]",
    ),
    click.option("-c", "--concurrency", metavar="N,N…", help="The slots of --closed-loop."),
]


def log_arguments(command: Decorated) -> Decorated:
    """Add the flags that say how a log is read, and how it is replayed."""
    return _with(command, [*_READING, *_PACE, *_SLOTS, *_SAYING])


def log_arguments_beside_a_level(command: Decorated) -> Decorated:
    """Add the same but for those of a level, which the verb has already."""
    return _with(command, [*_READING, *_PACE, *_SAYING])


def reading_arguments(command: Decorated) -> Decorated:
    """Add the flags that say how a log is read."""
    return _with(command, _READING)


def _with(command: Decorated, options: list[Callable[[Any], Any]]) -> Decorated:
    for option in reversed(options):
        command = option(command)
    return command


def found_in(scenario: "Scenario") -> list[str]:
    """Read the logs of a scenario and say what was found, a line each.

    Raises UsageError where a log cannot be used, or not be followed.
    """
    from loadgen.workload.plan import source_without_nonce
    from loadgen.workload.replay.follow import check_logs, course_through

    check_logs(scenario)
    facts = source_without_nonce(scenario).facts()
    each = facts["classes"].values() if "classes" in facts else [facts]
    lines = [line for told in each if told["source"] == "replay" for line in render_found(told)]
    return [*lines, *(f"Course    {said}" for said in course_through(scenario))]


def answers_of(scenario: "Scenario") -> list[str]:
    """Say what of the answers is not as it was; a run says it itself."""
    from loadgen.workload.replay.follow import natural_answers

    return [f"Answers   {said.removeprefix('answers ')}" for said in natural_answers(scenario)]


def held_against_the_log(directory: Path, summary: "Summary") -> Iterator[str]:
    """Say how late requests were sent (sent − due), and how many answers have another length."""
    from loadgen.analysis.asked import answers_unlike_asked
    from loadgen.analysis.table import read_run

    for level in summary.levels:
        if level.concurrency is None:
            told = ((word, getattr(level, name)) for name, word in _LATENESS)
            yield f"{level.label}: " + ", ".join(f"{word} {_late(one)}" for word, one in told)
    unlike = answers_unlike_asked(read_run(directory))
    if unlike.of:
        yield f"answers of another length than asked: {unlike.number:,} of {unlike.of:,}"


def refuse_log_flags(options: Mapping[str, Any]) -> None:
    """Refuse the flags of a log where there is none."""
    names = ("format", "columns", "time_unit", "window", "sample", "max_context", "over_context",
             "roles", "failed", "strict_input", "speed", "max_gap", "jitter", "history",
             "match_output_length", "keep_model")  # fmt: skip
    given = [name for name in names if options.get(name) not in (None, ())]
    if given:
        flag = "--column" if given[0] == "columns" else "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag}: goes with --log; a scenario says it in prompts and levels")


def render_found(facts: Mapping[str, Any]) -> Iterator[str]:
    """Write what a log holds, a line for each thing worth knowing."""
    where = "as told" if facts["format_told"] else "by the names in it"
    yield f"Log       {facts['file']}: {facts['format']} ({where})"
    yield f"Requests  {_requests(facts)}"
    yield f"Times     {_times(facts)}"
    for key, word in (("input_tokens", "Input "), ("output_tokens", "Output")):
        yield f"{word}    {_lengths(facts[key])}"
    if facts["prefix_hit_share"] is not None:
        share = 100 * facts["prefix_hit_share"]
        yield f"Prefix    {share:.1f} % ideal hits: blocks of {facts['block']} that came before"
    yield from (f"{word.ljust(9)} {text}" for word, text in _remarks(facts))
    if "replayed" in facts:
        yield f"Replayed  {_replayed(facts)}"


def _late(told: "Distribution") -> str:
    known = [(word, getattr(told, word)) for word in ("p50", "p99")]
    parts = [f"{word} {one.value:.3g} ms" for word, one in known if one.value is not None]
    parts += [] if told.max is None else [f"max {told.max:.3g} ms"]
    return " ".join(parts) or "unknown"


def _requests(facts: Mapping[str, Any]) -> str:
    bad = facts["bad_rows"]
    rows = facts["rows"] + bad + facts["other_rows"]
    parts = [f"{facts['requests']:,} in {_rows(rows)}", _rows(bad, "bad ")]
    if bad:
        lines = ", ".join(f"line {one['line']} {one['reason']}" for one in facts["bad_examples"])
        more = ", …" if bad > len(facts["bad_examples"]) else ""
        parts[-1] += f" ({lines}{more})"
    if facts["other_rows"]:
        no = "is no request" if facts["other_rows"] == 1 else "are no requests"
        parts.append(f"{_rows(facts['other_rows'])} that {no}")
    if facts["conversations"]:
        parts.append(f"{facts['conversations']:,} conversations")
    if facts["failed"]:
        parts.append(f"{facts['failed']:,} failed in the log")
    return ", ".join(parts)


def _rows(number: int, of: str = "") -> str:
    return f"{number:,} {of}row{'' if number == 1 else 's'}"


def _times(facts: Mapping[str, Any]) -> str:
    if facts["span_s"] is None:
        return "none" if facts["without_time"] else "one request"
    unit = f"times in {facts['time_unit']}" if facts["time_unit"] != "date" else "dates"
    if facts["time_zone"]:
        unit = f"dates, zone: {facts['time_zone']}"
    peak, mean = facts["rate_peak_minute"], facts["rate_mean"]
    parts = [f"span {_seconds(facts['span_s'])} ({unit})"]
    parts += [] if mean is None else [f"mean {mean:.3g}/s"]
    parts += [] if peak is None else [f"peak minute {peak:.3g}/s"]
    parts += [] if facts["gap_cv"] is None else [f"CV of gaps {facts['gap_cv']:.3g}"]
    parts.append(f"{facts['distinct_times']:,} distinct")
    return ", ".join(parts)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.6f}".rstrip("0").ljust(len(f"{seconds:,.0f}") + 2, "0") + " s"


def _lengths(told: Mapping[str, Any]) -> str:
    if not told["known"]:
        return "lengths unknown"
    text = f"p50 {told['p50']:,}, p95 {told['p95']:,}, max {told['max']:,} tokens"
    if told["estimated"]:
        text += f" ({told['estimated']:,} estimated at 4 characters a token)"
    return text


def _remarks(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if facts["quantum_s"] is not None:
        spread = "spread within that" if facts["replayed"]["jitter"] else "--jitter spreads them"
        yield "Grid", f"times lie {facts['quantum_s']:g} s apart, many requests at once; {spread}"
    if facts["reordered"]:
        yield "Order", f"{facts['reordered']:,} requests stand after later ones; sent by time"
    if facts["without_time"] and facts["span_s"] is not None:
        yield "No time", f"{facts['without_time']:,} requests"
    if facts["headers_dropped"]:
        names = ", ".join(f"{name} ({n:,})" for name, n in facts["headers_dropped"].items())
        yield "Headers", f"not sent: {names}"
    if facts["overridden"]:
        names = ", ".join(f"{name} ({n:,})" for name, n in facts["overridden"].items())
        yield "Overrides", f"not as logged: {names}"
    if facts["roles_wrong"]:
        lines = ", ".join(map(str, facts["roles_wrong_lines"]))
        yield "Roles", (f"{facts['roles_wrong']:,} requests do not alternate (line {lines}), which "
                        "many templates refuse; --roles merge or skip")  # fmt: skip


def _replayed(facts: Mapping[str, Any]) -> str:
    told = facts["replayed"]
    text = f"{told['requests']:,} requests"
    if told["conversations"] < told["requests"]:
        text += f" in {told['conversations']:,} conversations, history {facts['history']}"
    left = [f"{count:,} {reason}" for reason, count in told["left_out"].items() if count]
    if capped := max(told["gaps_capped"]):
        text += f", {capped:,} gap{'s'[: capped > 1]} cut short"
    for key, word in (("truncated", "cut to the context"), ("over_context", "over the context")):
        if told.get(key):
            text += f", {told[key]:,} {word}"
    return f"{text}; left out: {', '.join(left)}" if left else text
