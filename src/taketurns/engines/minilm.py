# SPDX-License-Identifier: Apache-2.0
"""Embeddings in the gateway's own process: all-MiniLM-L6-v2 with int8 weights, in onnxruntime.

A text's vector is the mean of the model's outputs over the text's tokens,
scaled to length 1, as the model's card says (sentence-transformers). A text
gets the same vector, to float32's rounding, whatever else is in its batch.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from taketurns.engines import weights
from taketurns.engines.tokenizer_file import FileTokenizer
from taketurns.engines.workers import Workers
from taketurns.errors import EngineBrokenError, EngineRefusedError, EngineUnavailableError
from taketurns.ports.engine import EmbedAnswer, EmbedCall, EmbedInput

try:
    import numpy as np
    import onnxruntime
    from numpy.typing import NDArray
except ImportError as fault:
    # The gateway runs without the extra; only starting this engine fails.
    _import_fault: ImportError | None = fault
else:
    _import_fault = None

DIMENSIONS = 384
"""Length of the model's own vectors."""

TOKENS_MAX = 256
"""Longest text in tokens, special ones included: what the model's card recommends.

The model has 512 positions, but was trained on texts of 128 tokens and its
authors cut at 256; past that its vectors get worse, not better.
"""

POSITIONS = 512

_PADDED_TOKENS_MAX = 4096
# Attention takes 48 bytes for each padded token and token of its text: with
# this many tokens a run takes at most some 100 MB, and larger runs are no faster.


_RUN_TOKENS = 16
# A run takes as long as about so many tokens beside its own: padding more than
# that to fill one up is no gain.


class MiniLmTokenizer(FileTokenizer):
    """MiniLM's vocabulary.

    The ids begin with [CLS] and end with [SEP]; whoever cuts them must keep both ends.

    Args:
        path: The tokenizer's file, or None for that of the installed package.

    Attributes:
        tokens_max: Longest text that the engine embeds by default, in tokens.

    Raises:
        StartError: A package or the file is missing.
    """

    tokens_max = TOKENS_MAX

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(path or weights.find(weights.MINILM_TOKENIZER))


class MiniLmEngine:
    """Implements :class:`taketurns.ports.engine.EmbeddingEngine` in worker threads.

    A cancelled ``embed`` stops its computation at the model's next operator.

    Args:
        name: Unique in its pool.
        slots: Batches that are computed at once, each on a thread of its own.
        threads: Threads that share the work of one batch.
        waiting_max: Batches that may wait for a slot; more are refused unexecuted.
        tokens_max: Longest text in tokens, 1 to 512.
    """

    def __init__(
        self,
        name: str,
        *,
        slots: int = 1,
        threads: int = 1,
        waiting_max: int = 64,
        tokens_max: int = TOKENS_MAX,
    ) -> None:
        self._name = name
        self._threads = threads
        self._tokens_max = min(tokens_max, POSITIONS)
        self._workers = Workers(name, threads=slots, waiting_max=waiting_max)
        self._model: _Model | None = None
        self._running: set[_Batch] = set()

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        if _import_fault is not None:
            raise weights.runtime_missing(_import_fault)
        path = weights.find(weights.MINILM_MODEL)
        self._model = await asyncio.to_thread(_Model, path, MiniLmTokenizer(), self._threads)

    async def embed(self, call: EmbedCall) -> EmbedAnswer:
        if self._model is None:
            raise EngineUnavailableError(self._name, "engine has not started")
        batch = _Batch(self._name, self._model, call, self._tokens_max)
        future = self._workers.submit(batch.compute)
        self._running.add(batch)
        try:
            return await asyncio.wrap_future(future)
        finally:
            # Without effect unless this call was cancelled.
            batch.stop()
            self._running.discard(batch)

    async def aclose(self) -> None:
        self._model = None
        for batch in self._running:
            batch.stop()
        await self._workers.aclose()


class _Model:
    """The model and its tokenizer; thread-safe. Knows nothing of calls."""

    def __init__(self, path: Path, tokenizer: MiniLmTokenizer, threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Faults are raised; onnxruntime would write them to the terminal too.
        options.log_severity_level = 4
        self._session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        self.tokenizer = tokenizer

    def vectors(self, ids: Sequence[Sequence[int]], options: Any) -> "NDArray[np.float32]":
        """Return one unit vector for each list of ids, in their order."""
        answer = np.empty((len(ids), DIMENSIONS), np.float32)
        for indices in _runs([len(item) for item in ids]):
            answer[indices] = self._run([ids[index] for index in indices], options)
        return answer

    def _run(self, ids: Sequence[Sequence[int]], options: Any) -> "NDArray[np.float32]":
        lengths = np.array([len(item) for item in ids])
        mask = np.arange(lengths.max()) < lengths[:, None]
        padded = np.zeros(mask.shape, np.int64)
        padded[mask] = np.concatenate([np.asarray(item, np.int64) for item in ids])
        inputs = {
            "input_ids": padded,
            "attention_mask": mask.astype(np.int64),
            "token_type_ids": np.zeros_like(padded),
        }
        (hidden,) = self._session.run(["last_hidden_state"], inputs, options)
        return unit(np.einsum("blh,bl->bh", hidden, mask.astype(np.float32)))


def unit(vectors: "NDArray[np.float32]") -> "NDArray[np.float32]":
    """Return the vectors, one a row, scaled to length 1."""
    # The mean and the sum over the tokens have the same direction.
    scaled: NDArray[np.float32] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled.astype(np.float32, copy=False)


def _runs(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the indices in groups of like length, so that little is padded."""
    group: list[int] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[index]
        padding = len(group) * (length - longest)
        if group and (padding > _RUN_TOKENS or (len(group) + 1) * length > _PADDED_TOKENS_MAX):
            yield group
            group = []
        group.append(index)
        longest = length
    yield group


class _Batch:
    """One call on its way through a worker thread."""

    def __init__(self, engine: str, model: _Model, call: EmbedCall, tokens_max: int) -> None:
        self._engine = engine
        self._model = model
        self._call = call
        self._tokens_max = tokens_max
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4
        self._stopped = False

    def stop(self) -> None:
        """Have the computation end soon with an error; from any thread."""
        self._stopped = True
        self._options.terminate = True

    def compute(self) -> EmbedAnswer:
        """Return the answer; in a worker thread."""
        if self._stopped:
            raise EngineUnavailableError(self._engine, "engine was closed")
        dimensions = self._call.dimensions or DIMENSIONS
        if not 1 <= dimensions <= DIMENSIONS:
            raise self._refusal(f"dimensions must be from 1 to {DIMENSIONS}", "dimensions")
        ids = self._ids(self._call.inputs)
        self._check(ids)
        try:
            vectors = self._model.vectors(ids, self._options)
        except Exception as error:  # onnxruntime's errors have no public base
            problem = "engine was closed" if self._stopped else f"the model failed: {error}"
            raise EngineBrokenError(self._engine, problem) from error
        if dimensions < DIMENSIONS:
            vectors = unit(vectors[:, :dimensions])
        rows = vectors.astype("<f4", copy=False)
        return EmbedAnswer(
            vectors=[row.tobytes() for row in rows], tokens=sum(len(item) for item in ids)
        )

    def _ids(self, inputs: Sequence[EmbedInput]) -> list[Sequence[int]]:
        encoded = iter(
            self._model.tokenizer.encode([item for item in inputs if isinstance(item, str)])
        )
        return [next(encoded) if isinstance(item, str) else item for item in inputs]

    def _check(self, ids: Sequence[Sequence[int]]) -> None:
        if not ids:
            raise self._refusal("input must have at least one item", "input")
        size = self._model.tokenizer.vocabulary_size
        for index, item in enumerate(ids):
            if not item:
                problem = "has no token"
            elif len(item) > self._tokens_max:
                problem = f"has {len(item)} tokens; at most {self._tokens_max} are taken"
            elif min(item) < 0 or max(item) >= size:
                problem = f"has a token id outside 0 to {size - 1}"
            else:
                continue
            raise self._refusal(f"input[{index}] {problem}", f"input[{index}]")

    def _refusal(self, message: str, param: str) -> EngineRefusedError:
        error = {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": "invalid_input",
        }
        return EngineRefusedError(self._engine, 400, json.dumps({"error": error}).encode())
