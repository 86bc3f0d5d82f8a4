"""Who may talk to this server: host names, origins, and people with a password."""

import hmac
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

AUTH_VARIABLE = "PARALLEL_TRAINER_AUTH"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_TRIES = 5
_PAUSE = 30.0  # seconds without a login after too many wrong passwords


def allowed_hosts(host: str) -> list[str]:
    """The names under which a server bound to `host` may be addressed.

    A page of a stranger whose name was pointed at this machine (DNS rebinding) sends its own name and is refused.
    """
    names = {*LOOPBACK, "[::1]", host}
    if host in ("0.0.0.0", "::"):
        names |= {socket.gethostname(), socket.getfqdn()}
        names |= {item.address for items in psutil.net_if_addrs().values() for item in items if "." in item.address}
    return sorted(name.lower() for name in names if name and "*" not in name)


def middleware(host: str) -> list[Middleware]:
    """What stands before Gradio, in order."""
    names = allowed_hosts(host)
    return [
        Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False),
        Middleware(SameOrigin, allowed_hosts=names),
    ]


class SameOrigin:
    """Refuses a request that a page of another site sends from the user's browser."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str]):
        self.app = app
        self.allowed_hosts = frozenset(allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] in ("http", "websocket") else None
        if origin is not None and (urlsplit(origin).hostname or "") not in self.allowed_hosts:
            await PlainTextResponse("Invalid origin", status_code=403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


class Login:
    """Gradio asks it whether a name and a password belong together."""

    def __init__(self, users: dict[str, str]):
        self._users = users
        self._failures: dict[str, tuple[int, float]] = {}  # by known name: how many, when the last

    def __call__(self, user: str, password: str) -> bool:
        known = self._users.get(user)
        count, last = self._failures.get(user, (0, 0.0))
        if count >= _TRIES and time.monotonic() - last < _PAUSE:
            return False
        # Compared also for a name that nobody has, so that the time taken does not tell.
        fits = hmac.compare_digest((known or "").encode(), password.encode())
        if known is not None and fits:
            self._failures.pop(user, None)
            return True
        if known is not None:
            self._failures[user] = (count + 1, time.monotonic())
        return False


def read_users(path: Path | None) -> dict[str, str]:
    """name:password lines of a file, or of the environment variable; {} without either. Raises ValueError."""
    if path is None:
        text, where = os.environ.get(AUTH_VARIABLE, ""), AUTH_VARIABLE
    else:
        try:
            text, where = path.read_text("utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"--auth {path} cannot be read: {error}") from None
    users = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, password = line.partition(":")
        if not (name and colon and password):
            raise ValueError(f"{where} must hold lines of the form name:password")
        users[name] = password
    if path is not None and not users:
        raise ValueError(f"{path} holds no name:password line")
    return users
