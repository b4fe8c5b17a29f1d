# SPDX-License-Identifier: Apache-2.0
"""The ``models`` section of the file: what is served, by which engines, in what order."""

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo
from pydantic import field_validator as check_field

from taketurns.config.engines import (
    EmbeddedEngineConfig,
    EngineConfig,
    EngineLimitsConfig,
    HealthConfig,
)
from taketurns.config.quantities import (
    Count,
    Duration,
    Flag,
    Name,
    Percent,
    Size,
    Text,
    Whole,
    between,
    fault,
    percent_between,
    spans,
)
from taketurns.config.section import Section
from taketurns.core.cost import HORIZON_DEFAULT

Endpoint = Literal["chat", "completions", "responses", "messages", "embeddings", "rerank"]
Kind = Literal["generation", "embeddings"]
Cost = Literal["requests", "tokens", "ema"]
Rerank = Literal["cosine", "pairs", "query"]

COUNT_MAX = 1_000_000_000
"""Largest count that the file may hold: far below 2**53 even when multiplied by a weight."""


class BatchConfig(Section):
    """``models.NAME.batch``: how texts of several requests share one call to an engine."""

    tokens_max: Annotated[Count, between(1, COUNT_MAX)] = 4096
    """Token budget of a batch; a single longer text goes alone. Default 4096."""

    items_max: Annotated[Whole, between(1, 10_000)] = 32
    """Most texts in a batch. Default 32."""

    padded: Flag = False
    """Count a batch as texts x the longest of them, for engines that pad. Default false."""

    linger: Annotated[Duration, spans(0, 1)] = 0.0
    """How long the first text that comes to an empty queue waits for others to share its batch
    while an engine is idle. Full batches don't wait. Default 0s: not at all."""


class TokenCostConfig(Section):
    """``models.NAME.token_cost``: what tokens cost, where tokens count."""

    input: Annotated[Count, between(1, 1_000)] = 1
    """Cost units of an input token. Default 1."""

    output: Annotated[Count, between(1, 1_000)] = 2
    """Cost units of an output token. Default 2: it takes a step of decoding of its own."""

    horizon: Annotated[Count, between(0, COUNT_MAX)] = HORIZON_DEFAULT
    """Output tokens that a running request is charged ahead of what it has produced, with
    ``cost: ema``; 0: none. Default 24."""


KIND_BY_ENDPOINT: dict[str, Kind] = {
    "chat": "generation",
    "completions": "generation",
    "responses": "generation",
    "messages": "generation",
    "embeddings": "embeddings",
    "rerank": "embeddings",
}


def _kind_of(endpoints: Sequence[str]) -> Kind:
    return KIND_BY_ENDPOINT[endpoints[0]] if endpoints else "generation"


class ModelConfig(Section):
    """``models.NAME``: one model that clients may ask for, and the engines that serve it."""

    endpoints: tuple[Endpoint, ...]
    """What it is asked for: of ``chat``, ``completions``, ``responses`` and ``messages`` (which is
    Anthropic's) those that its engines have, or ``embeddings`` and ``rerank``; never both kinds."""

    engines: tuple[EngineConfig, ...]
    """The engines that serve it, at least one; all of them serve the same model."""

    cost: Cost | None = None
    """What counts: ``requests``; ``tokens``, as many as are expected; or ``ema`` (chat and
    completions): tokens as they are produced. Default: tokens for embeddings, else requests."""

    token_cost: TokenCostConfig = TokenCostConfig()
    """What a token costs. Not for requests."""

    choices_max: Annotated[Count, between(1, 1_024)] = 128
    """Most answers that one request may ask for: ``n`` or ``best_of``, times its prompts; above it
    400. However many they are, a request takes one slot. Default 128. Chat and completions only."""

    output_tokens_max: Annotated[Count, between(1, COUNT_MAX)] | None = None
    """Most tokens that a request may ask for in each answer; above it 400. Default null: no limit
    but the engine's. Chat and completions only."""

    fields_refused: tuple[Text, ...] = (
        "chat_template",
        "custom_logit_processor",
        "ebnf",
        "grammar",
        "guided_*",
        "json_schema",
        "logits_processors",
        "regex",
        "structured_outputs",
    )
    """Fields with which a request is answered 400, a ``*`` at the end standing for any rest.
    Default: those of vLLM, SGLang, llama.cpp and TGI that let a client run a program or compile a
    grammar of its own at the engine, beyond OpenAI's ``response_format``: chat_template,
    custom_logit_processor, ebnf, grammar, guided_*, json_schema, logits_processors, regex,
    structured_outputs. Chat and completions only."""

    quantum: Annotated[Count, between(1, COUNT_MAX)] | None = None
    """Cost units that a tenant of weight 1 gets per round. Default: for the tenant with the largest
    weight one request where requests are counted, 100 where tokens are, or a 64th of a batch. A
    request is 1,000 units where requests are counted; where tokens are, an input token is 1 and an
    output token 2."""

    scheduler: Literal["round_robin", "shared_queue"] = "round_robin"
    """``shared_queue`` puts all tenants in one queue, for comparison. Default round_robin."""

    tenant_queue_max: Annotated[Count, between(1, COUNT_MAX)] = 10_000
    """Most requests (embeddings: texts) of one tenant that wait; above it 429. Default 10k."""

    queue_max: Annotated[Count, between(1, COUNT_MAX)] = 100_000
    """Most requests (embeddings: texts) that wait for this model; above it 503. Default 100k."""

    tenant_queue_bytes_max: Annotated[Size, between(1024, 1024**4)] = 64 * 1024**2
    """Most bytes of bodies of one tenant's requests that wait; above it 429. Default 64M."""

    queue_bytes_max: Annotated[Size, between(1024, 1024**4)] = 256 * 1024**2
    """Most bytes of bodies of requests that wait for this model; above it 503. Default 256M."""

    wait_targets: dict[Name, Annotated[Duration, spans(0.001, 86_400)] | None] = Field(
        default_factory=dict
    )
    """For this model, instead of ``tiers.NAME.wait_target``; null: none is refused for that.
    Default: as the tiers say."""

    throttle: Literal["enforce", "shadow", "off"] = "enforce"
    """Whether requests that can't start within their wait target are refused; ``shadow`` only
    counts and reports them. Without a wait target it means nothing. Default enforce."""

    debt_rounds: Annotated[Count, between(1, 1_000_000)] | None = None
    """Rounds that a tenant can be set back when requests cost more than foreseen. Default 64,
    where tokens are counted at least as many as 100,000 units are made of, and for embeddings at
    least as many as eight batches are made of."""

    batch: BatchConfig = BatchConfig()
    """How texts are put together. Embeddings only."""

    input_tokens_max: Annotated[Count, between(1, COUNT_MAX)] | None = 512
    """Longest text, or query and document together, in tokens; above it 400. null: no limit.
    Default 512. Embeddings only."""

    inputs_max: Annotated[Count, between(1, 100_000)] = 2048
    """Most texts in one request; above it 400. Default 2048. Embeddings only."""

    request_tokens_max: Annotated[Count, between(1, COUNT_MAX)] | None = 300_000
    """Most tokens of all texts of one request to ``/v1/embeddings``; above it 400. null: no limit.
    Default 300000, as OpenAI has it. Embeddings only."""

    dimensions: Flag = False
    """Whether clients may ask for shorter vectors. Default false. Embeddings only."""

    rerank: Rerank | None = None
    """How its engines are asked for relevance: ``cosine``: for vectors, which are compared here;
    ``pairs``: to score pairs of query and document, of several requests in one call; ``query``: to
    rank the documents of one query a call. Default: cosine where it serves embeddings too, else
    pairs where all engines are of kind vllm or tei, else query. Rerank only."""

    tokenizer: Text | None = None
    """Path of the model's ``tokenizer.json``: tokens are counted with it, and texts that are too
    long can be cut. Needs the package's extra ``embedded``. Default: tokens are estimated from
    the size of a text; an embedded model brings its own. Embeddings only."""

    input_types: dict[Name, str] = Field(default_factory=dict)
    """What is put before a text for each input type that clients tell, such as
    ``{search_query: "query: "}``. Default: nothing. Embeddings only."""

    tenants: tuple[Name, ...] | None = None
    """The tenants that may use it; to others it does not exist. Default: all."""

    owned_by: Text = "taketurns"
    """Shown to clients in the list of models. Default taketurns."""

    engine_limits: EngineLimitsConfig = EngineLimitsConfig()
    """How long an engine may take."""

    headroom: Annotated[Percent, percent_between(0, 90)] = 0
    """Share of the slots kept for tenants that have nothing running, rounded up; at least one
    slot is left for the others. Default 0%. Chat and completions only."""

    sticky: Literal["off", "tenant", "prefix"] = "off"
    """Where a request goes, of the engines with a free slot: ``off``: to the least loaded;
    ``tenant``: to the same one for each tenant; ``prefix``: to the same one for each tenant and
    beginning of the prompt, as its cache may know it. Default off. Chat and completions only."""

    health: HealthConfig = HealthConfig()
    """How it is found out that an engine fails, and that it's back."""

    @property
    def kind(self) -> Kind:
        """What kind of pool serves the model."""
        return _kind_of(self.endpoints)

    @property
    def cost_or_default(self) -> Cost:
        """What counts, the default filled in."""
        return self.cost or ("tokens" if self.kind == "embeddings" else "requests")

    @property
    def rerank_or_default(self) -> Rerank:
        """How engines are asked for relevance, the default filled in."""
        if self.rerank is not None:
            return self.rerank
        if "embeddings" in self.endpoints:
            return "cosine"
        if any(isinstance(engine, EmbeddedEngineConfig) for engine in self.engines):
            return "cosine"
        kinds = {getattr(engine, "kind", "") for engine in self.engines}
        return "pairs" if kinds <= {"vllm", "tei"} else "query"

    @check_field("cost")
    @classmethod
    def _cost_fits(cls, cost: Cost | None, info: ValidationInfo) -> Cost | None:
        endpoints = info.data.get("endpoints")
        if cost == "ema" and endpoints is not None and _kind_of(endpoints) == "embeddings":
            raise fault("is ema, and embeddings produce no tokens", "Write tokens.")
        return cost

    @check_field("endpoints")
    @classmethod
    def _one_kind(cls, endpoints: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
        if not endpoints:
            hint = "Write [chat], [chat, completions], [embeddings] or [embeddings, rerank]."
            raise fault("must not be empty", hint)
        if len(set(endpoints)) < len(endpoints):
            raise fault("names an endpoint twice", "Name each endpoint once.")
        if len({KIND_BY_ENDPOINT[endpoint] for endpoint in endpoints}) > 1:
            raise fault(
                "mixes embeddings or rerank with chat or completions",
                "Make two models of it: they are scheduled in separate pools.",
            )
        return endpoints

    @check_field("engines")
    @classmethod
    def _engines_fit(
        cls, engines: tuple[EngineConfig, ...], info: ValidationInfo
    ) -> tuple[EngineConfig, ...]:
        if not engines:
            raise fault("must not be empty", 'Write at least one: {url: "http://HOST:PORT"}.')
        names = [engine.name for engine in engines if engine.name is not None]
        if len(set(names)) < len(names):
            raise fault("gives two engines the same name", "Name each engine differently.")
        embedded = {e.embedded for e in engines if isinstance(e, EmbeddedEngineConfig)}
        if (endpoints := info.data.get("endpoints")) is None:
            return engines
        passing = {"responses", "messages"}.intersection(endpoints)
        if passing and "smollm2" in embedded:
            raise fault(f"has smollm2, which has no {min(passing)}", "Use another engine here.")
        if _kind_of(endpoints) == "generation" and "minilm" in embedded:
            raise fault("has minilm, which serves embeddings only", "Use smollm2 here.")
        if _kind_of(endpoints) == "embeddings" and "smollm2" in embedded:
            raise fault("has smollm2, which serves no embeddings", "Use minilm here.")
        return engines

    @check_field("headroom", "sticky", "choices_max", "output_tokens_max", "fields_refused")
    @classmethod
    def _for_generation(cls, value: object, info: ValidationInfo) -> object:
        endpoints = info.data.get("endpoints")
        if endpoints is not None and _kind_of(endpoints) == "embeddings":
            raise fault("means nothing here: it is for chat and completions only", "Remove it.")
        if info.field_name == "headroom" and info.data.get("scheduler") == "shared_queue":
            raise fault("needs the round robin, and this model has a shared queue", "Remove it.")
        return value

    @check_field("rerank", "tokenizer")
    @classmethod
    def _not_embedded(cls, value: str | None, info: ValidationInfo) -> str | None:
        engines = info.data.get("engines") or ()
        embedded = any(isinstance(engine, EmbeddedEngineConfig) for engine in engines)
        if embedded and info.field_name == "tokenizer":
            raise fault("means nothing here: the embedded model has its own", "Remove it.")
        if embedded and value in {"pairs", "query"}:
            raise fault("must be cosine: the embedded model gives vectors only", "Remove it.")
        kinds = {getattr(engine, "kind", "") for engine in engines}
        if value == "pairs" and not kinds.isdisjoint({"llamacpp", "infinity"}):
            raise fault("can't be pairs: llamacpp and infinity don't score pairs", "Write query.")
        return value

    @check_field(
        "batch",
        "input_tokens_max",
        "inputs_max",
        "request_tokens_max",
        "dimensions",
        "rerank",
        "tokenizer",
        "input_types",
    )
    @classmethod
    def _for_embeddings(cls, value: object, info: ValidationInfo) -> object:
        # Defaults aren't validated, so this sees only what the operator wrote.
        endpoints = info.data.get("endpoints")
        if endpoints is not None and _kind_of(endpoints) == "generation":
            raise fault("means nothing here: it is for embeddings only", "Remove it.")
        return value
