"""What the documents name exists: links, files, environment variables, commands, flags, and upstream's messages."""

import ast
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, anchors, blocks, code_spans, links
from helpers import run

from sglang_sm120 import cli, settings
from sglang_sm120.patches import PATCHES

RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.sh"))
PROGRAMS = [ROOT / name for name in ("benchmarks/e2e/run.py", "scripts/docs.py", "scripts/machine_code/report.py")]
OTHER_FILES = [*RECIPES, ROOT / "Dockerfile", ROOT / "compose.yaml"]
OVERLAY = ROOT / "overlay" / "sglang_sm120"
TROUBLES = (ROOT / "docs" / "TROUBLESHOOTING.md").read_text(encoding="utf-8")


@cache
def package(name):
    return Path(importlib.util.find_spec(name).submodule_search_locations[0])


def ids(paths):
    return [p.name for p in paths]


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_links_resolve(document):
    for link in links(document):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids(DOCUMENTS))
def test_files_exist(document):
    for span in code_spans(document):
        if re.fullmatch(r"(\./)?(scripts|docs|overlay|patches|kernels|tests|benchmarks)(/[\w.-]+)+/?", span):
            assert (ROOT / span).exists(), span
        elif re.fullmatch(r"(moe|patching|upstream|checkpoint|commands)/[\w/.-]*", span):
            assert (OVERLAY / span).exists(), span
        elif re.fullmatch(r"(fp4_moe|weights|host|device)/[\w/.*-]*", span):
            kernel = ROOT / "kernels" / "sm120" / "fp4_moe"
            assert list(kernel.glob(span.removeprefix("fp4_moe/") or "*")), span


def names(pattern, paths):
    """What the pattern finds in the files."""
    return {name for path in paths for name in re.findall(pattern, path.read_text(encoding="utf-8"))}


def test_environment_variables_exist():
    found = names(r"\b(?:SGLANG|NCCL|GLOO)_[A-Z0-9_]*[A-Z0-9]\b", DOCUMENTS + OTHER_FILES)
    ours = {v.name for v in settings.VARIABLES} | {"SGLANG_SM120_HOME", "SGLANG_IMAGE"}
    nccl = {
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "NCCL_P2P_DISABLE",
        "NCCL_IB_DISABLE",
    }  # NVIDIA's and Gloo's documents
    theirs = run("grep", "-rhoE", "--include=*.py", r"SGLANG_[A-Z0-9_]+", package("sglang") / "srt").stdout.split()
    assert found >= {"SGLANG_SM120", "SGLANG_PLUGINS", "SGLANG_ENABLE_JIT_DEEPGEMM", "NCCL_P2P_DISABLE"}
    assert "SGLANG_SM120_HOME" in (ROOT / "scripts" / "env" / "environment.sh").read_text(encoding="utf-8")
    assert found - ours - nccl - set(theirs) == set()


def actions(parser):
    return [a for a in parser._actions if a.dest != "help"]


def test_commands_exist():
    (commands,) = [a.choices for a in actions(cli.parser()) if a.choices]
    found = set()
    for document in DOCUMENTS:
        texts = code_spans(document) + [c for b in blocks() if b.document == document.name for c in b.commands]
        found |= {w for text in texts for w in re.findall(r"sglang-sm120 ([a-z]\w*)", text)}
    assert found == set(commands)


@cache
def known_flags():
    """Flags of SGLang by its field tables and literal registrations, ours, the recipes', and other programs'."""
    srt = package("sglang") / "srt"
    fields = "\n".join(p.read_text(encoding="utf-8") for p in (srt / "arg_groups" / "fields").glob("*.py"))
    flags = {"--" + name.replace("_", "-") for name in re.findall(r"^    (\w+):", fields, re.M)}
    sources = [srt / "server_args.py", *(srt / "arg_groups").rglob("*.py")]
    flags |= {f for p in sources for f in re.findall(r'"(--[\w-]+)"', p.read_text(encoding="utf-8"))}
    (commands,) = [a.choices for a in actions(cli.parser()) if a.choices]
    for parser in [cli.parser(), *commands.values()]:
        flags |= {o for a in parser._actions for o in a.option_strings}
    flags |= names(r"(?m)^ {2,6}(?:-h \| )?(--[\w-]+)\)", RECIPES)
    flags |= names(r'add_argument\("(--[\w-]+)"', PROGRAMS)
    router = {"--pd-disaggregation", "--prefill", "--decode", "--worker-startup-timeout-secs"}  # sglang-router 0.3.2
    others = {
        "--volumes",
        "--shm-size",
        "--force-reinstall",
        "--no-deps",
        "--no-cache-dir",
        "--wheel-dir",
        "--build-arg",
        "--from",
        "--check",
    }
    return flags | router | others | {"--tp", "--speculative-draft-model-path"}


@pytest.mark.parametrize("document", DOCUMENTS + OTHER_FILES, ids=ids(DOCUMENTS + OTHER_FILES))
def test_flags_exist(document):
    text = document.read_text(encoding="utf-8")
    assert set(re.findall(r"(?<![\w<!-])--[a-z][\w-]+(?!-->)", text)) <= known_flags()


def strings(path):
    """Every string that a Python file builds, with its placeholders left out, or a C++ file as a whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return re.sub(r'"\s*(?:<<\s*\w+\s*(?:<<)?)?\s*"', "", text)
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            found.append("".join(v.value for v in node.values if isinstance(v, ast.Constant)))
    return "\n".join(found)


SRT = "sglang/srt"
UPSTREAM = [
    ("flashinfer/data/csrc/trtllm_batched_gemm_runner.cu", "cubin manifest contains no kernels runnable on sm"),
    ("flashinfer/data/csrc/trtllm_batched_gemm_runner.cu", "currently ships cubins for sm100, sm103 and sm107."),
    ("flashinfer/data/csrc/trtllm_batched_gemm_runner.cu", "Error occurred when running GEMM!"),
    (f"{SRT}/arg_groups/model_overrides/deepseek_v4.py", "Use flashinfer_trtllm_routed as MoE runner backend for "),
    (f"{SRT}/arg_groups/model_overrides/deepseek_v4.py", " hybrid FP8+NVFP4 checkpoint."),
    (f"{SRT}/layers/moe/moe_runner/triton_utils/fused_moe.py", "Hidden size mismatch"),
    (f"{SRT}/layers/quantization/mxfp4_flashinfer_cutlass_moe.py", "_size_per_partition to be multiples of 128"),
    (f"{SRT}/layers/quantization/modelopt_quant.py", "Unsupported moe_runner_backend for NVFP4 MoE"),
    (f"{SRT}/layers/quantization/modelopt_quant.py", "moe_runner_backend=cutlass is not supported for NVFP4 MoE."),
    (f"{SRT}/layers/quantization/modelopt_quant.py", "quantization with the selected MoE backend."),
    (f"{SRT}/arg_groups/moe_hook.py", "FlashInfer Cutlass MOE supports only: 'modelopt_fp4'"),
    (f"{SRT}/arg_groups/moe_hook.py", "The expert parallel size must be 1 or the same as the tensor parallel size"),
    (f"{SRT}/arg_groups/deepseek_v4_hook.py", "Only EAGLE speculative algorithm with topk == 1 is supported for "),
    (f"{SRT}/arg_groups/deepseek_v4_hook.py", "Only EAGLE and DSPARK speculative algorithms are supported for "),
    (f"{SRT}/arg_groups/speculative_hook.py", "DSpark dense speculative decoding requires setting "),
    (f"{SRT}/layers/quantization/fp8.py", "weight quantization block_n = "),
    (f"{SRT}/mem_cache/kv_cache_configurator.py", "Loaded weights leave no GPU memory for the KV cache under "),
    (f"{SRT}/distributed/device_communicators/custom_all_reduce_utils.py", "on more than two PCIe-only GPUs."),
    (f"{SRT}/plugins/__init__.py", "Failed to execute general plugin: "),
]  # fmt: skip


@pytest.mark.parametrize(("file", "fragment"), UPSTREAM, ids=[f for _, f in UPSTREAM])
def test_messages_are_upstreams_own(file, fragment):
    """Both in TROUBLESHOOTING, where a search must find it, and in the installed package."""
    top, _, rest = file.partition("/")
    assert fragment in TROUBLES
    assert fragment in strings(package(top) / rest)


def test_each_symptom_of_a_patch_is_found():
    """The code spans in the symptoms, or a remark in words that TROUBLESHOOTING has by the patch's name."""
    for patch in PATCHES:
        spans = [s for s in re.findall(r"`([^`]+)`", patch.symptom) if not s.startswith("--")]
        literal = [s for s in spans if s in " ".join(TROUBLES.split())]
        assert literal or patch.name in TROUBLES, patch.name


OURS = [
    (OVERLAY / "moe/refusals.py", " cannot run here on SM120: "),
    (OVERLAY / "moe/known_kernels.py", "its kernels are built for "),
    (OVERLAY / "patching/records.py", " was not proven on the installed SGLang"),
    (
        OVERLAY / "patching/replace.py",
        "Two overlays cannot both own it; remove one, or leave ours out with SGLANG_SM120_DISABLE=",
    ),
    (OVERLAY / "patching/still_reached.py", "which does not call what was there before"),
    (OVERLAY / "commands/doctor/conflicts.py", " the installed "),
    (OVERLAY / "commands/plan/flag_values.py", "; expected a divisor of "),
    (OVERLAY / "patching/still_reached.py", "the model's quantization is configured by "),
    (OVERLAY / "patching/ranks_agree.py", "; make their hosts the same"),
    (OVERLAY / "patching/ranks_agree.py", " s which overlay it runs: it may have ended "),
    (OVERLAY / "settings.py", ", or unset for the default"),
    (OVERLAY / "moe/life_cycle.py", "the checkpoint did not deliver "),
    (OVERLAY / "moe/life_cycle.py", "has values that were never loaded or are NaN"),
    (OVERLAY / "moe/base.py", "'s experts"),
    (OVERLAY / "moe/life_cycle.py", "was moved after"),
    (OVERLAY / "moe/mxfp4_method.py", "have scales outside"),
    (OVERLAY / "moe/life_cycle.py", "the expert weights are in no known layout"),
    (OVERLAY / "moe/life_cycle.py", "used before process_weights_after_loading"),
    (OVERLAY / "moe/life_cycle.py", "which no other server can read"),
    (ROOT / "patches" / "deepseek_v4_gate.py", "cannot follow; leave "),
    (OVERLAY / "moe/base.py", "needs --dtype bfloat16"),
    (OVERLAY / "moe/stored_values.py", "is stored as "),
    (OVERLAY / "kernels/sm120/fp4_moe/weights/checks.py", "expected e4m3 from 0 to 448"),
    (OVERLAY / "kernels/sm120/fp4_moe/weights/checks.py", "expected a finite multiplier above 0 and up to 2**100"),
    (OVERLAY / "checkpoint/expert_formats.py", "SGLang reads MXFP4 scales named scale or weight_scale_inv"),
    (OVERLAY / "checkpoint/inspection.py", "but the routed experts are MXFP4 by their scales"),
    (OVERLAY / "checkpoint/headers.py", "is cut short or damaged; download it again"),
    (OVERLAY / "checkpoint/headers.py", "is cut short: "),
    (OVERLAY / "checkpoint/headers.py", "its header promises "),
    (OVERLAY / "checkpoint/headers.py", " is absent, which "),
    (OVERLAY / "checkpoint/survey.py", "places there; download it again"),
    (OVERLAY / "checkpoint/inspection.py", "and SGLang would read them as "),
    (OVERLAY / "checkpoint/completeness.py", "has no routed experts; "),
    (OVERLAY / "checkpoint/completeness.py", "which most of its experts have"),
    (OVERLAY / "checkpoint/completeness.py", "that are no powers of two, as MXFP4's are"),
    (OVERLAY / "checkpoint/drafts.py", "no NextN layer for "),
    (OVERLAY / "checkpoint/drafts.py", "no DSpark stages: mtp.0.main_proj.weight is not there"),
    (OVERLAY / "moe/refusals.py", "stores scales as "),
    (OVERLAY / "moe/refusals.py", "no input_scale for them"),
    (OVERLAY / "plugin.py", "the visible GPUs differ; routing MoE layers for "),
    (OVERLAY / "commands/plan/command.py", "memory: the weights take at least "),
    (OVERLAY / "moe/refusals.py", " brings a dispatch of its own, which "),
    (OVERLAY / "commands/plan/config_file.py", "SGLang reads no file from "),
    (OVERLAY / "commands/findings/links.py", "the IOMMU translates for the GPUs "),
    (OVERLAY / "commands/findings/links.py", "sends GPU-to-GPU traffic through the root complex"),
    (OVERLAY / "commands/findings/links.py", "does not reach SGLang's own all-reduce"),
    (OVERLAY / "commands/findings/unified_memory.py", "GiB of about 119"),
    (OVERLAY / "commands/findings/unified_memory.py", "GiB are available"),
    (OVERLAY / "commands/findings/unified_memory.py", "/dev/shm may take "),
    (OVERLAY / "commands/plan/other_kernels.py", "this SGLang's DSpark draft multiplies with it"),
    (OVERLAY / "commands/plan/complaints.py", "SGLang cannot use the home directory ("),
    (OVERLAY / "commands/doctor/jit_caches.py", " old: a killed compile left it, and the next one waits for it"),
    (OVERLAY / "commands/doctor/jit_caches.py", " is held by process "),
    (OVERLAY / "kernels" / "sm120" / "fp4_moe" / "host" / "tuning.py", "Ignoring the tile table "),
    (OVERLAY / "kernels" / "sm120" / "fp4_moe" / "runtime.py", " after the warm-up, which did not foresee "),
    (OVERLAY / "kernels/sm120/tile_tables.py", "it is for "),
    (OVERLAY / "schemas.py", "which wrote it,"),
    (
        ROOT / "patches" / "cutlass_swiglu_limit.py",
        "the installed FlashInfer's cutlass_fused_moe takes no swiglu_limit",
    ),
    (OVERLAY / "commands/plan/ineffective_settings.py", " has no effect: this SGLang sets "),
    (ROOT / "patches" / "deepseek_v4_gate.py", "builds the draft in processes that load no plugins"),
    (ROOT / "setup.py", "this source tree lost its symbolic links (zip archives do that)."),
]


@pytest.mark.parametrize(("file", "fragment"), OURS, ids=[f for _, f in OURS])
def test_messages_are_our_own(file, fragment):
    assert fragment.strip() in TROUBLES
    assert fragment in strings(file)


def test_no_speed_is_claimed():
    """Times come from receipts, between markers; nothing else in the pages for users has one."""
    for name in ("README.md", "docs/OPERATING.md", "docs/PROOF.md", "docs/MEMORY.md", "docs/TROUBLESHOOTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        said = re.sub(r"<!-- figures -->.*<!-- /figures -->", "", text, flags=re.S)
        assert not re.search(r"\d\s*(?:tok/s|tokens/s|tokens per second|µs|us\b|ms\b)|\dx faster", said), name
