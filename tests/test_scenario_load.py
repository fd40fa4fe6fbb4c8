import re
from pathlib import Path

import pytest
from scenario_make import MINIMAL, ROOT, load_text, problems_in

from loadgen.errors import ScenarioError
from loadgen.scenario.load import load_scenario, scenario_from_flags
from loadgen.scenario.problems import known_keys
from loadgen.scenario.settings import Setting, parse_path, write_path


def test_a_minimal_file_has_the_documented_defaults(tmp_path: Path) -> None:
    scenario = load_text(MINIMAL, tmp_path)
    each, limits = scenario.each_level, scenario.limits
    assert (each.measure.seconds, each.measure.requests, each.drain_s) == (30.0, None, 60.0)
    assert (limits.connect_s, limits.first_token_s, limits.idle_s) == (10.0, 300.0, 60.0)
    assert (limits.total_s, limits.retries, scenario.rounds, scenario.seed) == (None, 0, 1, 0)


def test_the_example_of_the_design_loads(tmp_path: Path) -> None:
    scenario = load_text(
        """
        name: chat-short
        target:     {url: http://localhost:8000/v1, model: tiny, headers: {X-Team: "${TEAM_TOKEN}"}}
        prompts:    {source: synthetic, input_tokens: {mean: 512, spread: 128}, output_tokens: 128,
                     shared_prefix_tokens: 64}
        levels:     [{concurrency: 1}, {concurrency: 8}, {concurrency: 32},
                     {rate: 4/s, arrivals: poisson, max_in_flight: 256}]
        each_level: {warmup: 20s, measure: [60s, 200 requests], drain: 60s}
        rounds: 3
        objectives: ["ttft p95 <= 500ms", "itl p99 <= 80ms", "errors <= 1%"]
        seed: 7
        """,
        tmp_path,
        environ={"TEAM_TOKEN": "hush-0000"},
    )
    assert [level.label for level in scenario.levels] == [
        "concurrency 1", "concurrency 8", "concurrency 32", "4/s poisson"]  # fmt: skip
    assert (scenario.each_level.measure.seconds, scenario.each_level.measure.requests) == (60, 200)
    assert scenario.target.headers == {"X-Team": "hush-0000"}


def test_a_misspelt_key_names_its_place_and_the_right_one(tmp_path: Path) -> None:
    text = MINIMAL.replace("[{concurrency: 2}]", "[{rate: 1}, {rate: 2}, {concurency: 2}]")
    assert problems_in(text, tmp_path) == [
        "s.yaml: levels[2].concurency: unknown key; did you mean 'concurrency'?"
    ]


def test_a_level_with_two_faults_has_both_told(tmp_path: Path) -> None:
    text = MINIMAL.replace("{concurrency: 2}", "{concurrency: 2, rate: -4}")
    assert problems_in(text, tmp_path) == [
        "s.yaml: levels[0].rate: a rate must be above 0, not -4",
        "s.yaml: levels[0]: both concurrency and rate are given; keep one",
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("levels: []", "levels: no levels; add one, like {concurrency: 8}"),
        ("levels:", "levels: must be a list"),
        ("levels: [{}]", "levels[0]: neither concurrency nor rate is given; add one"),
        ("levels: [{concurrency: 1, rate: 4/s}]", "levels[0]: both concurrency and rate"),
        ("levels: [{rate: -4}]", "levels[0].rate: a rate must be above 0"),
        ("levels: [{concurrency: 1, at_cap: drop}]", "levels[0]: at_cap goes with a rate"),
        ("levels: [{concurrency: 0}]", "levels[0].concurrency: must be 1 or more"),
        ("levels: [{concurrency: -1}]", "levels[0].concurrency: must be 1 or more"),
        ("levels: [{concurrency: '8'}]", "levels[0].concurrency: must be a whole number"),
        ("levels: [{concurrency: 1.5}]", "levels[0].concurrency: must be a whole number"),
        ("levels: [{concurrency: true}]", "levels[0].concurrency: must be a whole number"),
        ("levels: [{rate: fast}]", "levels[0].rate: 'fast' is not a rate; write it like 4/s"),
        ("levels: [{rate: true}]", "levels[0].rate: a rate like 4/s"),
        ("levels: [{rate: 1, arrivals: even}]", "levels[0].arrivals: must be one of 'constant'"),
        ("levels: [8]", "levels[0]: must be a mapping"),
        ("target: {url: ''}", "target.url: is empty"),
        ("target: {}", "target.url: is missing; write the server's address"),
        ("target: {url: 'http://h', modle: x}", "target.modle: unknown key; did you mean 'model'"),
        ("target: {url: 'http://h', engine: vlm}", "target.engine: 'vlm' is not known; did you"),
        ("target: {url: 'http://h', headers: {X: 5}}", "target.headers.X: must be text"),
        ("target: {url: 'http://h', headers: {'a b': c}}", "target.headers: 'a b' is not a header"),
        ("prompts: {input_tokens: -3, output_tokens: 1}", "prompts.input_tokens.mean: must be 1"),
        ("prompts: {input_tokens: 5}", "prompts.output_tokens: is missing; write a number"),
        ("prompts: {input_tokens: many, output_tokens: 1}", "prompts.input_tokens: must be a num"),
        ("prompts: {input_tokens: 5, output_tokens: 1, shared_prefix_tokens: 5}",
         "prompts: shared_prefix_tokens (5) must be below input_tokens (5)"),
        ("each_level: {warmup: 20}", "each_level.warmup: 20 of what? write '20 requests' or '20s'"),
        ("each_level: {measure: [1s, 2s]}", "each_level.measure: two of a kind"),
        ("each_level: {measure: 0s}", "each_level.measure: must be longer than nothing"),
        ("each_level: {measure: soon}", "each_level.measure: 'soon' will not do"),
        ("each_level: {drian: 1s}", "each_level.drian: unknown key; did you mean 'drain'?"),
        ("each_level: {drain_s: 1}", "each_level.drain_s: unknown key; did you mean 'drain'?"),
        ("limits: {idle: 0s}", "limits.idle: must be above 0"),
        ("limits: {idle: -1s}", "limits.idle: '-1s' is not a duration"),
        ("limits: {idel: 1s}", "limits.idel: unknown key; did you mean 'idle'?"),
        ("limits: {retries: -1}", "limits.retries: must be 0 or more"),
        ("rounds: 0", "rounds: must be 1 or more"),
        ("seed: -1", "seed: must be 0 or more"),
        ("name: a/b", "name: names the run's directory; did you mean 'a-b'?"),
        ("name: 7", "name: must be text; put it in quotes"),
        ("nonce: old", "nonce: must be one of 'fresh', 'fixed'"),
        ("objectives: [ttft <= 1s]", "objectives[0]: ttft needs a percentile; did you mean"),
        ("objectives: errors <= 1%", "objectives: must be a list"),
        ("request: {stream: false}", "request: 'stream' cannot be set here: answers are always"),
        ("request: {temperature: .nan}", "request: temperature must be a finite number"),
        ("conditions: {since: 2026-11-30}", "conditions: since cannot be written as JSON"),
        ("conditions: [gpu]", "conditions: must be a mapping"),
        ("levels: [{rate: 1, arrivals: gamma}]", "levels[0]: arrivals: gamma needs burstiness"),
        ("levels: [{rate: 1, arrivals: poisson, burstiness: 2}]", "levels[0]: burstiness goes"),
        ("levels: [{concurrency: 1, burstiness: 2}]", "levels[0]: burstiness goes with a rate"),
        ("levels: [{rate: 1, burstiness: 0}]", "levels[0].burstiness: must be above 0"),
        ("levels: [{rate: 1, sessions: 2}]", "levels[0]: both rate and sessions are given"),
        ("levels: [{sessions: 2, concurrency: 4}]", "levels[0]: concurrency (4) is never reached"),
        ("levels: [{segments: []}]", "levels[0].segments: no arrivals at all"),
        ("levels: [{segments: [{rate: 0/s, for: 1s}]}]", "levels[0].segments: no arrivals at all"),
        ("levels: [{segments: [{rate: 1/s}]}]", "levels[0].segments[0].for: is missing; say how"),
        ("levels: [{segments: [{for: 1s}]}]", "levels[0].segments[0]: give a rate, or from and to"),
        ("levels: [{segments: [{from: 1/s, for: 1s}]}]", "levels[0].segments[0]: from and to go"),
        ("levels: [{segments: [{rate: 1, to: 2, for: 1s}]}]", "levels[0].segments[0]: give a rate"),
        ("levels: [{segments: [{from_rate: 1, to: 2, for: 1s}]}]",
         "levels[0].segments[0].from_rate: unknown key; did you mean 'from'?"),
        ("prompts: {source: dataset}", "prompts.file: is missing; name the dataset"),
        ("prompts: {source: log}", "prompts.source: must be one of 'synthetic', 'dataset'"),
        ("prompts: {input_tokens: 5, output_tokens: 1, file: s.yaml}",
         "prompts: file goes with source: dataset"),
        ("prompts: {source: dataset, file: s.yaml, input_tokens: 5}",
         "prompts: input_tokens goes with source: synthetic"),
        ("prompts: {source: dataset, file: s.jaml}", "prompts.file: 's.jaml': no such file"),
        ("prompts: {lengths: l.csv}", "prompts.lengths: 'l.csv': no such file"),
        ("prompts: {lengths: s.yaml, output_tokens: 4}", "prompts: both lengths and output_tokens"),
        ("prompts: {input_tokens: natural, output_tokens: 4}", "prompts.input_tokens: must be a"),
        ("prompts: {input_tokens: 9, output_tokens: 4, max_output_tokens: 9}",
         "prompts: max_output_tokens goes with output_tokens: natural"),
        ("prompts: {input_tokens: 9, output_tokens: 4, shared_prefix_tokens: 2, "
         "cache_hit_share: 30%}", "prompts: both shared_prefix_tokens and cache_hit_share"),
        ("prompts: {input_tokens: 9, output_tokens: 4, cache_hit_share: 130%}",
         "prompts.cache_hit_share: a share lies between 0 and 100 %"),
        ("prompts: {input_tokens: 9, output_tokens: 4, think_time: 1s}",
         "prompts: think_time goes with turns; add turns: 3"),
        ("prompts: {input_tokens: 9, output_tokens: natural, turns: 3, history: recorded}",
         "prompts: history: recorded makes replies of output_tokens"),
        ("prompts: {input_tokens: 9, output_tokens: 4, turns: 3, think_time: {mean_s: 1s}}",
         "prompts.think_time.mean_s: unknown key; did you mean 'mean'?"),
        ("abort_if: [errors > 50%]", "abort_if[0]: 'errors > 50%' is not a rule to abort by"),
        ("workers: 0", "workers: must be 1 or more, or auto"),
        ("workers: many", "workers: must be 1 or more, or auto"),
        ("target: {url: 'http://h', tokenizer: cl99}", "target.tokenizer: 'cl99' is not known"),
        ("target: {url: 'http://h', tokenizer: ./t.json}", "target.tokenizer: './t.json': no such"),
        ("colour: red", "colour: unknown key; known here are name, target"),
    ],
    ids=lambda value: value if value.count(":") < 9 else None,
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(line: str, problem: str, tmp_path: Path) -> None:
    kept = [kept for kept in MINIMAL.splitlines() if not kept.startswith(line.split(":")[0])]
    (found,) = problems_in("\n".join([*kept, line]), tmp_path)
    assert found.startswith(f"s.yaml: {problem}")


MIX = """
name: m
target: {url: http://localhost:8000/v1}
levels: [{concurrency: 2}]
mix: [{name: a, prompts: {input_tokens: 9, output_tokens: 4}}]
"""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("mix: []", "mix: has no class; add one, like {name: chat, weight: 70"),
        ("mix: [{weight: 2, prompts: {input_tokens: 9, output_tokens: 4}}]", "mix[0].name: is mis"),
        ("mix: [{name: a, weight: 0, prompts: {input_tokens: 9, output_tokens: 4}}]",
         "mix[0].weight: must be above 0"),
        ("mix: [{name: a, prompts: {input_tokens: 9}}]", "mix[0].prompts.output_tokens: is miss"),
        ("mix: [{name: a/b, prompts: {input_tokens: 9, output_tokens: 4}}]", "mix[0].name: names"),
        ("mix: [{name: a, prompts: {source: dataset, file: no}}]", "mix[0].prompts.file: 'no': no"),
        ("mix: [{name: a, objectives: [x], prompts: {input_tokens: 9, output_tokens: 4}}]",
         "mix[0].objectives[0]: 'x' is not an objective"),
        ("mix: [&x {name: a, prompts: {input_tokens: 9, output_tokens: 4}}, *x]",
         "mix: two classes have the name 'a'"),
        ("prompts: {input_tokens: 9, output_tokens: 4}", "both prompts and mix are given"),
        ("prompts: {turns: 3}", "both prompts and mix are given; keep one"),
    ],
    ids=lambda value: value if value.count(":") < 9 else None,
)  # fmt: skip
def test_a_mix_is_checked_class_by_class(line: str, problem: str, tmp_path: Path) -> None:
    kept = [kept for kept in MIX.splitlines() if not kept.startswith(line.split(":")[0])]
    (found,) = problems_in("\n".join([*kept, line]), tmp_path)
    assert found.startswith(f"s.yaml: {problem}")


def test_turns_need_messages(tmp_path: Path) -> None:
    text = MINIMAL.replace("output_tokens: 8", "output_tokens: 8, turns: 3").replace(
        "{url:", "{endpoint: completions, url:"
    )
    assert problems_in(text, tmp_path) == [
        "s.yaml: target.endpoint: turns need chat; completions have no messages to repeat"
    ]


def test_a_measure_beside_nothing_but_segments_is_refused(tmp_path: Path) -> None:
    text = MINIMAL.replace("{concurrency: 2}", "{segments: [{rate: 1/s, for: 5s}]}")
    assert load_text(text, tmp_path).levels[0].segments_s == 5
    (line,) = problems_in(text + "each_level: {measure: 9s}\n", tmp_path)
    assert line == (
        "s.yaml: each_level.measure: is as long as the segments of the levels; leave it out"
    )


def test_files_are_sought_beside_the_scenario(tmp_path: Path) -> None:
    tmp_path.joinpath("rows.jsonl").write_text("{}")
    dataset = "source: dataset, file: rows.jsonl"
    text = MINIMAL.replace("input_tokens: 20, output_tokens: 8", dataset)
    assert load_text(text, tmp_path).file("rows.jsonl") == tmp_path / "rows.jsonl"
    (line,) = problems_in(text.replace("rows.jsonl", "rosw.jsonl"), tmp_path)
    assert line == "s.yaml: prompts.file: 'rosw.jsonl': no such file; did you mean 'rows.jsonl'?"


def test_all_problems_are_told_at_once_in_the_order_of_the_parts(tmp_path: Path) -> None:
    text = "rounds: no\nlevels: [{concurrency: x}]\nlimits: {idle: x}\ntarget: {url: h}\n"
    places = [line.split(": ")[1] for line in problems_in(text, tmp_path)]
    assert places == ["target.url", "prompts", "levels[0].concurrency", "rounds", "limits.idle"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "s.yaml: is empty; start from one in scenarios/"),
        ("# nothing\n", "s.yaml: is empty; start from one in scenarios/"),
        ("- a\n", "s.yaml: is not a mapping; start it with 'name: my-scenario'"),
        ("just words\n", "s.yaml: is not a mapping; start it with 'name: my-scenario'"),
        ("name: a\nlevels: [\n", "s.yaml:3: not valid YAML: "),
        ("name: a\nlevels: 3: 4\n", "s.yaml:2: not valid YAML: mapping values are not allowed"),
        ("name: a\nname: b\n", "s.yaml:2: not valid YAML: 'name' is given twice; keep one"),
        ("name: !python/object:os.system x\n", "s.yaml:1: not valid YAML: could not determine"),
        ("name: &a [*a]\n", "s.yaml: is nested more than 40 deep, or refers to itself"),
        ("name: \x00\n", "s.yaml: not valid YAML: "),
        ("a: {b: ${C}}\n", "s.yaml:1: not valid YAML: expected ',' or '}', but got '{'; put a"),
        ("a: *nowhere\n", "s.yaml:1: not valid YAML: found undefined alias"),
    ],
    ids=["empty", "comment", "list", "scalar", "unclosed", "two-colons", "duplicate", "tag",
         "recursion", "nul", "reference", "alias"],
)  # fmt: skip
def test_a_file_that_is_no_scenario_gets_one_line(text: str, problem: str, tmp_path: Path) -> None:
    (line,) = problems_in(text, tmp_path)
    assert line.startswith(problem)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(MINIMAL)
    with pytest.raises(ScenarioError, match=r"no such file; did you mean '.*chat\.yaml'"):
        load_scenario(tmp_path / "caht.yaml", environ={})


def test_a_directory_and_a_binary_file_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScenarioError, match="is a directory"):
        load_scenario(tmp_path, environ={})
    with pytest.raises(ScenarioError, match="not a text file in UTF-8"):
        load_scenario(tmp_path / "b.yaml", environ={})


def test_yaml_1_2_keeps_no_and_clock_times_as_text(tmp_path: Path) -> None:
    scenario = load_text(MINIMAL + "conditions: {thermal: no, at: 12:30}\n", tmp_path)
    assert scenario.conditions == {"thermal": "no", "at": "12:30"}


def test_a_variable_that_is_not_set_is_named_and_not_filled_with_nothing(tmp_path: Path) -> None:
    text = MINIMAL.replace("http://localhost:8000/v1", '"http://${HOST}"') + (
        "conditions: {owner: '${WHO}', x: '${}'}\n"
    )
    assert problems_in(text, tmp_path, environ={"HOST": "h"}) == [
        "s.yaml: conditions.owner: ${WHO} is not set in the environment; run: export WHO=…",
        "s.yaml: conditions.x: '${…}' holds no plain name; write it like ${TEAM_TOKEN}",
    ]


def test_two_dollars_write_a_reference_as_text(tmp_path: Path) -> None:
    scenario = load_text(MINIMAL + "conditions: {note: '$${HOME} costs $5'}\n", tmp_path)
    assert scenario.conditions["note"] == "${HOME} costs $5"


def test_a_secret_from_the_environment_never_stands_in_a_message(tmp_path: Path) -> None:
    text = MINIMAL + "limits: {idle: '${SECRET}'}\nobjectives: ['${SECRET}']\n"
    lines = problems_in(text, tmp_path, environ={"SECRET": "hush-0000"})
    assert len(lines) == 2
    assert not any("hush" in line for line in lines)
    assert "'${SECRET}' is not a duration" in lines[1]


def test_a_header_value_never_stands_in_a_message(tmp_path: Path) -> None:
    text = MINIMAL.replace("{url:", '{headers: {X-Team: "hush\\n0000"}, url:')
    (line,) = problems_in(text, tmp_path)
    assert line == "s.yaml: target.headers: the value of X-Team holds a line break " \
        "or a letter not in ASCII"  # fmt: skip


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("levels[0].concurrency=4", 4),
        ("levels[*].concurrency=5", 5),
        ("levels=[{concurrency: 6}]", 6),
    ],
    ids=["index", "each", "whole"],
)
def test_set_changes_one_value(override: str, expected: int, tmp_path: Path) -> None:
    scenario = load_text(MINIMAL, tmp_path, overrides=[override])
    assert scenario.levels[0].concurrency == expected


def test_set_makes_parts_that_the_file_leaves_out(tmp_path: Path) -> None:
    scenario = load_text(MINIMAL, tmp_path, overrides=["limits.idle=5s", "conditions.gpu.n=2"])
    assert scenario.limits.idle_s == 5.0
    assert scenario.conditions == {"gpu": {"n": 2}}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("rouns=3", "--set rouns: unknown key; did you mean 'rounds'?"),
        ("levels[0].concurency=3", "--set levels[0].concurency: unknown key; did you mean 'con"),
        ("levels[7].concurrency=3", "--set levels[7].concurrency: levels has 1 entry, counted"),
        ("name[0]=3", "--set name[0]: name is not a list"),
        ("prompts.input_tokens.mean=3", "--set prompts.input_tokens.mean: prompts.input_tokens is"),
        ("rounds", "--set rounds: has no '='; write it like rounds=3"),
        ("rounds=x", "--set rounds: must be a whole number"),
        ("a..b=3", "--set a..b: 'a..b' is not a path"),
        ("=3", "--set : '' is not a path"),
        ("rounds=[", "--set rounds: not valid YAML: "),
    ],
    ids=lambda value: value.split("=")[0] or "empty",
)
def test_a_wrong_set_says_so(override: str, problem: str, tmp_path: Path) -> None:
    (line,) = problems_in(MINIMAL, tmp_path, overrides=[override])
    assert line.startswith(problem)


@pytest.mark.parametrize("text", ["a", "a.b", "a[0].b", "a.b[12]", "x-y.Z"])
def test_a_path_is_read_and_written_alike(text: str) -> None:
    assert write_path(parse_path(text)) == text


def test_flags_win_over_the_file_and_set_wins_over_flags(tmp_path: Path) -> None:
    flags = [Setting(path=("rounds",), value=2, origin="--rounds"),
             Setting(path=("seed",), value=9, origin="--seed")]  # fmt: skip
    scenario = load_text(MINIMAL + "rounds: 1\n", tmp_path, settings=flags, overrides=["rounds=3"])
    assert (scenario.rounds, scenario.seed) == (3, 9)


def test_a_wrong_flag_is_named_in_place_of_the_file(tmp_path: Path) -> None:
    flag = Setting(path=("rounds",), value=0, origin="--rounds")
    assert problems_in(MINIMAL, tmp_path, settings=[flag]) == ["--rounds: must be 1 or more"]


def test_flags_alone_sweep_one_to_thirty_two_streams() -> None:
    url = Setting(path=("target", "url"), value="http://h", origin="--url")
    scenario = scenario_from_flags([url], environ={})
    assert [level.concurrency for level in scenario.levels] == [1, 8, 16, 32]
    assert scenario_from_flags([url], environ={}) == scenario


def test_an_anchor_shared_by_two_levels_can_be_set_for_one(tmp_path: Path) -> None:
    text = MINIMAL.replace("[{concurrency: 2}]", "[&l {concurrency: 2}, *l]")
    scenario = load_text(text, tmp_path, overrides=["levels[0].concurrency=4"])
    assert [level.concurrency for level in scenario.levels] == [4, 2]


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_scenario_of_the_project_loads_without_an_environment(path: Path) -> None:
    assert load_scenario(path, environ={}).name == path.stem


def keys_below(path: tuple[str, ...] = ()) -> set[str]:
    """Return every key a scenario file may use, however deep."""
    keys = set(known_keys(path))
    return keys.union(*(keys_below((*path, key)) for key in keys)) if keys else keys


def test_every_key_stands_in_the_reference() -> None:
    text = (ROOT / "scenarios" / "README.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`([^`]*)`", text))))
    assert len(keys_below()) > 60
    written_as_text = {"seconds", "requests"}  # of a span: 20s, 200 requests
    assert keys_below() - shown - written_as_text == set()
