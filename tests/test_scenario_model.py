import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML
from scenario_make import MINIMAL, load_text, make_scenario

from loadgen.scenario.fields import Length, Span, write_duration
from loadgen.scenario.model import EachLevel, Level, Limits
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
        (Level(concurrency=32), Span(requests=0), 0),
    ],
    ids=["at-least-two", "one-per-slot", "open", "none-asked"],
)
def test_a_warm_up_is_one_request_per_slot_unless_told(
    level: Level, warmup: Span, requests: int
) -> None:
    assert EachLevel(warmup=warmup).warmup_of(level).requests == requests


@pytest.mark.parametrize(
    ("plain", "length"),
    [(512, Length(mean=512)), ({"mean": 5, "spread": 2}, Length(mean=5, spread=2)),
     ({"mean": 2.5, "spread": 0}, Length(mean=2.5))],
    ids=["number", "spread", "half"],
)  # fmt: skip
def test_a_length_is_written_as_it_is_read(plain: object, length: Length) -> None:
    assert Length.model_validate(plain) == length
    assert length.plain == plain


@pytest.mark.parametrize(
    ("level", "label"),
    [(Level(concurrency=8), "concurrency 8"), (Level(rate=4.0), "4/s poisson"),
     (Level(rate=0.5, arrivals="constant"), "0.5/s constant")],
    ids=["closed", "poisson", "constant"],
)  # fmt: skip
def test_a_level_has_a_label(level: Level, label: str) -> None:
    assert level.label == label


def test_limits_take_field_names_in_code() -> None:
    assert Limits(connect_s=3).connect_s == 3.0


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.0, 59.9999999, 61.5, 3600.0, 12345.678901])
def test_a_duration_is_written_so_that_it_reads_back_exactly(seconds: float) -> None:
    assert parse_duration_s(write_duration(seconds)) == seconds
