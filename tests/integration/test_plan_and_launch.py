"""`plan` and a launch agree: on odd flags that users gave, and on legal flags put together at random.

Where `plan` alone stops, its reason must be one of those that a launch meets later, while it makes its layers.
"""

import json
import os
import random
import sys

import pytest
from helpers import CHILDREN, EAGLE, run

from sglang_sm120.checkpoint import headers_only
from sglang_sm120.moe.runners import DRAFT_FLAG, TARGET_FLAG

pytestmark = pytest.mark.sglang

SEED, DRAWN = 18, int(os.environ.get("PLAN_DRAWS", "24"))  # 100 were drawn when the table was made
MODELS = {
    "hybrid": ("hybrid-nvfp4", "nextn"),
    "hybrid dspark": ("hybrid-nvfp4", "dspark"),
    "native": ("mxfp4", "nextn"),
    "native dspark": ("mxfp4", "dspark"),
    "fp8": ("fp8", "nextn"),
}
DSPARK = ["--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "4"]
DP = ["--enable-dp-attention", "--dp-size"]
A2A = "--moe-a2a-backend"
LATER = (
    "columns at --tp",  # the shared expert's linear layers are made
    "requires a fused func for a2a backend",  # the runner of the layer is made
    "needs --dtype bfloat16",  # the parameters of the layer are made
    "expected a divisor of n_routed_experts",  # FusedMoE shares the experts out
    "expected a divisor of moe_intermediate_size",
    "expected a divisor of num_attention_heads",
)
# What users gave: checkpoint, flags
ODD = [
    ("hybrid", "--tp 4 --enable-dp-attention --dp-size 4"),
    ("hybrid", "--tp 4 --enable-dp-attention --dp-size 2"),
    ("hybrid", "--tp 4 --enable-dp-attention --dp-size 4 --ep-size 4 --moe-a2a-backend flashinfer"),
    ("hybrid eagle", "--tp 4 --enable-dp-attention --dp-size 4 --ep-size 4 --moe-a2a-backend flashinfer"),
    ("native", "--tp 4 --moe-a2a-backend deepep"),
    ("native", "--tp 4 --moe-a2a-backend deepep --moe-runner-backend sm120_triton"),
    ("hybrid", "--tp 8 --enable-eplb --ep-num-redundant-experts 16 --ep-size 8"),
    ("hybrid", "--tp 2 --ep-size 2"),
    ("hybrid", "--tp 2 --expert-parallel-size 2"),
    ("hybrid eagle", "--tp 2 --nnodes 2 --node-rank 1 --dist-init-addr h:1"),
    ("hybrid eagle", "--tp 2 --disaggregation-mode prefill"),
    ("hybrid eagle", "--tp 2 --disaggregation-mode decode"),
    ("hybrid", "--tp 2 --load-format dummy"),
    ("hybrid eagle", "--tp 2 --cpu-offload-gb 4"),
    ("native", "--tp 2 --cpu-offload-gb 4"),
    ("hybrid", "--tp 2 --enable-deterministic-inference"),
    ("native", "--tp 2 --pp-size 2"),
    ("hybrid eagle", "--tp 2 --pp-size 2"),
    ("hybrid", "--tp 2 --enable-two-batch-overlap"),
    ("native", "--tp 4 --moe-dense-tp-size 2"),
    ("native", "--tp 4 --moe-dense-tp-size 1"),
    ("hybrid", "--tp 2 --quantization fp8"),
    ("hybrid", "--tp 2 --quantization modelopt_fp4"),
    ("hybrid", "--tp 2 --quantization modelopt_mixed"),
    ("hybrid", "--tp 2 --quantization mxfp4"),
    ("hybrid", "--tp 2 --quantization unquant"),
    ("hybrid", "--tp 2 --speculative-algorithm NEXTN --speculative-num-steps 1"),
    ("hybrid", "--tp 2 --speculative-algorithm NGRAM"),
    ("hybrid", "--tp 2 --speculative-algorithm EAGLE3"),
    ("hybrid", "--tp 4 --moe-a2a-backend flashinfer_megamoe"),
    ("native", "--tp 4 --moe-runner-backend flashinfer_megamoe"),
    ("hybrid", "--tp 2 --dp-size 3"),
    ("hybrid", "--tp 4 --ep-size 8"),
    ("hybrid", "--tp 2 --dtype float16"),
    ("native", "--tp 2 --dtype float16"),
    ("hybrid", "--tp 2 --moe-runner-back marlin"),
    ("hybrid", "--tp 2 --tp 4"),
    ("hybrid", "--tp=4"),
    ("hybrid", "--tp 4 --attn-cp-size 2"),
    ("hybrid eagle", "--tp 2 --enable-memory-saver"),
    ("hybrid", "--tp 2 --enable-symm-mem"),
    ("hybrid", "--tp 2 --enable-hierarchical-cache"),
    ("hybrid eagle", "--tp 2 --speculative-draft-model-quantization fp8"),
    ("hybrid eagle", "--tp 2 --speculative-draft-model-quantization unquant"),
    ("hybrid eagle", "--tp 2 --speculative-draft-model-quantization modelopt_fp4"),
    ("native eagle", "--tp 2 --speculative-draft-model-quantization modelopt_fp4"),
    ("native", "--tp 2 --offload-group-size 2 --offload-num-in-group 1 --moe-runner-backend sm120_triton"),
    ("hybrid", "--tp 2 --enable-lora --lora-target-modules all"),
    ("hybrid", "--tp 2 --enable-lora --lora-target-modules q_b_proj"),
    ("hybrid", "--tp 2 --speculative-algorithm EAGLE"),
    ("hybrid eagle", "--tp 2 --speculative-eagle-topk 4"),
    ("native", "--tp 2 --enforce-shared-experts-fusion"),
    ("native", "--tp 2 --disable-shared-experts-fusion"),
    ("hybrid eagle", "--tp 2 --speculative-draft-load-format dummy"),
    ("hybrid dspark on", "--tp 4 --ep-size 4"),
    ("hybrid dspark on", "--tp 4 --ep-size 2"),
    ("native dspark on", "--tp 2 --speculative-moe-runner-backend marlin"),
    ("native dspark on", "--tp 4 --ep-size 2 --speculative-moe-runner-backend marlin"),
    ("native dspark", "--tp 2 --speculative-algorithm DSPARK"),
    ("native", "--tp 2 --speculative-algorithm DSPARK"),
    ("fp8 eagle", "--tp 2"),
    ("fp8", "--tp 2 --moe-runner-backend sm120_triton"),
    ("fp8", "--tp 2 --moe-runner-backend deep_gemm"),
    ("native", "--tp 2 --moe-runner-backend deep_gemm"),
    ("native eagle", "--tp 2 --speculative-moe-runner-backend triton"),
    ("hybrid eagle", "--tp 2 --speculative-moe-runner-backend flashinfer_mxfp4"),
    ("hybrid", "--tp 3"),
    ("hybrid", "--tp 0"),
    ("hybrid", "--tp 2 --ep-size 3"),
    ("hybrid", "--tp 2 --context-length 4096 --max-total-tokens 65536 --page-size 256"),
    ("hybrid", "--tp 2 --kv-cache-dtype bfloat16"),
    ("hybrid", "--tp 2 --chunked-prefill-size -1 --disable-radix-cache"),
    ("hybrid", "--tp 4 --moe-dp-size 2"),
    ("hybrid", "--tp 2 --moe-runner-backend triton"),
    ("native", "--tp 2 --moe-runner-backend flashinfer_cutlass"),
    ("native", "--tp 16 --ep-size 16"),
]


def given(name, flags):
    model = name.removesuffix(" eagle").removesuffix(" on")
    drafts = EAGLE if name.endswith(" eagle") else DSPARK if name.endswith(" on") else []
    return model, [*drafts, *flags.split()], {}


def drawn(dice):
    """A launch of legal flags; what they make together may be anything."""
    model = dice.choice(list(MODELS))
    tp = dice.choice((1, 2, 4, 8))
    flags = ["--tp", str(tp)]
    runners = ("sm120_triton", "flashinfer_cutlass", "marlin", "flashinfer_mxfp4", "auto", "deep_gemm")
    choices = [
        ["--ep-size", str(dice.choice([n for n in (1, 2, 4, 8) if n <= tp]))],
        [TARGET_FLAG, dice.choice(runners)],
        [*DP, str(dice.choice([n for n in (1, 2, 4, 8) if n <= tp]))],
        [A2A, dice.choice(("none", "flashinfer", "deepep"))],
        ["--speculative-moe-a2a-backend", dice.choice(("none", "deepep"))],
        ["--quantization", dice.choice(("fp8", "modelopt_fp4"))],
        ["--kv-cache-dtype", dice.choice(("auto", "fp8_e4m3", "bfloat16"))],
        ["--load-format", dice.choice(("auto", "dummy", "safetensors", "sharded_state"))],
        ["--chunked-prefill-size", dice.choice(("2048", "8192", "-1"))],
        ["--mem-fraction-static", dice.choice(("0.7", "0.9"))],
        ["--disaggregation-mode", dice.choice(("prefill", "decode"))],
        ["--enable-memory-saver"],
        ["--enable-metrics"],
        ["--disable-cuda-graph"],
        ["--disable-radix-cache"],
        ["--enable-deterministic-inference"],
        ["--disable-custom-all-reduce"],
        ["--cpu-offload-gb", "2"],
        ["--dtype", dice.choice(("auto", "bfloat16", "float16"))],
        ["--max-running-requests", "32"],
        ["--enable-eplb"],
        ["--moe-dense-tp-size", "1"],
    ]
    for choice in dice.sample(choices, dice.randint(1, 6)):
        flags += choice
    if dice.random() < 0.6:
        flags += DSPARK if "dspark" in model else EAGLE
        flags += [DRAFT_FLAG, dice.choice(runners[:4])] if dice.random() < 0.4 else []
    variables = {"SGLANG_SM120_TARGET_MOE": ("sm120_triton", "marlin"), "SGLANG_SM120_DRAFT_MOE": ("marlin", "auto")}
    env = {name: dice.choice(values) for name, values in variables.items() if dice.random() < 0.15}
    return model, flags, env | ({"SGLANG_SM120": "0"} if dice.random() < 0.05 else {})


DICE = random.Random(SEED)
LAUNCHES = [given(*odd) for odd in ODD] + [drawn(DICE) for _ in range(DRAWN)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    models = {name: str(headers_only.write(root / name, *kinds)) for name, kinds in MODELS.items()}
    launches = [{"model": models[model], "flags": flags, "env": env} for model, flags, env in LAUNCHES]
    request = json.dumps({"arch": "sm120", "launches": launches})
    done = run(sys.executable, CHILDREN / "launch_and_plan.py", input=request, timeout=1800)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


def disagreement(answer):
    plan, launch = answer["plan"], answer["launch"]
    if plan["error"] is None and launch["error"] is None:
        same = (plan["target"], plan["draft"]) == (launch["target"], launch["draft"])
        return None if same else f"plan {plan}, launch {launch}"
    if plan["error"] is None:
        return f"plan goes on, the launch ends: {launch['error']}"
    if launch["error"] is None and not any(reason in plan["error"] for reason in LATER):
        return f"the launch goes on, plan stops: {plan['error']}"
    return None


@pytest.mark.parametrize("number", range(len(LAUNCHES)), ids=lambda n: f"{n} {' '.join(LAUNCHES[n][1])[:60]}")
def test_plan_and_launch_agree(answers, number):
    assert disagreement(answers[number]) is None, LAUNCHES[number]


def test_the_launches_are_worth_it(answers):
    """Enough of them go on, enough stop, and every method of the overlay is among them."""
    on = [a["launch"] for a in answers if a["launch"]["error"] is None]
    assert min(len(on), len(answers) - len(on)) > 25
    methods = {a[role] for a in on for role in ("target", "draft")}
    assert methods >= {"Sm120Nvfp4MoEMethod", "Sm120Mxfp4MoEMethod", "ModelOptNvFp4FusedMoEMethod", "Fp8MoEMethod"}
