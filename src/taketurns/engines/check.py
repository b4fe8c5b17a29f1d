# SPDX-License-Identifier: Apache-2.0
"""Looks whether a server is there and is what the configuration says: before clients find out."""

from dataclasses import dataclass

import msgspec

from taketurns.engines.client import HttpClient, parse_base_url
from taketurns.engines.kinds import KINDS, METRICS_PATH
from taketurns.engines.probe import read_gauge
from taketurns.errors import EngineError, EngineUnavailableError
from taketurns.ports.engine import EngineLimits

MODELS_PATH = "/v1/models"

PAGE_BYTES_MAX = 4 * 1024 * 1024
"""Most that is read of an answer."""

NAMES_SHOWN = 5
"""Most of a server's names of models that are told."""

TAKES_ANY_NAME = frozenset({"llamacpp"})
"""Kinds that serve their one model under any name."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen of an engine.

    Attributes:
        problem: What is wrong; empty: nothing.
        hint: What to do about that, or what couldn't be seen; maybe empty.
    """

    problem: str = ""
    hint: str = ""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One server, as it is configured.

    Attributes:
        url: Where it is.
        key: Bearer key, or empty.
        kind: A word of ``KINDS``.
        model: Its own name of the model.
        health: The path that tells whether it's well; None: it has none.
        gauges: Its queue is to be read.
        timeout_s: Longest that one question may take.
    """

    url: str
    key: str
    kind: str
    model: str
    health: str | None
    gauges: bool
    timeout_s: float

    async def run(self) -> Finding:
        """Ask it, and return what is found first."""
        limits = EngineLimits(self.timeout_s, self.timeout_s, self.timeout_s, self.timeout_s)
        client = HttpClient(parse_base_url(self.url), engine=self.url, limits=limits)
        try:
            return (
                await self._health(client)
                or await self._queue(client)
                or await self._models(client)
                or Finding()
            )
        except EngineUnavailableError:
            return Finding(f"can't be reached at {self.url}", "Does it run, and is `url` right?")
        except EngineError as error:
            return Finding(f"doesn't answer: {error}", "Is it an HTTP server of this kind?")
        finally:
            await client.aclose()

    async def _get(self, client: HttpClient, path: str) -> tuple[int, bytes]:
        headers = [("User-Agent", "taketurns")]
        if self.key:
            headers.append(("Authorization", f"Bearer {self.key}"))
        answer = await client.open(client.head("GET", path, headers))
        try:
            return answer.status, await answer.read(PAGE_BYTES_MAX) or b""
        finally:
            await answer.aclose()

    async def _health(self, client: HttpClient) -> Finding | None:
        if self.health is None:
            return None
        status, _ = await self._get(client, self.health)
        if status < 400:
            return None
        return Finding(
            f"answers {status} to GET {self.health}",
            "Is it ready, and are `kind` and `health` right?",
        )

    async def _queue(self, client: HttpClient) -> Finding | None:
        gauges = KINDS[self.kind].waiting
        if not (self.gauges and gauges):
            return None
        status, page = await self._get(client, METRICS_PATH)
        if status == 200 and read_gauge(page, gauges) is not None:
            return None
        hint = "Start it with --metrics." if self.kind == "llamacpp" else "Is `kind` right?"
        return Finding(f"shows no {gauges[0]} at {METRICS_PATH}, which `slots: auto` reads", hint)

    async def _models(self, client: HttpClient) -> Finding | None:
        status, page = await self._get(client, MODELS_PATH)
        if status in {401, 403}:
            return Finding(f"refuses the key ({status})", "Set `key`, or another one.")
        try:
            names = [model.id for model in msgspec.json.decode(page, type=_Models).data]
        except msgspec.MsgspecError:
            return Finding("", f"it has no {MODELS_PATH}: its models can't be seen")
        if self.model in names or self.kind in TAKES_ANY_NAME:
            return None
        listed = ", ".join(names[:NAMES_SHOWN]) or "none"
        return Finding(f"doesn't know the model {self.model}", f"Set `model`. It has: {listed}.")
