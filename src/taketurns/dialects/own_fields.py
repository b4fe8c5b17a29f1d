# SPDX-License-Identifier: Apache-2.0
"""What the gateway itself reads of a body in any dialect: model, priority, deadline, tenant.

A body may hold an object ``taketurns`` with ``priority`` and ``deadline_ms``, for
clients that can't set headers; it's taken out before anything else reads the body.
"""

from collections.abc import Collection
from typing import Annotated

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


class Asked(msgspec.Struct):
    """What is read of a body before its dialect is.

    Attributes:
        model: Name of the model, or None.
        taketurns: Fields of our own, or None.
    """

    model: str | None = None
    taketurns: OwnFields | None = None


class _WithPriority(msgspec.Struct):
    priority: Priority | None = None


_ASKED = msgspec.json.Decoder(Asked)
_PRIORITY = msgspec.json.Decoder(_WithPriority)


def read_asked(body: bytes) -> tuple[Asked, bytes]:
    """Return what is asked, and the body without fields of our own.

    Raises:
        RequestError: 400 where the body isn't a JSON object, or one of these fields is wrong.
    """
    asked: Asked = decode(_ASKED, body)
    if asked.taketurns is not None:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        del fields["taketurns"]
        body = msgspec.json.encode(fields)
    return asked, body


def field_names(body: bytes) -> Collection[str]:
    """Return the names of a body's fields; it was read before."""
    return msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys()


def with_model(body: bytes, model: str) -> bytes:
    """Return a body with a model's name; it was read before, and has none."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "model": model})


def cohere_priority(body: bytes) -> int | None:
    """Return the ``priority`` of one of Cohere's requests, or None.

    Raises:
        RequestError: 400 where it's no whole number from 0 to 999.
    """
    read: _WithPriority = decode(_PRIORITY, body)
    return read.priority
