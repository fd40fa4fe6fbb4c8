"""What all tests against real engines share: installed engines, tiny models, running servers.

llama.cpp is required: where it cannot be installed, its tests fail. transformers is a large
download: without it, its tests are skipped with pip's reason, but under CI they fail as well, so
that a green run there never means "not tried".
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from installs import LLAMACPP, TRANSFORMERS, InstallFailed, interpreter
from servers import HERE, Serve, Server, llamacpp, transformers_serve

sys.path.insert(0, str(HERE.parent))  # the makers that all tests share, like drive.py


@pytest.fixture(scope="session")
def llamacpp_python() -> Path:
    try:
        return interpreter(LLAMACPP)
    except InstallFailed as failure:
        pytest.fail(f"llama.cpp cannot be installed: {failure}")


@pytest.fixture(scope="session")
def transformers_python() -> Path:
    try:
        return interpreter(TRANSFORMERS)
    except InstallFailed as failure:
        reason = f"transformers cannot be installed: {failure}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def serve_llamacpp(llamacpp_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    made = tmp_path_factory.mktemp("llamacpp")

    def serve(variant: str, **options: int) -> AbstractContextManager[Server]:
        model = made / f"{variant}.gguf"
        if not model.exists():
            _make(llamacpp_python, variant, "--gguf", str(model))
        return llamacpp(llamacpp_python, model, made / f"{variant}.log", **options)

    return serve


@pytest.fixture(scope="session")
def transformers(
    transformers_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One server for all tests: it takes seconds to start, and keeps nothing between requests."""
    made = tmp_path_factory.mktemp("transformers")
    model = made / "tiny"
    _make(transformers_python, "tiny", "--hf", str(model))
    with transformers_serve(transformers_python, model, made / "serve.log") as server:
        yield server


def _make(python: Path, variant: str, *files: str) -> None:
    script = str(HERE / "make_tiny_model.py")
    subprocess.run([str(python), script, variant, *files], check=True, timeout=60)
