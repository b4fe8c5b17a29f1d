# SPDX-License-Identifier: Apache-2.0
"""Chat and completions in the gateway's own process: SmolLM2-135M-Instruct, in llama.cpp.

Each running call has a worker thread that llama.cpp calls back at every token;
a buffer carries the pieces from there to the event loop. Three things that
were found by trying xllamacpp 2026.10 shape the whole:

* A callback that blocks holds up its own call only, while llama.cpp goes on
  generating and keeps what it made. Blocking would thus save no memory, and a
  slow reader would keep its slot: so the callback never waits. A reader that
  falls ``pieces_max`` behind is cut off.
* Only a streamed call is called back before its end, so every call runs as one.
* llama.cpp reads a prompt in batches, and all calls wait while one is read.
  With batches of 32 tokens that takes a third of a second at most where 512
  take four, and on the portable build that the wheel carries costs nothing.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from taketurns.engines import weights
from taketurns.engines.llama_shape import (
    Json,
    LlamaRequest,
    ShapeError,
    Shaper,
    StreamShaper,
    WholeShaper,
    error_body,
    error_from,
    request_from,
)
from taketurns.engines.workers import Workers
from taketurns.errors import EngineBrokenError, EngineUnavailableError, StartError
from taketurns.ports.engine import GenerationAnswer, GenerationCall
from taketurns.system import new_id

try:
    import xllamacpp
except ImportError as fault:
    # The gateway runs without the extra; only starting this engine fails.
    _import_fault: ImportError | None = fault
else:
    _import_fault = None

MODEL = "smollm2-135m-instruct"
"""Name of the model in answers to calls that name none."""

CONTEXT_TOKENS_MAX = 8192
"""Longest prompt and answer together that the model was trained for."""

_PROMPT_BATCH_TOKENS = 32


class SmolLm2Engine:
    """Implements :class:`taketurns.ports.engine.GenerationEngine` in worker threads.

    Args:
        name: Unique in its pool.
        slots: Calls that run at once.
        threads: Processor threads that all slots share.
        context_tokens: Longest prompt and answer together of one call, up to 8,192.
        waiting_max: Calls that may wait for a slot; more are refused unexecuted.
        pieces_max: Pieces of an answer that may wait for their reader, one a token.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 4,
        threads: int = 1,
        context_tokens: int = 2048,
        waiting_max: int = 64,
        pieces_max: int = 4096,
    ) -> None:
        self._name = name
        self._slots = slots
        self._threads = threads
        self._context_tokens = min(context_tokens, CONTEXT_TOKENS_MAX)
        self._pieces_max = pieces_max
        self._workers = Workers(name, threads=slots, waiting_max=waiting_max)
        self._server: Any = None
        self._runs: set[_Run] = set()

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        if _import_fault is not None:
            raise weights.runtime_missing(_import_fault)
        path = weights.find(weights.SMOLLM2_MODEL)
        # The bindings hold Python's lock while they load: the loop stands still
        # for about half a second, so start before anything is served.
        self._server = await asyncio.to_thread(self._load, path)

    async def open(self, call: GenerationCall) -> GenerationAnswer:
        server = self._server
        if server is None:
            raise EngineUnavailableError(self._name, "engine is not running")
        try:
            request = request_from(call.path, call.body, model=MODEL)
        except ShapeError as error:
            return _WholeAnswer(error.status, error.body)
        shaper = StreamShaper(request) if call.stream else WholeShaper(request)
        run = _Run(self._name, shaper, pieces_max=self._pieces_max, stream=call.stream)
        future = self._workers.submit(partial(run.work, partial(_generate, server, request)))
        self._runs.add(run)
        loop = asyncio.get_running_loop()
        future.add_done_callback(lambda _: _call_soon(loop, partial(self._runs.discard, run)))
        try:
            await run.opened()
        except BaseException:
            run.stop()
            raise
        return run

    async def aclose(self) -> None:
        held, self._server = [self._server], None
        for run in self._runs:
            run.stop("engine was closed")
        await self._workers.aclose()
        # llama.cpp ends with the last reference, which takes up to half a second.
        await asyncio.to_thread(held.clear)

    def _load(self, path: Path) -> Any:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_parallel = self._slots
        parameters.n_ctx = self._context_tokens * self._slots
        parameters.n_batch = parameters.n_ubatch = max(_PROMPT_BATCH_TOKENS, self._slots)
        parameters.cpuparams.n_threads = self._threads
        parameters.cpuparams_batch.n_threads = self._threads
        parameters.ctx_shift = False
        # Prompts of the past would be kept in up to 8 GiB.
        parameters.cache_ram_mib = 0
        parameters.verbosity = 0
        # xllamacpp always listens on a port of 127.0.0.1 as well. Nobody has
        # this key, so nobody gets past the scheduler there.
        parameters.api_keys = [new_id("")]
        parameters.n_threads_http = 1
        parameters.ui = False
        try:
            return xllamacpp.Server(parameters)
        except Exception as error:  # the bindings' errors have no common base
            message = f"engine {self._name} can't load {path.name}: {error}"
            raise StartError(message) from error


OnChunk = Callable[[Json], bool]


def _generate(server: Any, request: LlamaRequest, on_chunk: OnChunk) -> None:
    """Run one generation to its end; blocks. It stops early once ``on_chunk`` returns True."""
    handle = server.handle_chat_completions if request.chat else server.handle_completions
    handle(request.fields, on_chunk)


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    """Call back in the loop's thread; without effect once the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return


class _Run:
    """Implements :class:`GenerationAnswer`: a worker thread writes it, the event loop reads it.

    ``_pieces`` and the attributes below ``_pieces`` are written by the thread
    and read by the loop, ``_stopped`` the other way round; each is one
    reference, which Python writes and reads whole. The thread wakes the reader
    after each write, and the reader looks at them after it has cleared the wake.
    """

    def __init__(self, engine: str, shaper: Shaper, *, pieces_max: int, stream: bool) -> None:
        self._engine = engine
        self._shaper = shaper
        self._pieces_max = pieces_max
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._awake = asyncio.Event()
        self._stopped = False
        self._pieces: deque[bytes] = deque()
        self._refusal: ShapeError | None = None
        self._fault: str | None = None
        self._begun = False
        self._done = False

    @property
    def status(self) -> int:
        return self._refusal.status if self._refusal else 200

    @property
    def headers(self) -> Mapping[str, str]:
        if self._stream and not self._refusal:
            return {"content-type": "text/event-stream; charset=utf-8"}
        return {"content-type": "application/json"}

    async def opened(self) -> None:
        """Wait for the first piece, or for the whole where it isn't a stream."""
        while not (self._pieces or self._done or self._stopped):
            await self._wake()
        if not self._pieces and self._fault:
            raise EngineBrokenError(self._engine, self._fault)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            while True:
                done = self._done or self._stopped
                piece = b"".join(self._pieces.popleft() for _ in range(len(self._pieces)))
                if piece:
                    yield piece
                elif done:
                    break
                else:
                    await self._wake()
        finally:
            self.stop()
        if self._fault:
            raise EngineBrokenError(self._engine, self._fault)

    async def aclose(self) -> None:
        self.stop()
        self._pieces.clear()

    def stop(self, fault: str | None = None) -> None:
        """Have the generation end at its next token; in the loop's thread."""
        if not self._done:
            self._fault = self._fault or fault
        self._stopped = True
        self._awake.set()

    async def _wake(self) -> None:
        self._awake.clear()
        if not (self._pieces or self._done or self._stopped):
            await self._awake.wait()

    def work(self, generate: Callable[[OnChunk], None]) -> None:
        """Generate; in a worker thread."""
        try:
            if not self._stopped:
                generate(self._on_chunk)
            if not (self._stopped or self._refusal or self._fault):
                self._pieces.append(self._shaper.finish())
        except (ValueError, RuntimeError, TypeError, OverflowError) as error:
            # So the bindings say what is wrong with a request's messages or schema.
            self._refuse(ShapeError(400, error_body(400, str(error), code="invalid_request")))
        except Exception as error:  # noqa: BLE001 - the reader has to hear of it
            self._fault = f"llama.cpp failed: {error!r}"
        finally:
            self._done = True
            _call_soon(self._loop, self._awake.set)

    def _on_chunk(self, chunk: Json) -> bool:
        if self._stopped:
            return True
        try:
            self._take(chunk)
        except Exception as error:  # noqa: BLE001 - the bindings would swallow it
            self._fault = f"engine sent a chunk that can't be read: {error!r}"
        return bool(self._refusal or self._fault)

    def _take(self, chunk: Json) -> None:
        error = error_from(chunk)
        if error is not None:
            self._refuse(error)
            return
        piece = self._shaper.feed(chunk)
        if not piece:
            return
        if len(self._pieces) >= self._pieces_max:
            self._fault = f"reader fell {self._pieces_max} pieces behind and was cut off"
            return
        self._begun = True
        self._pieces.append(piece)
        _call_soon(self._loop, self._awake.set)

    def _refuse(self, error: ShapeError) -> None:
        if self._begun:
            # The head has gone out; the stream can only break off.
            self._fault = error.body.decode()
            return
        self._refusal = error
        self._pieces.append(error.body)


class _WholeAnswer:
    """Implements :class:`GenerationAnswer`: an answer that is here already."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.headers = {"content-type": "application/json"}
        self._body = body

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        yield self._body

    async def aclose(self) -> None:
        return
