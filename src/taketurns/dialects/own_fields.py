# SPDX-License-Identifier: Apache-2.0
"""What the gateway itself reads of a body in any dialect: model, priority, deadline, tenant.

A body may hold an object ``taketurns`` with ``priority`` and ``deadline_ms``, for
clients that can't set headers; it's taken out before anything else reads the body.
"""

from typing import Annotated, NamedTuple

import msgspec

from taketurns.core.model import PRIORITY_MAX
from taketurns.dialects.openai import decode, invalid

WAIT_MS_MAX = 86_400_000
"""Longest wait that a client may ask for: a day."""


Priority = Annotated[int, msgspec.Meta(ge=0, le=PRIORITY_MAX)]


class OwnFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The object ``taketurns`` of a body.

    Attributes:
        priority: 0 first, 999 last, or None.
        deadline_ms: Longest wait in the queue, or None.
        tenant: Who sends it; read behind a trusted platform only.
        dialect: Whose API the body is written for; read there only.
    """

    priority: Priority | None = None
    deadline_ms: Annotated[int, msgspec.Meta(ge=1, le=WAIT_MS_MAX)] | None = None
    tenant: str | None = None
    dialect: str | None = None

    def check_no_tenant(self) -> None:
        """See that nobody chooses a tenant: who sends a request is told by its key.

        Raises:
            RequestError: 400.
        """
        if self.tenant is not None or self.dialect is not None:
            field = "tenant" if self.tenant is not None else "dialect"
            raise invalid(
                f"taketurns.{field}", "is read behind a trusted platform only", "Leave it out."
            )


class Asked(NamedTuple):
    """What is read of a body before its dialect is.

    Attributes:
        model: Name of the model, or None.
        taketurns: Fields of our own, or None.
        fields: All others as they came, by name.
    """

    model: str | None
    taketurns: OwnFields | None
    fields: dict[str, msgspec.Raw]


class _WithPriority(msgspec.Struct):
    priority: Priority | None = None


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MODEL = msgspec.json.Decoder(str | None)
_OWN = msgspec.json.Decoder(OwnFields | None)
_PRIORITY = msgspec.json.Decoder(_WithPriority)


def read_asked(body: bytes) -> tuple[Asked, bytes]:
    """Return what is asked, and the body without fields of our own.

    Raises:
        RequestError: 400 where the body isn't a JSON object, or one of these fields is wrong.
    """
    fields: dict[str, msgspec.Raw] = decode(_FIELDS, body)
    model = fields.get("model")
    name: str | None = None if model is None else decode(_MODEL, model, under="model")
    own = fields.pop("taketurns", None)
    if own is None:
        return Asked(name, None, fields), body
    read: OwnFields | None = decode(_OWN, own, under="taketurns")
    return Asked(name, read, fields), msgspec.json.encode(fields)


def with_model(fields: dict[str, msgspec.Raw], model: str) -> bytes:
    """Return a body with a model's name: one that was read before, and has none.

    Args:
        fields: Its fields, to which the name is added.
        model: The name.
    """
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def cohere_priority(body: bytes) -> int | None:
    """Return the ``priority`` of one of Cohere's requests, or None.

    Raises:
        RequestError: 400 where it's no whole number from 0 to 999.
    """
    read: _WithPriority = decode(_PRIORITY, body)
    return read.priority
