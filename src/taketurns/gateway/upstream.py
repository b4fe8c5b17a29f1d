# SPDX-License-Identifier: Apache-2.0
"""What goes to an engine of a client's request, and what the gateway says in it."""

import hashlib
import hmac
from dataclasses import dataclass

from taketurns.config.served import ModelConfig
from taketurns.dialects.openai import invalid
from taketurns.dialects.openai_generation import GenerationRequest
from taketurns.errors import RequestError
from taketurns.gateway.pools import Caller

PASSED_MAX = 1_000
"""Most sets of fields of which it's remembered that none is refused."""

PASSED_FIELDS_MAX = 64
"""Largest of them."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """How one engine is asked.

    Attributes:
        model: Its own name of the model.
        asks_usage: It's asked for the usage of each stream.
        priority: It's told each request's priority, 0 first.
        salts: Caches of prompts are kept apart by tenant; None: it knows no such thing.
        keeps_prompts: It may answer from what it has cached of a prompt, whoever sent it.
    """

    model: str
    asks_usage: bool = True
    priority: bool = False
    salts: "Salts | None" = None
    keeps_prompts: bool = True

    def body(self, request: GenerationRequest, caller: Caller) -> bytes:
        """Return the body with which a caller's request is sent to it."""
        said = {}
        if self.priority:
            said["priority"] = b"%d" % caller.priority
        if self.salts is not None:
            said["cache_salt"] = b'"%b"' % self.salts.of(caller.tenant)
        if not self.keeps_prompts:
            said["cache_prompt"] = b"false"
        return request.body_for(self.model, ask_usage=self.asks_usage, said=said)


class Salts:
    """A salt for each tenant that no other can guess, or know that it's the same.

    Two tenants never share what an engine has cached of a prompt, so that none
    can tell by the time to the first token what another has asked. Bounded by
    the number of tenants.

    Args:
        secret: What the salts are made from; the same on all gateways of a fleet.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._by_tenant: dict[str, bytes] = {}

    def of(self, tenant: str) -> bytes:
        """Return a tenant's salt: 64 hexadecimal digits."""
        salt = self._by_tenant.get(tenant)
        if salt is None:
            digest = hmac.new(self._secret, tenant.encode(), hashlib.sha256).hexdigest()
            salt = self._by_tenant[tenant] = digest.encode("ascii")
        return salt


class Bounds:
    """What a request may ask of a model's engines.

    Args:
        model: What the operator wrote of the model.
    """

    def __init__(self, model: ModelConfig) -> None:
        refused = model.fields_refused
        self._refused = frozenset(name for name in refused if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in refused if name.endswith("*"))
        # A client's requests have the same fields again and again.
        self._passed: set[tuple[str, ...]] = set()
        self._choices_max = model.choices_max
        self._output_tokens_max = model.output_tokens_max

    def check(self, request: GenerationRequest) -> None:
        """See that a request keeps to them.

        Raises:
            RequestError: 400, naming the field that doesn't.
        """
        names = tuple(request.fields)
        if names not in self._passed and (refused := self._refused_of(names)):
            raise RequestError(
                400,
                "field_refused",
                f"`{refused[0][:64]}` is not accepted here.",
                param=refused[0][:64],
                hint="Leave it out, or ask the operator (fields_refused).",
            )
        if request.choices > self._choices_max:
            raise invalid(
                "n",
                f"(or best_of) times the prompts is {request.choices}, "
                f"and the most is {self._choices_max}",
                "Send several requests.",
            )
        limit = request.output_tokens_max
        most = self._output_tokens_max
        if most is not None and limit is not None and limit > most * request.choices:
            each = limit // request.choices
            raise invalid("max_tokens", f"is {each}, and the most is {most}", "Ask for less.")

    def _refused_of(self, names: tuple[str, ...]) -> list[str]:
        """Return which of a request's fields are refused; where none is, that is kept."""
        refused = [
            name for name in names if name in self._refused or name.startswith(self._prefixes)
        ]
        if not refused and len(names) <= PASSED_FIELDS_MAX:
            if len(self._passed) >= PASSED_MAX:
                self._passed.clear()
            self._passed.add(names)
        return refused
