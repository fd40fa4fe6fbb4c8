"""Run llama.cpp's own HTTP server, out of the prebuilt ``xllamacpp`` wheel, until SIGTERM.

Run by the interpreter of the engine's own environment. The context is shared by the slots: each
has ``--context / --parallel`` tokens.
"""

import argparse
import signal
import threading
from types import FrameType

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    asked = parse()
    over = threading.Event()

    def stop(_number: int, _frame: FrameType | None) -> None:
        over.set()

    signal.signal(signal.SIGTERM, stop)
    server = xllamacpp.Server(parameters(asked))
    over.wait()
    del server  # its destructor ends the server's threads


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Serve a GGUF model on loopback.")
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--http-threads", type=int, default=-1, help="-1: the server's own choice")
    return parser.parse_args()


def parameters(asked: argparse.Namespace) -> "xllamacpp.CommonParams":
    made = xllamacpp.CommonParams()
    made.model.path = asked.model
    made.model_alias = type(made.model_alias)([asked.alias])  # a set or a list, by version
    made.hostnames = ["127.0.0.1"]
    made.port = asked.port
    made.n_ctx = asked.context
    made.n_parallel = asked.parallel
    made.n_threads_http = asked.http_threads
    made.cpuparams.n_threads = made.cpuparams_batch.n_threads = 1
    made.use_jinja = True
    made.endpoint_metrics = made.endpoint_slots = True
    made.ui = False
    return made


if __name__ == "__main__":
    main()
