"""Metrics appear only where SGLang exports them, and say what ran."""

import subprocess
import sys

CODE = """
import sys
from sglang_sm120.moe import metrics
metrics.count_dispatch("draft", "sm120_triton")
metrics.count_dispatch("draft", "sm120_triton")
if "prometheus_client" not in sys.modules:
    print("not imported")
else:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    print(generate_latest(registry).decode())
"""


def run(monkeypatch, directory):
    if directory:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(directory))
    else:
        monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout


def test_without_metrics_nothing_is_imported(monkeypatch):
    assert run(monkeypatch, None).strip() == "not imported"


def test_with_metrics_the_counter_and_the_gauge(monkeypatch, tmp_path):
    said = run(monkeypatch, tmp_path)
    assert 'sglang_sm120_dispatch_total{kernel="sm120_triton",role="draft"} 2.0' in said
    assert "sglang_sm120_info{" in said
    assert 'pid="' in said  # one sample for each rank, which `verify` counts
