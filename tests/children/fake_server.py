"""Stands for SGLang's server in the smoke test: the same command line, the four paths that are asked, made-up tokens.

Without the overlay a hybrid checkpoint with speculation ends as the real server does, with its exception; a damaged
checkpoint, a bad value and a full disk end it too.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--model-path", type=Path)
parser.add_argument("--port", type=int)
parser.add_argument("--tp-size", type=int, default=1)
arguments, rest = parser.parse_known_args()
config = json.loads((arguments.model_path / "config.json").read_text())
weights = {"seed": arguments.model_path.name}

for shard in arguments.model_path.glob("*.safetensors"):
    size = int.from_bytes(shard.open("rb").read(8), "little")
    header = json.loads(shard.open("rb").read(8 + size)[8:])
    ends = max(entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__")
    if shard.stat().st_size < 8 + size + ends:
        sys.exit("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata")
    if "mtp.0.ffn.experts.1.w2.weighx" in header:
        sys.exit("ValueError: model.decoder.mlp.experts: the checkpoint did not deliver w2_weight of expert 1")
if os.environ.get("SGLANG_SM120_DRAFT_MOE") == "sm120-triton":
    sys.exit("sglang-sm120: SGLANG_SM120_DRAFT_MOE is 'sm120-triton'")
Path(os.environ["TRITON_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
(Path(os.environ["TRITON_CACHE_DIR"]) / f"kernel-{os.getpid()}").write_bytes(bytes(1 << 20))  # OSError where full

hybrid = "moe_quant_algo" in config["quantization_config"]
if hybrid and os.environ.get("SGLANG_SM120") == "0":
    time.sleep(0.5)
    print(
        '  File "/somewhere/site-packages/sglang/srt/models/deepseek_v4_nextn.py", line 267, in forward\n    return x'
    )
    sys.exit(
        "ImportError: cannot import name 'flashinfer_mxfp8_quantize' from 'sglang.srt.layers.quantization.fp8_utils'"
    )
# A scheduler for each rank, which the server does not outlive.
schedulers = [
    subprocess.Popen(["bash", "-c", f"exec -a sglang::scheduler_TP{rank} sleep 1000"])
    for rank in range(arguments.tp_size)
]


def follow(process):
    process.wait()
    for other in schedulers:
        other.kill()
    print("RuntimeError: a scheduler died", flush=True)
    os._exit(1)


for process in schedulers:
    threading.Thread(target=follow, args=(process,), daemon=True).start()

print(f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}")
print("[2026-01-01 00:00:00] MoE draft: Sm120Mxfp4MoEMethod (sm120_triton) for model.decoder.mlp.experts", flush=True)


aborted = threading.Event()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_args):
        pass

    def answer(self, document):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def do_GET(self):
        self.answer({"version": "0", "moe_runner_backend": "marlin"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path in ("/flush_cache", "/abort_request"):
            aborted.set()
            return self.answer({})
        if self.path == "/update_weights_from_disk":
            weights["seed"] = Path(body["model_path"]).name
            return self.answer({"success": True, "message": "done"})
        count = body["sampling_params"]["max_new_tokens"]
        reason = "length"
        if body.get("rid"):
            aborted.wait(10)
            count, reason = 7, "abort"
        elif count == 256:
            time.sleep(0.5)
        seed = f"{weights['seed'].rpartition('-')[2]} {body.get('input_ids', body.get('text'))}"
        ids = random.Random(seed).choices(range(100), k=count)
        meta = {"completion_tokens": count, "spec_accept_length": 1.5, "spec_verify_ct": count}
        meta["finish_reason"] = {"type": reason}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.5, i, None] for i in ids]
        whole = {"output_ids": ids, "text": str(ids), "meta_info": meta}
        if not body.get("stream"):
            return self.answer(whole)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"data: " + json.dumps(whole).encode() + b"\n\ndata: [DONE]\n\n")


ThreadingHTTPServer.request_queue_size = 128  # as many as are sent at once
ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()
