# SPDX-License-Identifier: Apache-2.0
"""What requests are expected to take, what they take while they run, and what they took.

A running answer's tokens are counted as they pass: an event is a token, about.
Where the engine reports its usage, that is the truth.
"""

import sys
from typing import NamedTuple

from taketurns.aio import Turn
from taketurns.core.cost import CostModel
from taketurns.core.lengths import OutputLengths
from taketurns.core.rates import Rate
from taketurns.dialects.answer_forms import AnswerForm, CompletionsForm
from taketurns.dialects.openai_generation import GenerationRequest
from taketurns.dialects.openai_stream import Usage
from taketurns.gateway.availability import EngineCall
from taketurns.telemetry.records import RequestRecord
from taketurns.wire.sse import payloads

NEVER = sys.maxsize

STEPS_PER_QUANTUM = 8
STEP_TOKENS_MIN = 8
"""A running request's charge follows its tokens in steps of this part of a quantum, but of so many
tokens at least: a third of what is charged ahead by default, which so stays in front."""


def stride(quantum: int, output_weight: int) -> int:
    """Return the output tokens from one look at a running charge to the next."""
    # An output token is the unit that a running request's charge grows by.
    return max(STEP_TOKENS_MIN, quantum // (STEPS_PER_QUANTUM * output_weight))


EVENTS_WITHOUT_TOKEN = 3
"""Events of a chat that carry no token: the first, the last and ``[DONE]``."""


class Foreseen(NamedTuple):
    """What a request will take, at a guess.

    Attributes:
        input_tokens: Tokens of its prompt, at least 1.
        output_tokens: Tokens of its answer, over all choices, at least 1.
        output_tokens_max: Most that its answer can have; as expected where it sets no limit.
    """

    input_tokens: int
    output_tokens: int
    output_tokens_max: int


class Estimates:
    """What a model's requests are like, learned from those that ended. Bounded by its tenants."""

    def __init__(self) -> None:
        self._lengths = OutputLengths()
        self._bytes = Rate(4, least=1, most=64)
        self._us = Rate(20_000, least=50, most=5_000_000)

    def foresee(self, request: GenerationRequest, tenant: str) -> Foreseen:
        """Return what a tenant's request will take."""
        text_tokens = self._bytes.tokens(request.prompt_bytes)
        expected = self._lengths.expected(tenant) * request.choices
        limit = request.output_tokens_max
        return Foreseen(
            max(1, request.prompt_tokens + text_tokens),
            expected if limit is None else min(expected, limit),
            expected if limit is None else limit,
        )

    def produced(self, us: int) -> int:
        """Return how many output tokens a request has by now that runs for so long."""
        return self._us.tokens(us)

    def learn(
        self,
        request: GenerationRequest,
        tenant: str,
        output_tokens: int,
        *,
        usage: Usage | None,
        us: int,
    ) -> None:
        """Learn from an answer that came to its end after so long."""
        self._lengths.seen(tenant, output_tokens // request.choices)
        if usage is not None:
            self._bytes.seen(request.prompt_bytes, usage.prompt_tokens - request.prompt_tokens)
            self._us.seen(us, usage.completion_tokens)


class Meter:
    """Counts one answer, and lets what stands charged for it follow.

    Args:
        turn: Its turn.
        record: What is logged of it.
        cost: What its tokens cost.
        foreseen: What it was expected to take.
        stride: Tokens from one look at the charge to the next, at least 1.
        seen: The call of the engine, told what a stream brings.
        form: Reads the answer; None: completions.

    Attributes:
        produced: Output tokens so far.
        usage: What the engine said of it, or None.
        form: Reads the answer.
    """

    __slots__ = (
        "_cost",
        "_due",
        "_foreseen",
        "_record",
        "_seen",
        "_stride",
        "_turn",
        "form",
        "produced",
        "usage",
    )

    def __init__(
        self,
        turn: Turn,
        record: RequestRecord,
        cost: CostModel,
        foreseen: Foreseen,
        stride: int,
        seen: EngineCall,
        form: AnswerForm | None = None,
    ) -> None:
        self.produced = 0
        self.usage: Usage | None = None
        self._turn = turn
        self._record = record
        self._cost = cost
        self._foreseen = foreseen
        self._stride = stride
        self._seen = seen
        self.form = form or CompletionsForm()
        self._due = stride

    def read(self, events: bytes) -> None:
        """Count whole events of a stream."""
        if events.startswith(b"data: {"):
            tokens = events.count(b"\n\n") or len(payloads(events))
        else:
            tokens = len(payloads(events))
        self.produced += tokens
        self._seen.streamed(tokens)
        # No form of answer has its counts elsewhere.
        if b"usage" in events:
            self.usage = self.form.usage_in(events) or self.usage
        if self.produced >= self._due:
            self._top_up()

    def reached(self, produced: int) -> None:
        """Take it that an answer has at least so many tokens by now."""
        self.produced = max(self.produced, min(produced, self._foreseen.output_tokens_max))
        if self.produced >= self._due:
            self._top_up()

    def said(self, body: bytes) -> None:
        """Take a whole answer."""
        self.usage = usage = self.form.usage(body)
        if usage is not None:
            self._seen.produced(usage.completion_tokens)

    def ended_after(self, produced: int) -> None:
        """Take it that an answer that has ended had at least so many tokens."""
        self.produced = max(self.produced, min(produced, self._foreseen.output_tokens_max))

    def streamed(self) -> None:
        """Take the end of a stream, whole or not: what was counted were events."""
        if self.usage is None:
            self.produced = max(0, self.produced - EVENTS_WITHOUT_TOKEN)

    def settle(self) -> None:
        """Say what was used, just before the turn ends: by the engine's word, or our own count."""
        record, usage = self._record, self.usage
        cached = 0
        if usage is None:
            record.output_tokens = self.produced
        else:
            cached = usage.cached_tokens
            record.input_tokens = usage.prompt_tokens
            record.output_tokens = self.produced = usage.completion_tokens
        cost = self._cost.used(record.input_tokens - cached, record.output_tokens)
        if cost is not None:
            self._turn.costs(cost)

    def _top_up(self) -> None:
        foreseen = self._foreseen
        standing = self._cost.running(foreseen.input_tokens, self.produced, foreseen.output_tokens)
        if standing is None:
            # What was charged at dispatch stands.
            self._due = NEVER
            return
        self._turn.settle(standing)
        self._due = self.produced + self._stride
