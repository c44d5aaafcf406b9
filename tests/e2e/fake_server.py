"""Stands for SGLang's server in the smoke test: the same command line, the four paths that are asked, made-up tokens.

Without the overlay a hybrid checkpoint with speculation ends as the real server does, with its exception.
"""

import argparse
import json
import os
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--model-path", type=Path)
parser.add_argument("--port", type=int)
arguments, rest = parser.parse_known_args()
config = json.loads((arguments.model_path / "config.json").read_text())
weights = {"seed": arguments.model_path.name}

hybrid = "moe_quant_algo" in config["quantization_config"]
if hybrid and os.environ.get("SGLANG_SM120") == "0":
    time.sleep(0.5)
    print(
        '  File "/somewhere/site-packages/sglang/srt/models/deepseek_v4_nextn.py", line 267, in forward\n    return x'
    )
    sys.exit(
        "ImportError: cannot import name 'flashinfer_mxfp8_quantize' from 'sglang.srt.layers.quantization.fp8_utils'"
    )
print("[2026-01-01 00:00:00] MoE draft: Sm120Mxfp4MoEMethod (sm120_triton) for model.decoder.mlp.experts", flush=True)


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
        if self.path == "/update_weights_from_disk":
            weights["seed"] = Path(body["model_path"]).name
            return self.answer({"success": True, "message": "done"})
        count = body["sampling_params"]["max_new_tokens"]
        seed = f"{weights['seed'].rpartition('-')[2]} {body.get('input_ids', body.get('text'))}"
        ids = random.Random(seed).choices(range(100), k=count)
        meta = {"completion_tokens": count, "spec_accept_length": 1.5}
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [[-0.5, i, None] for i in ids]
        return self.answer({"output_ids": ids, "text": str(ids), "meta_info": meta})


ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler).serve_forever()
