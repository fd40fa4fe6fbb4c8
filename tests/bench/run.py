"""Measure the client against its targets: python tests/bench/run.py [--out DIR] [--quick].

Server and client get a core of their own. Writes bench.json and bench.md, and prints the table.
Nothing here is a test: figures of a busy machine are figures of a busy machine.
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from machine import Skipped, compiled, pinned
from rows import ROWS, Bench, Row, measured_now


def main() -> None:
    options = _options()
    if not options.out.is_dir():
        options.out.mkdir(parents=True)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as name:
        bench = _bench(Path(name), quick=options.quick)
        for group in options.only or ROWS:
            rows += _measured(group, bench)
    conditions = _conditions(quick=options.quick)
    facts = {"conditions": conditions, "rows": [dataclasses.asdict(row) for row in rows]}
    (options.out / "bench.json").write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    text = table(rows, conditions)
    (options.out / "bench.md").write_text(text)
    print(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the client against its targets.")
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="[build/bench]")
    parser.add_argument("--quick", action="store_true", help="once and short, to see that it works")
    parser.add_argument("--only", action="append", choices=list(ROWS), help="one group of rows")
    return parser.parse_args()


def _bench(directory: Path, *, quick: bool) -> Bench:
    try:
        programs = compiled(directory)
    except Skipped as reason:
        print(f"bench: {reason}", file=sys.stderr)
        programs = {}
    return Bench(programs=programs, directory=directory, quick=quick)


def _measured(group: str, bench: Bench) -> list[Row]:
    began = time.monotonic()
    found: list[Row] = []
    try:
        for row in ROWS[group](bench):
            print(f"{row.figure}: {row.measured} ({row.target})", file=sys.stderr, flush=True)
            found.append(row)
    except Skipped as reason:
        found.append(Row(figure=group, target="", measured="skipped", met=None, note=str(reason)))
    except (RuntimeError, OSError) as error:  # one row that breaks must not cost the others
        last = str(error).strip().splitlines()[-1:] or ["no word"]
        print(error, file=sys.stderr)
        found.append(Row(figure=group, target="", measured="failed", met=False, note=last[0]))
    print(f"[{group}: {time.monotonic() - began:.0f} s]", file=sys.stderr, flush=True)
    return found


def _conditions(*, quick: bool) -> dict[str, object]:
    return {
        "measured": measured_now(),
        "quick": quick,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "pinned": pinned(),
        "cpu": _processor(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[1],
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(rows: list[Row], conditions: dict[str, object]) -> str:
    """Write the rows as markdown, with the conditions they hold under."""
    cores = "server and client on a core of their own" if conditions["pinned"] else "one core"
    head = (
        f"Measured {conditions['measured']}, {conditions['cpu']}, {cores},"
        f" Python {conditions['python']}{', quick' if conditions['quick'] else ''}."
    )
    lines = [head, "", "| figure | target | measured | | |", "|---|---|--:|---|---|"]
    words = {True: "met", False: "**not met**", None: ""}
    lines += [
        f"| {row.figure} | {row.target} | {row.measured} | {words[row.met]} | {row.note} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
