import json
import pickle
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML
from scenario_make import MINIMAL, load_text, make_scenario

from loadgen.errors import UsageError
from loadgen.scenario.fields import Span, write_duration
from loadgen.scenario.model import EachLevel, Level, Limits, Segment
from loadgen.units import parse_duration_s

PRIVATE = """
name: private
target: {url: "https://user:hush-0001@h/v1?api-version=2&sig=hush-0002", headers:
         {X-Team: "${TOKEN}", Authorization: "Bearer hush-0003 ${TOKEN}", X-Plain: hush-0004}}
prompts: {input_tokens: 20, output_tokens: 8}
levels: [{concurrency: 2}]
each_level: {measure: ["${TIME}", 5 requests]}
conditions: {owner: ["${OWNER}"]}
"""
ENVIRON = {"TOKEN": "hush-0005", "OWNER": "hush-0006", "TIME": "77s"}


def segments(*rates: tuple[float, float]) -> tuple[Segment, ...]:
    return tuple(Segment(from_rate=first, to_rate=last, for_s=1.0) for first, last in rates)


def test_what_is_shown_holds_no_secret_and_keeps_the_names(tmp_path: Path) -> None:
    public = load_text(PRIVATE, tmp_path, environ=ENVIRON).public_dict()
    assert "hush" not in json.dumps(public)
    assert public["target"]["url"] == "https://***@h/v1?api-version=2&sig=***"
    headers = {"X-Team": "${TOKEN}", "Authorization": "***", "X-Plain": "***"}
    assert public["target"]["headers"] == headers
    assert public["conditions"] == {"owner": ["${OWNER}"]}
    assert public["each_level"]["measure"] == ["${TIME}", "5 requests"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("${URL}", "${URL}"),
        ("http://${HOST}:8000/v1", "http://${HOST}:8000/v1"),
        ("http://me:hush@${HOST}", "http://***@${HOST}"),
        ("http://${HOST}/?sig=hush&k=${K}", "http://${HOST}/?sig=***&k=${K}"),
    ],
)
def test_a_url_of_the_environment_is_shown_by_name(given: str, shown: str, tmp_path: Path) -> None:
    environ = {"URL": "http://me:pw@h", "HOST": "inner", "K": "v"}
    text = MINIMAL.replace("http://localhost:8000/v1", f'"{given}"')
    assert load_text(text, tmp_path, environ=environ).public_dict()["target"]["url"] == shown


def test_what_is_shown_is_itself_a_scenario_of_the_same_meaning(tmp_path: Path) -> None:
    text = MINIMAL.replace("{concurrency: 2}", "{concurrency: 2}, {rate: 7/min, at_cap: drop}") + (
        "each_level: {warmup: [1.23456789s, 3 requests], measure: 200 requests, drain: 0s}\n"
        "limits: {total: 1m30s}\nrequest: {temperature: 0.5}\nobjectives: ['errors < 2%']\n"
    )
    scenario = load_text(text, tmp_path)
    again = tmp_path / "again.yaml"
    with again.open("w") as file:
        YAML().dump(scenario.public_dict(), file)
    assert load_text(again.read_text(), tmp_path) == scenario


RICH = """
name: rich
target: {url: "http://h", tokenizer: o200k_base}
mix:
  - {name: chat, weight: 7, prompts: {input_tokens: {distribution: lognormal, median: 40, sigma: 1},
     output_tokens: natural, max_output_tokens: 99, turns: {mean: 3, spread: 1},
     think_time: {mean: 2s, spread: 1s}}, objectives: ["ttft p95 <= 1s"]}
  - {name: long, weight: 2.5, prompts: {lengths: pairs.csv, cache_hit_share: 30%}}
  - {name: file, prompts: {source: dataset, file: rows.csv, format: csv, order: file, turns: 2,
     columns: {messages: m}, output_tokens: 9, history: recorded}}
levels:
  - {sessions: 8, concurrency: 2}
  - {rate: 4/s, burstiness: 0.25, max_starts_per_s: 50.0}
  - {segments: [{rate: 0/s, for: 1s}, {from: 2/s, to: 10/s, for: 1m}], arrivals: constant}
abort_if: ["errors > 50% over 10s"]
workers: auto
"""


def test_every_key_is_shown_so_that_it_can_be_read_again(tmp_path: Path) -> None:
    for name in ("pairs.csv", "rows.csv"):
        tmp_path.joinpath(name).touch()
    scenario = load_text(RICH, tmp_path)
    again = tmp_path / "again.yaml"
    with again.open("w") as file:
        YAML().dump(scenario.public_dict(), file)
    reread = load_text(again.read_text(), tmp_path)
    assert reread == scenario
    assert reread.public_dict() == scenario.public_dict()


def test_segments_alone_say_how_long_they_are_measured(tmp_path: Path) -> None:
    segments = "{segments: [{rate: 1/s, for: 5s}]}"
    scenario = load_text(MINIMAL.replace("{concurrency: 2}", segments), tmp_path)
    assert scenario.public_dict()["each_level"] == {"drain": "1m"}
    assert scenario.each_level.measure_of(scenario.levels[0]) == Span(seconds=5)


def test_a_scenario_travels_to_another_process(tmp_path: Path) -> None:
    scenario = load_text(MINIMAL + "conditions: {who: '${WHO}'}\n", tmp_path, environ={"WHO": "me"})
    there = pickle.loads(pickle.dumps(scenario))
    assert (there, there.file("x"), there.references) == (
        scenario, tmp_path / "x", scenario.references)  # fmt: skip


def test_what_is_sent_stands_in_classes_with_a_mix_or_without() -> None:
    prompts = {"input_tokens": 20, "output_tokens": 8}
    one = make_scenario()
    mix = [{"name": "a", "prompts": prompts}, {"name": "b", "prompts": {**prompts, "turns": 2}}]
    mixed = make_scenario(prompts=None, mix=mix)
    assert [name for name, _ in one.classes] == [None]
    assert [name for name, _ in mixed.classes] == ["a", "b"]
    assert (one.conversational, mixed.conversational) == (False, True)
    with pytest.raises(UsageError, match="a mix has prompts for each class"):
        _ = mixed.prompts


def test_a_scenario_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        make_scenario().rounds = 2  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "seconds", "requests"),
    [
        ("30s", 30.0, None),
        ("200 requests", None, 200),
        ("1 request", None, 1),
        ("1_000 requests", None, 1000),
        (["60s", "200 requests"], 60.0, 200),
        (["200 requests", "1m30s"], 90.0, 200),
        ("0s", 0.0, None),
    ],
    ids=str,
)
def test_a_span_is_a_time_a_count_or_both(
    text: object, seconds: float | None, requests: int | None
) -> None:
    assert Span.model_validate(text) == Span(seconds=seconds, requests=requests)


@pytest.mark.parametrize(
    ("level", "warmup", "requests"),
    [
        (Level(concurrency=1), Span(), 2),
        (Level(concurrency=32), Span(), 32),
        (Level(rate=4), Span(), 2),
        (Level(sessions=12, concurrency=4), Span(), 4),
        (Level(sessions=12), Span(), 12),
        (Level(concurrency=32), Span(requests=0), 0),
    ],
    ids=["at-least-two", "one-per-slot", "open", "both", "sessions", "none-asked"],
)
def test_a_warm_up_is_one_request_per_slot_unless_told(
    level: Level, warmup: Span, requests: int
) -> None:
    assert EachLevel(warmup=warmup).warmup_of(level).requests == requests


@pytest.mark.parametrize(
    ("level", "label"),
    [
        (Level(concurrency=8), "concurrency 8"),
        (Level(sessions=8), "8 sessions"),
        (Level(sessions=8, concurrency=2), "8 sessions, concurrency 2"),
        (Level(rate=4.0), "4/s poisson"),
        (Level(rate=0.5, arrivals="constant"), "0.5/s constant"),
        (Level(rate=4.0, burstiness=0.25), "4/s gamma 0.25"),
        (Level(segments=segments((2, 2), (2, 10), (50, 50))), "2→10→50/s poisson"),
        (Level(segments=segments(*[(n, n) for n in range(1, 10)])), "1→2→3→…→8→9/s poisson"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_level_has_a_label(level: Level, label: str) -> None:
    assert level.label == label


@pytest.mark.parametrize(
    ("level", "slots", "at_once"),
    [(Level(concurrency=8), 8, 8), (Level(sessions=8), 8, 8),
     (Level(sessions=8, concurrency=2), 2, 8), (Level(rate=4.0, max_in_flight=9), 9, None)],
    ids=["concurrency", "sessions", "both", "open"],
)  # fmt: skip
def test_requests_and_conversations_in_flight_are_separate(
    level: Level, slots: int, at_once: int | None
) -> None:
    assert (level.slots, level.conversations_at_once) == (slots, at_once)


@pytest.mark.parametrize(
    ("rates", "first", "peak"),
    [([(2, 2), (2, 10)], 2, 10), ([(0, 0), (0, 8)], 8, 8), ([(0, 3)], 3, 3)],
    ids=["holds", "pause-first", "ramp-from-zero"],
)
def test_warm_up_goes_at_the_first_rate_above_zero(
    rates: list[tuple[float, float]], first: float, peak: float
) -> None:
    level = Level(segments=segments(*rates))
    assert (level.first_rate, level.peak_rate) == (first, peak)


def test_limits_take_field_names_in_code() -> None:
    assert Limits(connect_s=3).connect_s == 3.0


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.0, 59.9999999, 61.5, 3600.0, 12345.678901])
def test_a_duration_is_written_so_that_it_reads_back_exactly(seconds: float) -> None:
    assert parse_duration_s(write_duration(seconds)) == seconds
