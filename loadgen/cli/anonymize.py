"""``loadgen anonymize``: a log that can be shared, and replays with the same prefix sharing."""

import os
import secrets
from pathlib import Path
from typing import Any

import click

from loadgen.cli.logs import reading_arguments
from loadgen.errors import UsageError

SALT_FROM = "LOADGEN_SALT"


@click.command("anonymize")
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write. [LOG.anonymous.jsonl]",
)
@reading_arguments
def command(log: Path, out: Path | None, **options: Any) -> None:  # noqa: ANN401 - by name
    """Write a log's times, lengths and prefix blocks, and nothing of what was said.

    Blocks are salted hashes. The salt is drawn anew, and forgotten, unless LOADGEN_SALT is set in
    the environment: equal salts give equal ids, so that several logs fit together.
    """
    from loadgen.cli.replaying import log_prompts
    from loadgen.workload.replay.anonymize import LONGEST_SALT
    from loadgen.workload.replay.index import read_log

    given = os.environ.get(SALT_FROM, "")
    salt = given.encode() or secrets.token_bytes(32)
    if len(salt) > LONGEST_SALT:
        raise UsageError(f"{SALT_FROM}: is longer than {LONGEST_SALT} bytes")
    path = out or log.with_name(f"{log.name.split('.')[0]}.anonymous.jsonl")
    if path.exists():
        raise UsageError(f"{path}: exists; name another file with --out")
    read = read_log(log, log_prompts(log, options))
    written = _write(path, read, salt)
    bad = read.found.bad.total()
    left_out = f", {bad:,} bad rows left out" if bad else ""
    click.echo(f"{path}: {written:,} requests, no text{left_out}")


def _write(path: Path, log: Any, salt: bytes) -> int:  # noqa: ANN401 - a Log, imported late
    import orjson

    from loadgen.workload.replay.anonymize import anonymous_rows

    written = 0
    try:
        with path.open("xb") as file:
            for row in anonymous_rows(log, salt=salt):
                file.write(orjson.dumps(row) + b"\n")
                written += 1
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
    return written
