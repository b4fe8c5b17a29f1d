# SPDX-License-Identifier: Apache-2.0
"""The setting ``coordinator``: the forms of its URL."""

from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from taketurns.errors import ConfigError, ConfigFault

LOCAL = "local"
"""This process decides alone."""

FORMS = (
    "Write redis://HOST:PORT/DB, rediss://... (TLS), unix:///PATH, "
    "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB or redis+cluster://HOST:PORT,HOST:PORT."
)

PLAIN_PORT = 6379
SENTINEL_PORT = 26379

SETTINGS = {
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "sentinel_username",
    "sentinel_password",
    "db",
}
"""What may stand behind the question mark."""


class Address(NamedTuple):
    """A coordinator's URL, taken apart.

    Attributes:
        kind: ``single``, ``unix``, ``sentinel`` or ``cluster``.
        tls: True where the connection is encrypted.
        hosts: Host and port of each server that is named; for ``unix`` none.
        path: Of the socket.
        service: The name of the primary, for ``sentinel``.
        db: Number of the database.
        username: Or None.
        password: Or None.
        settings: What stood behind the question mark.
    """

    kind: str
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """Return it for people: without user and password."""
        scheme = {"single": "redis", "unix": "unix"}.get(self.kind, f"redis+{self.kind}")
        if self.tls:
            scheme = scheme.replace("redis", "rediss")
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}{self.path}" + (f"/{self.service}" if self.service else "")


def parse_address(url: str) -> Address:
    """Take a coordinator's URL apart.

    Raises:
        ConfigError: It's none of the forms; the message says no password.
    """
    parts = urlsplit(url)
    base, _, variant = parts.scheme.partition("+")
    kind = "unix" if parts.scheme == "unix" else variant or "single"
    if (base not in {"redis", "rediss", "unix"}) or kind not in {
        "single",
        "unix",
        "sentinel",
        "cluster",
    }:
        raise _wrong(f"a coordinator can't be reached by {parts.scheme or 'no scheme'!r}")
    userinfo, _, places = parts.netloc.rpartition("@")
    username, _, password = (unquote(part) for part in userinfo.partition(":"))
    settings = tuple(parse_qsl(parts.query))
    for name, _ in settings:
        if name not in SETTINGS:
            raise _wrong(f"a coordinator's URL has no setting {name!r}")
    steps = [step for step in parts.path.split("/") if step]
    service = ""
    if kind == "sentinel":
        if not steps:
            raise _wrong("a sentinel's URL names the primary after the hosts")
        service = steps.pop(0)
    db = dict(settings).get("db", steps[0] if steps and kind != "unix" else "0")
    if not db.isdigit() or (kind == "cluster" and db != "0"):
        raise _wrong(f"a coordinator has no database {db!r}")
    port = SENTINEL_PORT if kind == "sentinel" else PLAIN_PORT
    hosts = () if kind == "unix" else tuple(_host(place, port) for place in places.split(","))
    return Address(
        kind,
        base == "rediss",
        hosts,
        parts.path if kind == "unix" else "",
        service,
        int(db),
        username or None,
        password or None,
        tuple((name, value) for name, value in settings if name != "db"),
    )


def _host(place: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        return parts.hostname or "localhost", parts.port or port
    except ValueError:
        raise _wrong(f"a coordinator can't be at {place!r}") from None


def _wrong(problem: str) -> ConfigError:
    return ConfigError([ConfigFault("coordinator", problem, hint=FORMS)])
