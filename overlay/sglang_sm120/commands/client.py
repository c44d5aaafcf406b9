"""One HTTP request to a server, with the standard library alone: commands may run where SGLang is not installed."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit

API_KEY = "OPENAI_API_KEY"  # where SGLang's own benchmark looks for a server's key
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StatusError(OSError):
    """The server answers with an error; `status` is its number, the message ends with the beginning of its body."""

    def __init__(self, status: int, body: str) -> None:
        wanted = f"; the server wants a key: --api-key KEY, or {API_KEY}" if status == 401 else ""
        super().__init__(f"HTTP {status}: {body}{wanted}")
        self.status = status


def without_password(url: str) -> str:
    """An address as it may be shown: whatever may be a user and a password before an `@` is left out."""
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def ask(url: str, document: dict[str, Any] | None = None, timeout_s: float = 60.0, api_key: str | None = None) -> bytes:
    """The body of an answer. A proxy of the environment is for other machines, not for this one.

    Args:
        url: of a page, `http://host:port/path`; a user and a password in it are for a proxy before the server.
        document: to be posted as JSON; without one the page is asked for.
        timeout_s: for connecting and for each read.
        api_key: of the server; without one, and without a user in the URL, the variable `API_KEY` is asked. It is sent
            to the server's host alone, whatever the host redirects to, and is in no message.

    Raises:
        StatusError: the server answers with an error.
        OSError: there is no answer, or not a whole one.
    """
    data = None if document is None else json.dumps(document).encode()
    parts = urlsplit(url)
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(bare, data, {"content-type": "application/json"})
    allowed = _authorization(api_key, parts.username, parts.password)
    if allowed:
        request.add_unredirected_header("Authorization", allowed)
    try:
        opener = _DIRECT if _is_this_machine(parts.hostname or "") else urllib.request.build_opener()
        with opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise StatusError(error.code, error.read(300).decode(errors="replace").strip()) from error
    except urllib.error.URLError as error:
        raise ConnectionError(str(error.reason)) from error
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def _authorization(api_key: str | None, user: str | None, password: str | None) -> str | None:
    if api_key is None and user is None:
        api_key = os.environ.get(API_KEY) or None
    if api_key is not None:
        if not is_key(api_key):  # http.client's complaint would repeat it
            raise ConnectionError(f"the key of --api-key or {API_KEY} is not printable ASCII (it is not shown)")
        return f"Bearer {api_key}"
    if user is None:
        return None
    pair = f"{unquote(user)}:{unquote(password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


def is_key(text: str) -> bool:
    """Whether a header can hold the text."""
    return bool(text) and text.isascii() and text.isprintable()


def _is_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
