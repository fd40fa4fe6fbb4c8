"""vLLM, installed once and started as few times as can be: each start takes half a minute.

Without it (a download of half a gigabyte) these tests are skipped with pip's reason; under CI they
fail, so that a green run there never means "not tried".
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "real")]  # makers that others have already

from installs import VLLM, InstallFailed, interpreter  # noqa: E402
from servers import HERE as REAL  # noqa: E402
from servers import free_port  # noqa: E402
from serving import Vllm, scenario, written  # noqa: E402


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Vllm:
    try:
        python = interpreter(VLLM)
    except InstallFailed as failure:
        reason = f"vLLM cannot be installed: {failure}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    made = tmp_path_factory.mktemp("vllm")
    # every word of a prompt is one token of its vocabulary, so that lengths are exact
    maker = [str(python), str(REAL / "make_tiny_model.py"), "tiny-words", "--hf"]
    subprocess.run([*maker, str(made / "tiny")], check=True, timeout=60)
    return Vllm(program=python.with_name("vllm"), model=made / "tiny", state=made / "state")


@pytest.fixture
def url() -> str:
    """Where a test's own server may listen."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def served(vllm: Vllm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server for all tests; it runs 8 sequences at once, and queues the others."""
    found = f"http://127.0.0.1:{free_port()}"
    server = vllm.server(found, sequences=8)
    file = written(tmp_path_factory.mktemp("served") / "s.yaml", scenario(found, server=server))
    try:
        up = vllm.loadgen("server", "up", str(file))
        assert up.returncode == 0, up.stderr
        yield found
    finally:
        vllm.loadgen("server", "down", str(file))
