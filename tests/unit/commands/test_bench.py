"""`sglang-sm120 bench` and `report`: what they measure, what they keep when a server dies, and what they never show."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sglang_sm120 import cli, files
from sglang_sm120.commands.bench import command as bench
from sglang_sm120.commands.bench import server, text

CHILD = [sys.executable, str(Path(__file__).parents[2] / "children" / "fake_bench.py")]
PRIVATE = ("/srv/alice", "alice", "s3cret", "127.0.0.1", "box-17.example", "Bearer", "a secret prompt", "Once upon")
INFO = {
    "version": "0.5.23", "tp_size": 2, "moe_runner_backend": "sm120_triton", "speculative_algorithm": "EAGLE",
    "model_path": "/srv/alice/DeepSeek", "tokenizer_path": "/srv/alice/DeepSeek", "host": "box-17.example",
    "api_key": "s3cret", "ssl_keyfile": "/srv/alice/key.pem", "served_model_name": "alice",
    "quantization": "/srv/alice", "cuda_graph_bs_decode": [1, 2], "chat_template": "Once upon",
    "attention_backend": "alice@box-17.example", "context_length": 4096,
}  # fmt: skip
LABELS = {"version": "0.1.0", "role": "target", "kernel": "sm120_triton", "patches": "a,b", "gpu": "NVIDIA Test"}
METRICS = "sglang_sm120_info{" + ",".join(f'{name}="{value}"' for name, value in LABELS.items()) + ',pid="7"} 1\n'


@pytest.fixture
def url():
    """A server that says of itself what one may say, and is gone after /die."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args):
            pass

        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.encode() if self.path == "/metrics" else json.dumps(INFO).encode())
            if self.path == "/die":
                threading.Thread(target=self.server.shutdown).start()
                self.server.server_close()

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    thread.join()


def measured(url, **more):
    return bench.run(url, (1, 2, 4), (1024,), model=Path("/srv/alice/DeepSeek"), child=CHILD, **more)


def test_every_load_is_measured_with_what_the_server_says_of_itself(url):
    document = measured(url)
    assert (document["complete"], document["errors"]) == (True, [])
    assert [row["concurrency"] for row in document["loads"]] == [1, 2, 4]
    assert all(len(row["repeats"]) == bench.REPEATS for row in document["loads"])
    assert document["server"]["cuda_graph_bs_decode"] == [1, 2]
    shown = text.render(document)
    assert "GPU     NVIDIA Test (says the server)" in shown
    assert "target  sm120_triton (sglang-sm120 0.1.0)" in shown
    assert "flags   tp_size 2, moe_runner_backend sm120_triton, speculative_algorithm EAGLE" in shown
    assert "    1024       4     201.0     99.50     19.90      1.80     0" in shown


@pytest.mark.parametrize("fault", ["", "dies", "fails"])
def test_nothing_private_is_in_a_receipt(url, fault, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", fault)
    document = files.shareable(measured(url))
    written = json.dumps(document) + text.render(document)
    assert [word for word in (*PRIVATE, url.rpartition(":")[2]) if word in written] == []


def test_a_server_that_dies_leaves_a_receipt_that_says_so(url, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "dies")
    document = measured(url)
    assert document["complete"] is False
    assert document["died_at"] == {"prompt_tokens": 1024, "concurrency": 4}
    assert document["errors"] == ["the server died at 1024 prompt tokens, 4 at once: it no longer answers"]
    assert [len(row["repeats"]) for row in document["loads"]] == [2, 2, 0]
    assert "ERROR   the server died" in text.render(document)


def test_a_load_that_fails_is_named_and_the_others_go_on(url, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "fails")
    document = measured(url)
    assert document["errors"] == ["1024 prompt tokens, 2 at once: ValueError: MODEL/tokenizer.json"] * 2
    assert [len(row["repeats"]) for row in document["loads"]] == [2, 0, 2]


def test_requests_without_an_answer_are_an_error_though_the_server_lives(url, monkeypatch):
    monkeypatch.setenv("FAKE_BENCH", "loses")
    document = measured(url)
    assert document["complete"] is False
    assert document["errors"] == ["1024 prompt tokens, 2 at once: 1 of 4 requests got no answer"] * 2


def test_prompts_that_the_server_has_no_room_for_are_left_out(url):
    document = bench.run(url, (1,), (8, 4096), 8, model=Path("/srv"), child=CHILD)
    assert [row["prompt_tokens"] for row in document["loads"]] == [8]
    assert document["left_out"] == ["4096 prompt tokens: the server takes 4096 in all"]


def test_a_benchmark_that_dies_is_named(url):
    document = bench.run(url, (1,), (8,), model=Path("/srv"), child=[sys.executable, "-c", "print(1/0)"])
    assert "the benchmark crashed: exit status 1; ZeroDivisionError" in document["errors"][0]


@pytest.mark.parametrize(("speed", "verdict"), [("1", "same"), ("1.01", "same"), ("1.3", "better"), ("0.7", "worse")])
def test_two_receipts_side_by_side_show_what_exceeds_the_noise(url, tmp_path, monkeypatch, capsys, speed, verdict):
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(measured(url)))
    monkeypatch.setenv("FAKE_SPEED", speed)
    second.write_text(json.dumps(measured(url)))
    assert cli.main(["bench", "--compare", str(first), str(second)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " ms " in line or "tokens/s" in line]
    assert {row[-1] for row in rows} == {verdict}
    assert len(rows) == 9


def test_a_file_that_is_no_receipt_is_named(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"schema": 1, "kind": "selftest"}')
    for name in ("a.json", "b.json"):
        assert cli.main(["bench", "--compare", str(tmp_path / name), str(tmp_path / name)]) == 1
        assert f"{name} cannot be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--receipt"],
        ["report", "--out"],
        ["tune", "--shapes", "8,256,128,2", "--receipt"],
    ],
)
def test_a_receipt_that_cannot_be_written_is_said_before_measuring(url, tmp_path, monkeypatch, capsys, words):
    monkeypatch.setattr(bench, "run", lambda *_a: pytest.fail("measured"))
    to = [] if words[0] == "tune" else ["--url", url]
    for file in (tmp_path / "none" / "a.json", tmp_path):
        assert cli.main([*words, str(file), *to]) == 1
        assert f"{words[-1]} {file} cannot be written" in capsys.readouterr().err


def test_a_server_that_is_not_there_and_a_tokenizer_that_is_not(url, capsys):
    assert cli.main(["bench", "--url", "http://127.0.0.1:9"]) == 1
    assert "does not answer as a server of SGLang does" in capsys.readouterr().err
    with pytest.raises(server.ServerError, match="give --model"):
        bench.run(url)


def test_a_report_has_what_can_be_done_here_and_says_why_the_rest_is_left_out(tmp_path, monkeypatch, capsys, url):
    from sglang_sm120.commands.report import command as report

    monkeypatch.setattr(report.selftest, "run", lambda progress: {"kind": "selftest", "command": [url], "errors": []})
    monkeypatch.setattr(report.selftest, "render_any", lambda document: "right")
    monkeypatch.setitem(report._RENDER, "selftest", lambda document: "right")
    real = bench.run
    monkeypatch.setattr(report.bench, "run", lambda url, *_loads, **more: real(url, (1,), (8,), child=CHILD, **more))
    monkeypatch.setenv("SGLANG_SM120_HOME", "/srv/alice/home")
    out = tmp_path / "report.json"
    assert cli.main(["report", "--url", url, "--out", str(out)]) in (0, 1)
    shown = capsys.readouterr().out
    for name in ("doctor", "selftest", "tune", "bench"):
        assert f"== {name}" in shown
    assert "left out: no table of runners is used" in shown
    assert "give" not in json.loads(out.read_text())["left_out"]
    assert [word for word in PRIVATE if word in out.read_text()] == []
