# SPDX-License-Identifier: Apache-2.0
"""The ``models`` section of the file: what is served, by which engines, in what order."""

from collections.abc import Sequence
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Tag, ValidationInfo
from pydantic import field_validator as check_field

from taketurns.config.quantities import (
    FAULT,
    Count,
    Duration,
    Flag,
    Name,
    Size,
    Text,
    Whole,
    between,
    fault,
    spans,
)

Endpoint = Literal["chat", "completions", "embeddings", "rerank"]
Kind = Literal["generation", "embeddings"]
Cost = Literal["requests", "tokens"]

COUNT_MAX = 1_000_000_000
"""Largest count that the file may hold: far below 2**53 even when multiplied by a weight."""


class Section(BaseModel):
    """Base of every part of the file: no unknown keys, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _engine_url(value: str) -> str:
    """Check the base URL of an engine; return it without a slash at its end."""
    hint = 'Write scheme, host and port only, such as "http://127.0.0.1:8000".'
    try:
        parts = urlsplit(value)
        port_is_good = parts.port != 0
    except ValueError:
        raise fault("is not a URL", hint) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_is_good:
        raise fault("must be an http or https URL with a host", hint)
    if parts.username is not None or parts.password is not None:
        raise fault("must not hold a user or a password", "Put the engine's key under `key`.")
    if parts.query or parts.fragment or any(c <= " " or c > "~" for c in value):
        raise fault("must be a base URL, without a query, a fragment or blanks", hint)
    path = parts.path.rstrip("/")
    if path.endswith("/v1"):
        raise fault("must not end in /v1", "Leave /v1 out: each call adds its own path.")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _secret(value: str) -> str:
    """Check a key that is sent in a header: printable ASCII without blanks."""
    if value and all("!" <= character <= "~" for character in value):
        return value
    raise fault(
        "must be printable ASCII without blanks, and not empty",
        "Is the environment variable set, and without a line break at its end?",
    )


class UrlEngineConfig(Section):
    """``models.NAME.engines[]`` with ``url``: an OpenAI-compatible inference server."""

    url: Annotated[str, AfterValidator(_engine_url)]
    """Base URL of the server, without ``/v1``: ``http://127.0.0.1:8000``."""

    slots: Annotated[Whole, between(1, 10_000)] = 8
    """Most requests (embeddings: batches) that run on it at once. Default 8."""

    key: Annotated[str, AfterValidator(_secret)] | None = None
    """Sent to the engine as ``Authorization: Bearer``; write ``"${VAR}"``. Default: not sent."""

    model: Text | None = None
    """Name under which the engine knows the model. Default: the name used here."""

    name: Name | None = None
    """Name of the engine in logs and metrics, unique in the model. Default: its host and port."""


class EmbeddedEngineConfig(Section):
    """``models.NAME.engines[]`` with ``embedded``: a small model in the gateway's own process."""

    embedded: Literal["smollm2", "minilm"]
    """Which one: ``smollm2`` for chat and completions, ``minilm`` for embeddings."""

    slots: Annotated[Whole, between(1, 64)] = 4
    """Most requests (embeddings: batches) that run on it at once. Default 4."""

    threads: Annotated[Whole, between(1, 256)] = 1
    """Processor threads it may use. Default 1."""

    name: Name | None = None
    """Name of the engine in logs and metrics, unique in the model. Default: as ``embedded``."""


URL_TAG = "<url>"
EMBEDDED_TAG = "<embedded>"


def _engine_tag(value: object) -> str | None:
    """Tell an engine's class by the one key that it must have."""
    if isinstance(value, UrlEngineConfig):
        return URL_TAG
    if isinstance(value, EmbeddedEngineConfig):
        return EMBEDDED_TAG
    if not isinstance(value, dict) or ("url" in value) == ("embedded" in value):
        return None
    return URL_TAG if "url" in value else EMBEDDED_TAG


EngineConfig = Annotated[
    Annotated[UrlEngineConfig, Tag(URL_TAG)] | Annotated[EmbeddedEngineConfig, Tag(EMBEDDED_TAG)],
    Discriminator(
        _engine_tag,
        custom_error_type=FAULT,
        custom_error_message="must have either `url` or `embedded`",
        custom_error_context={
            "problem": "must be a mapping with either `url` or `embedded`",
            "hint": 'Write {url: "http://HOST:PORT"}, {embedded: smollm2} or {embedded: minilm}.',
        },
    ),
]


class BatchConfig(Section):
    """``models.NAME.batch``: how texts of several requests share one call to an engine."""

    tokens_max: Annotated[Count, between(1, COUNT_MAX)] = 4096
    """Token budget of a batch; a single longer text goes alone. Default 4096."""

    items_max: Annotated[Whole, between(1, 10_000)] = 32
    """Most texts in a batch. Default 32."""

    padded: Flag = False
    """Count a batch as texts x the longest of them, for engines that pad. Default false."""


class EngineLimitsConfig(Section):
    """``models.NAME.engine_limits``: how long an engine may take."""

    connect: Annotated[Duration, spans(0.001, 300)] = 5.0
    """To connect. Default 5s."""

    first_byte: Annotated[Duration, spans(0.001, 86_400)] = 120.0
    """From the end of the request to the head of the answer. Default 120s."""

    between_chunks: Annotated[Duration, spans(0.001, 86_400)] = 60.0
    """Between two pieces of an answer. Default 60s."""

    total: Annotated[Duration, spans(0.001, 86_400)] = 900.0
    """From the first byte sent to the last received. Default 900s."""


KIND_BY_ENDPOINT: dict[str, Kind] = {
    "chat": "generation",
    "completions": "generation",
    "embeddings": "embeddings",
    "rerank": "embeddings",
}


def _kind_of(endpoints: Sequence[str]) -> Kind:
    return KIND_BY_ENDPOINT[endpoints[0]] if endpoints else "generation"


class ModelConfig(Section):
    """``models.NAME``: one model that clients may ask for, and the engines that serve it."""

    endpoints: tuple[Endpoint, ...]
    """What it is asked for: ``chat`` and ``completions``, or ``embeddings`` and ``rerank`` (by the
    cosine of its vectors); never both kinds."""

    engines: tuple[EngineConfig, ...]
    """The engines that serve it, at least one; all of them serve the same model."""

    cost: Cost | None = None
    """What counts: ``requests`` or ``tokens``. Default: tokens for embeddings, else requests."""

    quantum: Annotated[Count, between(1, COUNT_MAX)] | None = None
    """Cost units that a tenant of weight 1 gets per round. Default: about one request, or an
    eighth of a batch. A request is 1,000 units where requests are counted; where tokens are, an
    input token is 1 and an output token 2."""

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

    wait_targets: dict[Name, Annotated[Duration, spans(0.001, 86_400)] | None] = {}
    """For this model, instead of ``tiers.NAME.wait_target``; null: none is refused for that.
    Default: as the tiers say."""

    throttle: Literal["enforce", "shadow", "off"] = "enforce"
    """Whether requests that can't start within their wait target are refused; ``shadow`` only
    counts and reports them. Without a wait target it means nothing. Default enforce."""

    debt_rounds: Annotated[Count, between(1, 1_000_000)] = 64
    """Rounds that a tenant can be set back when requests cost more than foreseen. Default 64."""

    batch: BatchConfig = BatchConfig()
    """How texts are put together. Embeddings only."""

    input_tokens_max: Annotated[Count, between(1, COUNT_MAX)] | None = 512
    """Longest text, in tokens; above it 400. null: no limit. Default 512. Embeddings only."""

    inputs_max: Annotated[Count, between(1, 100_000)] = 2048
    """Most texts in one request; above it 400. Default 2048. Embeddings only."""

    dimensions: Flag = False
    """Whether clients may ask for shorter vectors. Default false. Embeddings only."""

    tenants: tuple[Name, ...] | None = None
    """The tenants that may use it; to others it does not exist. Default: all."""

    owned_by: Text = "taketurns"
    """Shown to clients in the list of models. Default taketurns."""

    engine_limits: EngineLimitsConfig = EngineLimitsConfig()
    """How long an engine may take."""

    @property
    def kind(self) -> Kind:
        """What kind of pool serves the model."""
        return _kind_of(self.endpoints)

    @property
    def cost_or_default(self) -> Cost:
        """What counts, the default filled in."""
        return self.cost or ("tokens" if self.kind == "embeddings" else "requests")

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
        if _kind_of(endpoints) == "generation" and "minilm" in embedded:
            raise fault("has minilm, which serves embeddings only", "Use smollm2 here.")
        if _kind_of(endpoints) == "embeddings" and "smollm2" in embedded:
            raise fault("has smollm2, which serves no embeddings", "Use minilm here.")
        return engines

    @check_field("batch", "input_tokens_max", "inputs_max", "dimensions")
    @classmethod
    def _for_embeddings(cls, value: object, info: ValidationInfo) -> object:
        # Defaults aren't validated, so this sees only what the operator wrote.
        endpoints = info.data.get("endpoints")
        if endpoints is not None and _kind_of(endpoints) == "generation":
            raise fault("means nothing here: it is for embeddings only", "Remove it.")
        return value
