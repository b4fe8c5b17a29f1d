# SPDX-License-Identifier: Apache-2.0
"""``models.NAME.engines`` and what belongs to it: servers, embedded models, limits, health."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Tag,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic import field_validator as check_field

from taketurns.config.quantities import (
    FAULT,
    Count,
    Duration,
    Flag,
    Name,
    Text,
    Whole,
    between,
    fault,
    spans,
    whole,
)
from taketurns.config.section import Section

ServerKind = Literal["openai", "vllm", "sglang", "llamacpp", "tgi", "tei", "infinity"]

AUTO: Literal["auto"] = "auto"


def slots(value: object) -> int | Literal["auto"]:
    """Read a number of slots: ``8`` or ``auto``."""
    if value == AUTO:
        return AUTO
    try:
        return whole(value)
    except ValueError:
        raise fault("must be a whole number or auto", "Write digits only, or auto.") from None


def between_or_auto(least: int, most: int) -> AfterValidator:
    """Bound a number of slots, both ends included."""
    limits = f"{least:,} to {most:,}"

    def check(value: int | Literal["auto"]) -> int | Literal["auto"]:
        if value == AUTO or least <= value <= most:
            return value
        raise fault(f"must be auto or {limits}")

    return AfterValidator(check)


Slots = Annotated[
    int | Literal["auto"],
    BeforeValidator(slots),
    WithJsonSchema({"type": ["integer", "string"], "pattern": r"^auto$|^\$\{.+\}$"}),
]


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

    kind: ServerKind = "openai"
    """What the server is: it tells how its health and its queue can be seen, and which fields it
    takes beside OpenAI's. Default openai: one that nothing more is known of."""

    slots: Annotated[Slots, between_or_auto(0, 10_000)] = 8
    """Most requests (embeddings: batches) that run on it at once. ``auto``: found while it runs,
    the fewest that keep it busy; 0: nothing more is sent to it. Default 8."""

    slots_min: Annotated[Whole, between(1, 10_000)] = 1
    """Fewest slots that ``auto`` gives it. Default 1."""

    slots_max: Annotated[Whole, between(1, 10_000)] = 256
    """Most slots that ``auto`` gives it. Default 256."""

    priority: Flag = False
    """Tell it each request's priority, for its own queue: vllm started with
    ``--scheduling-policy priority``, sglang with ``--enable-priority-scheduling
    --schedule-low-priority-values-first``. Without that they refuse it. Default false."""

    cache_per_tenant: Flag | None = None
    """Keep what it caches of prompts apart by tenant, so that none can tell what others have asked:
    by a ``cache_salt`` with each request, or for llamacpp, which knows none, by ``cache_prompt:
    false``: it uses no prompt of the past. (Where llamacpp serves messages, which don't pass that
    on, start it with ``--no-cache-prompt``.) Default: true for vllm, sglang and llamacpp, else
    false."""

    ask_usage: Flag = True
    """Ask it for the usage of each stream; clients that didn't ask for it don't see it. False for
    servers that refuse ``stream_options``. Default true."""

    key: Annotated[str, AfterValidator(_secret)] | None = None
    """Sent to the engine as ``Authorization: Bearer``; write ``"${VAR}"``. Default: not sent."""

    model: Text | None = None
    """Name under which the engine knows the model. Default: the name used here."""

    name: Name | None = None
    """Name of the engine in logs and metrics, unique in the model. Default: its host and port."""

    @property
    def keeps_apart(self) -> bool:
        """Whether its cache of prompts is kept apart by tenant, the default filled in."""
        if self.cache_per_tenant is None:
            return self.kind in {"vllm", "sglang", "llamacpp"}
        return self.cache_per_tenant

    @check_field("slots_max")
    @classmethod
    def _bounds_in_order(cls, slots_max: int, info: ValidationInfo) -> int:
        if slots_max < info.data.get("slots_min", 1):
            raise fault("must be at least slots_min", "Raise it, or lower slots_min.")
        return slots_max

    @check_field("priority")
    @classmethod
    def _kind_takes_priority(cls, priority: bool, info: ValidationInfo) -> bool:  # noqa: FBT001
        if priority and info.data.get("kind") not in {None, "vllm", "sglang"}:
            raise fault("is for engines of kind vllm or sglang", "Set kind, or remove it.")
        return priority


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


class HealthConfig(Section):
    """``models.NAME.health``: how it is found out that an engine fails, and that it's back."""

    path: Text | None = None
    """Asked with GET; an answer under 400 means that it's well. Default: what the engine's kind
    has, ``/health``; engines of kind openai are not asked."""

    interval: Annotated[Duration, spans(0, 3600)] = 5.0
    """How often it's asked; 0s: never. Default 5s."""

    timeout: Annotated[Duration, spans(0.001, 300)] = 2.0
    """Longest that it may take to answer that. Default 2s."""

    unhealthy_after: Annotated[Count, between(1, 1_000)] = 3
    """Checks in a row that must fail before it gets nothing more. Default 3."""

    healthy_after: Annotated[Count, between(1, 1_000)] = 2
    """Checks in a row that must succeed before it's used again. Default 2."""

    broken_after: Annotated[Count, between(1, 1_000)] = 5
    """Requests in a row that must fail by its fault (an answer over 499 other than 503, a timeout,
    a broken connection) before it gets nothing for a while; one that can't be connected to gets
    nothing at once. Default 5."""

    slow_start: Annotated[Duration, spans(0, 3600)] = 10.0
    """How long one that comes back takes to get all its slots again. Default 10s."""

    no_engine_wait: Annotated[Duration, spans(0, 3600)] = 2.0
    """How long requests wait while no engine of the model can be used; then 503. Default 2s."""
