"""The process of a serving benchmark without SGLang: figures by concurrency, and a server that dies at 4 at once."""

import json
import os
import sys
import urllib.request

for line in sys.stdin:
    question = json.loads(line)
    words = question["arguments"]
    flags = dict(zip(words[::2], words[1::2], strict=False))
    concurrency, prompts = int(flags["--max-concurrency"]), int(flags["--num-prompts"])
    print(json.dumps({"at": question["name"]}), flush=True)
    url = flags["--base-url"]
    if os.environ.get("FAKE_BENCH") == "dies" and concurrency == 4:
        urllib.request.urlopen(f"{url}/die", timeout=5).read()
        print(json.dumps({"failed": f"Cannot connect to {url} for {flags['--model']}/config.json"}), flush=True)
        continue
    if os.environ.get("FAKE_BENCH") == "fails" and concurrency == 2:
        print(json.dumps({"failed": f"ValueError: {flags['--tokenizer']}/tokenizer.json"}), flush=True)
        continue
    speed = float(os.environ.get("FAKE_SPEED", "1")) * (1 + 0.01 * (int(flags["--seed"]) % 2))
    found = {"completed": prompts, "output_throughput": 50.0 * concurrency * speed, "median_ttft_ms": 100 / speed}
    found |= {"median_tpot_ms": 20 / speed, "accept_length": 1.8, "generated_texts": ["a secret prompt"]}
    if os.environ.get("FAKE_BENCH") == "loses" and concurrency == 2:
        found["completed"] -= 1
    print(json.dumps({"done": found}), flush=True)
