"""One HTTP request to a server, with the standard library alone: commands may run where SGLang is not installed."""

from __future__ import annotations

import ipaddress
import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class StatusError(OSError):
    """The server answers with an error; `status` is its number, the message ends with the beginning of its body."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"HTTP {status}: {body}")
        self.status = status


def ask(url: str, document: dict[str, Any] | None = None, timeout_s: float = 60.0) -> bytes:
    """The body of an answer. A proxy of the environment is for other machines, not for this one.

    Args:
        url: of a page, `http://host:port/path`.
        document: to be posted as JSON; without one the page is asked for.
        timeout_s: for connecting and for each read.

    Raises:
        StatusError: the server answers with an error.
        OSError: there is no answer, or not a whole one.
    """
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        opener = _DIRECT if _is_this_machine(urlsplit(url).hostname or "") else urllib.request.build_opener()
        with opener.open(request, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        raise StatusError(error.code, error.read(300).decode(errors="replace").strip()) from error
    except urllib.error.URLError as error:
        raise ConnectionError(str(error.reason)) from error
    except (HTTPException, ValueError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}") from error


def _is_this_machine(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified
