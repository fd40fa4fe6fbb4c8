import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenario_make import load_text, make_scenario

from loadgen.errors import EnvironmentFault, MissingExtra, UsageError
from loadgen.workload.synthetic import universal_words
from loadgen.workload.tokens import (
    BUNDLED,
    VOCABULARIES,
    Vocabulary,
    counter,
    counter_of,
    holds,
    places,
    vocabulary_directory,
)

NO_SOCKETS = """
import sys
def refuse(event, arguments):
    if event.startswith("socket."):
        raise AssertionError(event)
sys.addaudithook(refuse)
from loadgen.workload.tokens import counter
try:
    print(counter(sys.argv[1]).count("hello world"))
except Exception as error:
    print(type(error).__name__, error)
"""


def offline(name: str, **environ: str) -> str:
    """Count in a process that must not touch the network, and has no home or cache of tokens."""
    command = [sys.executable, "-c", NO_SOCKETS, name]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **environ}
    )
    return done.stdout.strip()


def present(name: str) -> bool:
    return vocabulary_directory(name, environ=os.environ) is not None


def test_a_vocabulary_that_is_not_here_is_said_so_and_never_fetched(tmp_path: Path) -> None:
    if present("p50k_base"):
        pytest.skip("the file of p50k_base is on this machine")
    said = offline("p50k_base", TIKTOKEN_CACHE_DIR=str(tmp_path))
    assert said.startswith("EnvironmentFault tokenizer: the file of p50k_base is not on this")
    assert VOCABULARIES["p50k_base"].cached_as in said
    assert "export TIKTOKEN_CACHE_DIR=" in said


def test_a_spoilt_file_is_not_used_nor_deleted(tmp_path: Path) -> None:
    spoilt = tmp_path / VOCABULARIES["p50k_base"].cached_as
    spoilt.write_bytes(b"not it")
    if not present("p50k_base"):
        assert "is not on this machine" in offline("p50k_base", TIKTOKEN_CACHE_DIR=str(tmp_path))
    assert not holds(tmp_path, VOCABULARIES["p50k_base"])
    assert spoilt.read_bytes() == b"not it"


def test_a_whole_file_is_known_by_its_hash(tmp_path: Path) -> None:
    tmp_path.joinpath("name").write_bytes(b"aGk= 0\n")
    digest = hashlib.sha256(b"aGk= 0\n").hexdigest()
    assert holds(tmp_path, Vocabulary(cached_as="name", sha256=digest))
    assert not holds(tmp_path, Vocabulary(cached_as="other", sha256=digest))


@pytest.fixture
def packages(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory of packages that would fail on import; find_spec must be enough."""
    for package, inside in BUNDLED:
        tmp_path.joinpath(package, inside).mkdir(parents=True)
        if package == "litellm":
            tmp_path.joinpath(package, "__init__.py").write_text("raise AssertionError('imported')")
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))


def test_packages_that_bring_vocabularies_are_searched_and_not_imported(packages: Path) -> None:
    found = list(places({"TIKTOKEN_CACHE_DIR": "/first", "DATA_GYM_CACHE_DIR": "/second"}))
    assert found[:2] == [Path("/first"), Path("/second")]
    assert [path for path in found if path.is_relative_to(packages)] == [
        packages / package / inside for package, inside in BUNDLED
    ]
    assert "litellm" not in sys.modules


@pytest.mark.parametrize("name", ["cl100k_base", "o200k_base"])
def test_every_word_of_ours_is_one_token(name: str) -> None:
    if not present(name):
        pytest.skip(f"the file of {name} is not on this machine; see workload/tokens.py")
    words = universal_words().tolist()
    assert counter(name).count(" ".join(words)) == len(words)
    assert offline(name) == "2"


def test_the_environment_is_left_as_it_was() -> None:
    names = [name for name in VOCABULARIES if present(name)]
    if not names:
        pytest.skip("no vocabulary file is on this machine; see workload/tokens.py")
    before = dict(os.environ)
    assert counter(names[0]).count("<|endoftext|>") > 1  # text, not a special token
    assert dict(os.environ) == before


def test_an_unknown_name_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UsageError, match="'cl99' is not known; name one of cl100k_base"):
        counter("cl99")


def test_a_tokenizer_json_needs_its_extra_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    expected = (MissingExtra, UsageError, EnvironmentFault)
    with pytest.raises(expected, match=r"loadgen\[tokenizers\]|is not a tokenizer\.json"):
        counter(str(path))


def test_a_scenario_may_name_no_tokenizer_or_one_by_name() -> None:
    assert counter_of(make_scenario()) is None
    named = make_scenario(target={"url": "http://h", "tokenizer": "p50k_base"})
    if present("p50k_base"):
        assert counter_of(named) is not None
    else:
        with pytest.raises(EnvironmentFault, match="the file of p50k_base"):
            counter_of(named)


WORDS_ONLY = """{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
"normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null,
"decoder": null, "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2},
"unk_token": "?"}}"""


def test_a_tokenizer_json_counts_by_itself_or_in_its_directory(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="the extra 'tokenizers' is not installed")
    path = tmp_path / "tokenizer.json"
    path.write_text(WORDS_ONLY)
    assert counter(str(path)).count("a b c") == 3
    assert counter(f"{tmp_path}/").count("a b c") == 3
    text = "target: {url: 'http://h', tokenizer: ./}\nlevels: [{concurrency: 1}]\n"
    prompts = "prompts: {input_tokens: 2, output_tokens: 1}\n"
    found = counter_of(load_text(text + prompts, tmp_path))
    assert found is not None
    assert found.count("b a") == 2
    with pytest.raises(UsageError, match=r"nowhere\.json: no such file"):
        counter(str(tmp_path / "nowhere.json"))
