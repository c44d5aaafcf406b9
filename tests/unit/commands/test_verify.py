"""`verify` against servers that are good, lie, misbehave, or are none."""

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sglang_sm120 import __version__, cli
from sglang_sm120.commands import client, verify

GOOD = {
    "version": "0.5.23",
    "tp_size": 2,
    "pp_size": 1,
    "moe_runner_backend": "flashinfer_cutlass",
    "speculative_algorithm": "EAGLE",
    "speculative_moe_runner_backend": "sm120_triton",
}
META = {"spec_accept_length": 1.5}


def page(ranks=2, dispatches=7, version=__version__):
    labels = f'kernel="sm120_triton",patches="mxfp4_nextn",role="draft",version="{version}"'
    lines = [f'sglang_sm120_info{{{labels},pid="{pid}"}} 1.0' for pid in range(ranks)]
    lines.append(f'sglang_sm120_dispatch_total{{kernel="sm120_triton",role="draft"}} {dispatches}')
    return "\n".join(["# HELP sglang_sm120_info x", *lines, ""])


@pytest.fixture
def serve():
    """info, metrics page, answer function -> URL of a server."""
    servers = []

    def start(info=GOOD, metrics="", answer=lambda prompt, count: f"{prompt}!", html=False, meta=META):
        counts = {}

        class Handler(BaseHTTPRequestHandler):
            def say(self, text, status=200):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(text.encode())

            def do_GET(self):
                if html:
                    self.say("<html><body>It works!</body></html>")
                elif self.path == "/server_info":
                    self.say(json.dumps(info))
                elif self.path == "/metrics" and metrics is not None:
                    self.say(metrics or page())
                else:
                    self.say("Not Found", 404)

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                assert body["sampling_params"]["temperature"] == 0
                counts[body["text"]] = counts.get(body["text"], 0) + 1
                text = answer(body["text"], counts[body["text"]])
                self.say(json.dumps({"text": text, "meta_info": meta}))

            def log_message(self, *_args):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_good_server(serve):
    document = verify.run(serve())
    assert document["errors"] == []
    assert document["unseen"] == []
    assert document["ranks"] == {"expected": 2, "seen": 2, "dispatches": 7}
    assert document["acceptance_length"] == 1.5
    assert "No fault found." in verify.render(document)


def test_the_document_has_no_password(serve):
    document = verify.run(serve().replace("http://", "http://me:hunter2@"))
    assert document["errors"] == []
    assert "hunter2" not in json.dumps(document) + verify.render(document)


def test_without_metrics_ranks_are_not_seen_rather_than_good(serve):
    document = verify.run(serve(metrics=None))
    assert document["errors"] == []
    assert document["unseen"] == ["ranks and kernels: start the server with --enable-metrics"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"metrics": page(ranks=1)}, "ran in 1 of 2 ranks"),
        ({"metrics": page(ranks=0)}, "ran in 0 of 2 ranks"),
        (
            {"info": GOOD | {"speculative_moe_runner_backend": "triton"}, "metrics": page(ranks=1)},
            "ran in 1 of 2 ranks",
        ),
        ({"metrics": page(dispatches=0)}, "no layer was ever dispatched"),
        ({"metrics": page(version="9.9")}, "the server runs sglang-sm120 9.9"),
        ({"info": GOOD | {"moe_runner_backend": "flashinfer_trtllm_routed"}}, "the overlay was not at work"),
        ({"answer": lambda prompt, count: ""}, "with nothing"),
        ({"answer": lambda prompt, count: str(count)}, "differently the second time"),
    ],
)
def test_a_server_that_lies_or_errs(serve, how, says):
    document = verify.run(serve(**how))
    assert any(says in e for e in document["errors"]), document["errors"]


def test_a_reference_without_speculation(serve):
    good = serve()
    assert verify.run(good, reference=serve())["errors"] == []
    (error,) = verify.run(good, reference=serve(answer=lambda prompt, count: "other"))["errors"]
    assert "4 of 4 answers differ from the reference" in error


def test_not_a_server(serve, capsys):
    assert cli.main(["verify", "--url", serve(html=True)]) == 1
    assert "is no SGLang server's: it answers '<html>" in capsys.readouterr().err
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert cli.main(["verify", "--url", f"http://127.0.0.1:{free.getsockname()[1]}"]) == 1
    assert "cannot be asked" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"info": GOOD | {"moe_runner_backend": ["x"]}}, "moe_runner_backend is ['x'], expected a text"),
        ({"info": GOOD | {"tp_size": "two"}}, "tp_size is 'two', expected a whole number"),
        ({"meta": [1]}, "meta_info is [1]"),
        ({"meta": {"spec_accept_length": "long"}}, "meta_info is {'spec_accept_length': 'long'}"),
    ],
)
def test_another_server_with_fields_of_the_same_names(serve, how, says, capsys):
    assert cli.main(["verify", "--url", serve(**how)]) == 1
    assert says in capsys.readouterr().err


def test_a_page_of_metrics_that_is_none_is_named(serve, capsys):
    assert cli.main(["verify", "--url", serve(metrics='sglang_sm120_info{pid="1"} broken\n')]) == 1
    assert "/metrics is no page of metrics: could not convert string to float: 'broken'" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_count_that_is_no_number_is_no_count(serve, value):
    document = verify.run(serve(metrics=page(dispatches="@").replace("@", value)))
    assert document["ranks"]["dispatches"] is None
    assert any(f"/metrics counts {float(value)} dispatches" in error for error in document["errors"])


def test_labels_that_only_prometheus_reads_right(serve):
    """A brace and an escaped quote in a label's value, a time stamp behind the sample."""
    text = page().replace('kernel="sm120_triton"', 'kernel="a } of \\"b\\""').replace(" 1.0", " 1.0 1764460800000")
    assert verify.run(serve(metrics=text))["ranks"] == {"expected": 2, "seen": 2, "dispatches": 7}


def test_without_the_library_metrics_are_not_seen(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    document = verify.run(serve())
    assert document["errors"] == []
    assert document["unseen"] == ["ranks and kernels: /metrics is read with prometheus-client; install it here"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_is_not_asked_for_this_machine(serve, monkeypatch, host):
    """Nobody is there on its port; the server would be blamed for it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{free.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert verify.run(serve().replace("127.0.0.1", host))["errors"] == []


def test_another_machine_is_asked_through_the_proxy(serve, monkeypatch):
    monkeypatch.setenv("http_proxy", serve(html=True))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert client.ask("http://server.example:30000/server_info").startswith(b"<html>")


def test_a_server_that_hangs(capsys):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        assert cli.main(["verify", "--url", url, "--timeout", "1"]) == 1
    assert "cannot be asked: timed out" in capsys.readouterr().err


def test_json_is_one_document(serve, capsys):
    assert cli.main(["verify", "--url", serve(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_json_is_one_document_where_no_server_answers(serve, capsys):
    assert cli.main(["verify", "--url", serve(html=True), "--json"]) == 1
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["schema"] == 1
    (error,) = document["errors"]
    assert "is no SGLang server's" in error
    assert error in said.err
