"""Who may ask: the Host and Origin of a request, and its API key.

A page of another site must not reach a server on the user's own machine. Its requests carry an Origin, which is
compared whole; a name of its own that it lets point to us (DNS rebinding) shows in Host, which is compared whole too.
"""

import contextlib
import hashlib
import hmac
import ipaddress
import re
from collections.abc import Mapping

from anyformer.serve.config import ServeConfig
from anyformer.serve.errors import ApiError

LOCAL = ("127.0.0.1", "localhost", "[::1]")
WILDCARDS = ("0.0.0.0", "::", "")
ASKED_HEADERS = re.compile(r"[A-Za-z0-9_, -]{1,1024}")
"""What a preflight may ask for."""
PREFLIGHT_SECONDS = "600"


class Access:
    """The doorman of one server, whose port is known by now."""

    def __init__(self, config: ServeConfig) -> None:
        self.wildcard = config.host in WILDCARDS
        own = {*LOCAL, *(() if self.wildcard else (bracketed(config.host).lower(),))}
        self.named = {name.lower() for name in config.allowed_hosts}
        names = own | self.named
        self.hosts = names | {f"{name}:{config.port}" for name in names}
        self.origins = frozenset(map(as_browsers_write, config.cors_origins))
        self.digests = [hashlib.sha256(key.encode()).digest() for key in config.keys]

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Refuse a name that is not ours, which is how DNS rebinding shows."""
        host = headers.get("host", "").lower()
        if host not in self.hosts and not (self.wildcard and is_address(host)):
            raise ApiError(
                403, "Host: this server is not known by that name; start it with --allowed-hosts to add one",
                code="host_not_allowed",
            )  # fmt: skip

    def check_origin(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Refuse the pages of other sites; what an answer to this one says of it. Host was checked before."""
        vary = {"vary": "origin"} if self.origins else {}
        origin = headers.get("origin")
        if origin is None:
            return vary
        if origin in self.origins:
            shown = "x-request-id, retry-after"
            return vary | {"access-control-allow-origin": origin, "access-control-expose-headers": shown}
        host = headers.get("host", "").lower()
        ours = {f"http://{host}"}
        if host in self.named:
            # Before a name that the user gave, a proxy may speak TLS.
            ours.add(f"https://{host}")
        if origin.lower() not in ours:
            raise ApiError(
                403, "Origin: pages of that site may not use this server; start it with --cors-origins to let them",
                code="origin_not_allowed",
            )  # fmt: skip
        return vary

    def preflight(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """What a browser is told before it sends a request of another site's page."""
        if headers.get("origin") not in self.origins:
            raise ApiError(403, "OPTIONS: only pages named with --cors-origins may ask", code="origin_not_allowed")
        asked = headers.get("access-control-request-headers", "")
        allowed = asked if ASKED_HEADERS.fullmatch(asked) else "authorization, content-type, x-api-key"
        return {
            "access-control-allow-methods": "GET, POST",
            "access-control-allow-headers": allowed,
            "access-control-max-age": PREFLIGHT_SECONDS,
        }

    def key_id(self, headers: Mapping[str, str]) -> str | None:
        """The id of the key that was given; raises ApiError(401). None: this server asks for none."""
        if not self.digests:
            return None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("x-api-key", "")
        digest = hashlib.sha256(given.strip().encode("latin-1")).digest()
        # Every key is compared, so that the time tells neither which one nor how much of it was right.
        right = [hmac.compare_digest(digest, each) for each in self.digests]
        if not any(right):
            what = "that is no key of this server" if given.strip() else "this server asks for an API key"
            raise ApiError(
                401, f"{what}; send it as `Authorization: Bearer KEY`", code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )  # fmt: skip
        return digest.hex()[:16]


def bracketed(host: str) -> str:
    """A host as URLs write it."""
    return f"[{host}]" if ":" in host else host


def as_browsers_write(origin: str) -> str:
    """An origin as it stands in a header: in small letters, and without the port that its scheme means anyway."""
    lower = origin.lower()
    return lower.removesuffix(":80" if lower.startswith("http:") else ":443")


def is_address(host: str) -> bool:
    """Whether a Host header is an address or this machine itself, with any port or none.

    A server that listens everywhere is called by addresses that it does not know, such as those of a container's host
    and a port that is mapped. An address can't be rebound: what a page of that address asks comes from that machine.
    """
    match = re.fullmatch(r"(\[[0-9a-f:.]+\]|[0-9.]+|localhost)(:[0-9]{1,5})?", host)
    if match is None:
        return False
    with contextlib.suppress(ValueError):
        return match[1] == "localhost" or bool(ipaddress.ip_address(match[1].strip("[]")))
    return False
