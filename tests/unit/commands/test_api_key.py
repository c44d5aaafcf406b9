"""The key of a server: where it comes from, whom it reaches, and that no message has it."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_sm120 import cli
from sglang_sm120.commands import client


@pytest.fixture
def guarded():
    """URL of a server that wants a key and notes what it was sent; it redirects /server_info of others."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()
            self.wfile.write(b'{"error":"Unauthorized"}')

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("url", "flags", "variable", "sent"),
    [
        ("http://{}", ["--api-key", "hunter2"], None, "Bearer hunter2"),
        ("http://{}", [], "hunter2", "Bearer hunter2"),
        ("http://{}", ["--api-key", "hunter2"], "hunter3", "Bearer hunter2"),
        ("http://me:hunter2@{}", [], None, "Basic bWU6aHVudGVyMg=="),
        ("http://me:hunter2@{}", ["--api-key", "hunter2"], None, "Bearer hunter2"),
        ("http://me:hunter2@{}", [], "hunter3", "Basic bWU6aHVudGVyMg=="),
        ("http://{}", [], None, None),
    ],
)
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_key_reaches_the_server_and_no_message(guarded, url, flags, variable, sent, as_json, monkeypatch, capsys):
    host, seen = guarded
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    if variable:
        monkeypatch.setenv("OPENAI_API_KEY", variable)
    assert cli.main(["verify", "--url", url.format(host), *flags, *as_json]) == 1
    said = capsys.readouterr()
    assert seen == [sent]
    assert f"http://{host}/server_info answers HTTP 401" in said.err
    assert "--api-key KEY, or OPENAI_API_KEY" in said.err
    assert "hunter" not in said.out + said.err


@pytest.mark.parametrize("command", [["verify"], ["bench"]])
@pytest.mark.parametrize("key", ["hunter2\n", "hünter2", "hunter2\x7f"])
def test_a_key_that_no_header_can_hold_is_not_shown(guarded, command, key, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    assert cli.main([*command, "--url", f"http://{guarded[0]}", "--json"]) == 1
    said = capsys.readouterr()
    assert "is not printable ASCII (it is not shown)" in said.err
    assert "nter2" not in said.out + said.err


@pytest.mark.parametrize("flags", [["--api-key", "hunter2"], []])
def test_bench_has_a_key_too_and_shows_no_password(guarded, flags, monkeypatch, capsys):
    host, seen = guarded
    monkeypatch.setenv("OPENAI_API_KEY", "hunter3")
    user = "" if flags else "me:hunter2@"
    assert cli.main(["bench", "--url", f"http://{user}{host}", *flags, "--json"]) == 1
    said = capsys.readouterr()
    assert seen == ["Bearer hunter2" if flags else "Basic bWU6aHVudGVyMg=="]
    assert f"http://{host}" in said.err
    assert "hunter" not in said.out + said.err


def test_a_key_is_not_sent_where_a_server_redirects_to(guarded):
    host, seen = guarded

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(302)
            self.send_header("Location", f"http://{host}/server_info")
            self.end_headers()

        def log_message(self, *_args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with pytest.raises(client.StatusError):
        client.ask(f"http://127.0.0.1:{server.server_port}/server_info", api_key="hunter2")
    server.shutdown()
    server.server_close()
    assert seen == [None]
