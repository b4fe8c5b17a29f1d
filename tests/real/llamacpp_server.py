# SPDX-License-Identifier: Apache-2.0
"""llama.cpp's own HTTP server in a process of its own; prints its address once it listens.

Run as ``python llamacpp_server.py MODEL SLOTS NAME...``: the names are those
by which clients ask for the model. With ``--embeddings`` it serves those instead.
"""

import os
import signal
import sys
import threading

import xllamacpp

TOKENS_PER_SLOT = 2048

OUTPUT_TOKENS_MAX = 256
"""Answers to requests without a limit of their own are cut here."""


def main(arguments: list[str]) -> None:
    embeddings = "--embeddings" in arguments
    model, slots, *names = [part for part in arguments if part != "--embeddings"]
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = set(names)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_predict = OUTPUT_TOKENS_MAX
    params.n_ctx = TOKENS_PER_SLOT * int(slots)
    params.n_parallel = int(slots)
    params.n_batch = params.n_ubatch = 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 16
    params.endpoint_metrics = True
    params.embedding = embeddings
    params.verbosity = 0
    if embeddings:
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    # The server's own end waits for what still runs.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
