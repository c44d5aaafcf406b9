"""The launches that are compared: one server each, those of a group at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

# Small pools, so that several servers fit on one GPU.
CHUNK = 2048  # tokens of a prefill
COMMON = ("--context-length", "8192", "--max-total-tokens", "65536")
COMMON += ("--mem-fraction-static", "0.4", "--max-running-requests", "64", "--chunked-prefill-size", str(CHUNK))
COMMON += ("--watchdog-timeout", "1200", "--cuda-graph-bs-decode", "1", "2", "4", "8", "16", "32", "64")


def eagle(steps: int) -> tuple[str, ...]:
    """Speculation with the checkpoint's own draft, a chain of `steps` tokens."""
    chain = ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1")
    return ("--speculative-algorithm", "EAGLE", *chain, "--speculative-num-draft-tokens", str(steps + 1))


EAGLE = eagle(1)
MARLIN = ("--moe-runner-backend", "marlin")
TP2, EP2 = ("--tp-size", "2"), ("--ep-size", "2")
DUMMY = ("--load-format", "dummy")
IDS_ONLY, TEXT = ("--skip-tokenizer-init",), ("--enable-metrics",)
ASSUME = {"SGLANG_SM120_ASSUME": "sm120"}
OFF, OURS = {"SGLANG_SM120": "0"}, ASSUME | {"SGLANG_SM120_DRAFT_MOE": "sm120_triton"}
# Where SGLang's flag cannot name `sm120_triton`, the overlay's variables do.
OURS_TOO = OURS | {"SGLANG_SM120_TARGET_MOE": "sm120_triton"}
# On an SM90: `sm120_triton`'s kernels as Triton compiles them for an RTX PRO 6000.
CODE = str(Path(__file__).resolve().parents[1] / "sm120_code_plugin")
SM120_CODE = {"E2E_SM120_CODE": "sm_120a:188"}
EAGER = ("--disable-cuda-graph",)
# How stock SGLang ends on the MXFP4 draft of a hybrid checkpoint where there is no Blackwell GPU.
NO_QUANTIZER = "ImportError: cannot import name 'flashinfer_mxfp8_quantize'"
DSPARK = ("--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "4")
STEADY, RISING = ((8.0, 60.0),), ((4.0, 45.0), (8.0, 45.0), (16.0, 45.0), (32.0, 45.0))
# SGLang compiles two kernels of its hyper-connections for each of 18 classes of prefill sizes, which takes half a
# minute each where no cache has them; servers under load do it before they are ready.
ALL_SIZES = {"SGLANG_DSV4_MHC_PREWARM": "1"}
# Room for the windows of more than ten requests at once.
WINDOWS = ("--swa-full-tokens-ratio", "0.5")


@dataclass(frozen=True)
class Launch:
    """One server.

    Attributes:
        name: of its log and of its entry in the results.
        kind: of checkpoint, as in `scripts/checkpoints/make.py`, with `-dspark` behind it for that draft, or with the
            name of a damage in `faults.py`.
        says: what it is, in a few words.
        seed: of the checkpoint's numbers.
        group: launches that a run starts together.
        serves: whether it is expected to become ready.
        ends_with: for one that is not, a pattern that its log must hold.
        env: variables of the overlay.
        flags: of SGLang, beside `COMMON`.
        gpus: numbers among the GPUs that the run may see.
        loaded: whether it gets the short loads too.
        bench: request rates of SGLang's own serving benchmark, and the seconds of each.
        updated: whether other weights are loaded into it.
        killed: whether one of its scheduler processes is killed under load in the end.
        texts_of: the launch whose greedy texts this one must repeat; either is asked `determinism.py`'s questions.
        text: whether it takes text and shows metrics, and `sglang-sm120 verify` asks it.
    """

    name: str
    kind: str
    says: str
    group: str = "main"
    serves: bool = True
    ends_with: str = ""
    env: dict[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = MARLIN + EAGLE
    gpus: str = "0"
    loaded: bool = False
    bench: tuple[tuple[float, float], ...] = ()
    seed: int = 0
    updated: bool = False
    killed: bool = False
    texts_of: str = ""
    text: bool = False

    def arguments(self, model: str, port: int, *more: str) -> list[str]:
        """The command line after the interpreter."""
        where = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
        return ["-m", "sglang.launch_server", *where, *COMMON, *(TEXT if self.text else IDS_ONLY), *self.flags, *more]


MAIN = (
    Launch(
        "stock-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay off", serves=False, env=OFF,
        ends_with=NO_QUANTIZER,
    ),
    Launch("ours-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay on", env=ASSUME, loaded=True),
    Launch(
        "stock-mxfp4", "mxfp4", "native MXFP4, overlay off: Marlin for target and draft", env=OFF, loaded=True,
    ),
    Launch(
        "ours-mxfp4", "mxfp4", "native MXFP4, overlay on: Marlin for the target, sm120_triton for the draft", env=OURS,
        loaded=True,
    ),
)  # fmt: skip
MORE = (
    Launch("stock-hybrid-plain", "hybrid-nvfp4", "hybrid, overlay off, no speculation", "more", env=OFF, flags=MARLIN),
    Launch(
        "ours-hybrid-eager", "hybrid-nvfp4", "hybrid, overlay on, no CUDA graphs", "more", env=ASSUME,
        flags=MARLIN + EAGLE + EAGER, text=True,
    ),
    Launch(
        "stock-mxfp4-3", "mxfp4", "as stock-mxfp4, with 3 draft steps", "more", env=OFF, flags=MARLIN + eagle(3),
        text=True,
    ),
    Launch(
        "ours-mxfp4-3", "mxfp4", "as ours-mxfp4, with 3 draft steps", "more", env=OURS, flags=MARLIN + eagle(3),
        text=True,
    ),
    Launch(
        "ours-mxfp4-w4a8", "mxfp4", "as ours-mxfp4, with MXFP8 activations in the draft's experts", "more",
        env=OURS | {"SGLANG_SM120_ACTIVATION": "mxfp8"},
    ),
)  # fmt: skip
# Beside each other on two GPUs: those under load, one on either; the others only answer.
LOAD = (
    Launch(
        "load-stock-mxfp4", "mxfp4", "native MXFP4, overlay off: Marlin for target and draft", "load",
        env=OFF | ALL_SIZES, flags=MARLIN + EAGLE + WINDOWS, gpus="1", text=True, bench=RISING,
    ),
    Launch(
        "load-ours-mxfp4", "mxfp4", "native MXFP4, overlay on: sm120_triton for target and draft", "load",
        env=OURS_TOO | ALL_SIZES, flags=EAGLE + WINDOWS, text=True, bench=RISING, killed=True,
    ),
    Launch(
        "ours-hybrid-marlin", "hybrid-nvfp4", "hybrid, overlay on, upstream's Marlin for the draft", "load",
        env=ASSUME | {"SGLANG_SM120_DRAFT_MOE": "marlin"}, gpus="1",
    ),
    Launch(
        "stock-mxfp4-5", "mxfp4", "overlay off, 5 draft steps", "load", env=OFF, flags=MARLIN + eagle(5), gpus="1"
    ),
    Launch(
        "ours-mxfp4-5", "mxfp4", "sm120_triton for target and draft, 5 draft steps", "load", env=OURS_TOO,
        flags=eagle(5),
    ),
)  # fmt: skip
# The other formats and the other draft, beside the group `load` on the same two GPUs.
KINDS = (
    Launch(
        "ours-fp8", "fp8", "FP8 experts in target and draft, overlay on, no runner asked for", "kinds", env=ASSUME,
        flags=EAGLE, text=True,
    ),
    Launch(
        "stock-hybrid-dspark", "hybrid-nvfp4-dspark", "hybrid with a DSpark draft, overlay off", "kinds", serves=False,
        env=OFF, flags=MARLIN + DSPARK, gpus="1", ends_with=NO_QUANTIZER,
    ),
    Launch(
        "ours-hybrid-dspark", "hybrid-nvfp4-dspark", "hybrid with a DSpark draft, overlay on", "kinds", env=ASSUME,
        flags=MARLIN + DSPARK, text=True,
    ),
)  # fmt: skip
TWO = "0,1"
TWO_GPUS = (
    Launch(
        "one-gpu-mxfp4", "mxfp4", "native MXFP4 on one GPU, sm120_triton for target and draft", "two-gpus",
        env=OURS_TOO, flags=EAGLE,
    ),
    Launch(
        "tp2-stock-mxfp4", "mxfp4", "native MXFP4, TP2, overlay off: Marlin for target and draft", "two-gpus",
        env=OFF | ALL_SIZES, flags=MARLIN + EAGLE + TP2 + WINDOWS, gpus=TWO, text=True, bench=STEADY,
    ),
    Launch(
        "tp2-ours-mxfp4", "mxfp4", "native MXFP4, TP2, sm120_triton for target and draft", "two-gpus",
        env=OURS_TOO | ALL_SIZES, flags=EAGLE + TP2 + WINDOWS, gpus=TWO, text=True, bench=STEADY,
        killed=True,
    ),
    Launch(
        "tp2-hybrid", "hybrid-nvfp4", "hybrid, TP2, overlay on", "two-gpus", env=ASSUME, flags=MARLIN + EAGLE + TP2,
        gpus=TWO, text=True,
    ),
    Launch(
        "tp2-ep2-hybrid", "hybrid-nvfp4", "hybrid, TP2 with expert parallelism 2, overlay on", "two-gpus", env=ASSUME,
        flags=MARLIN + EAGLE + TP2 + EP2, gpus=TWO, text=True,
    ),
    Launch(
        "tp2-ep2-mxfp4", "mxfp4", "native MXFP4, TP2 with expert parallelism 2, sm120_triton for target and draft",
        "two-gpus", env=OURS_TOO, flags=EAGLE + TP2 + EP2, gpus=TWO,
    ),
)  # fmt: skip
# The whole hybrid on our kernels, and the same numbers served otherwise.
NVFP4 = (
    Launch(
        "nvfp4-ours", "hybrid-nvfp4", "hybrid, sm120_triton for target (NVFP4) and draft (MXFP4)", "nvfp4",
        env=OURS_TOO | ALL_SIZES, flags=EAGLE + WINDOWS, text=True, bench=((8.0, 60.0),), updated=True,
    ),
    Launch(
        "nvfp4-ours-twin", "hybrid-nvfp4", "nvfp4-ours, on the other weights", "nvfp4", env=OURS_TOO | ALL_SIZES,
        flags=EAGLE + WINDOWS, seed=1,
    ),
    Launch("nvfp4-ours-3", "hybrid-nvfp4", "the same, 3 draft steps", "nvfp4", env=OURS_TOO, flags=eagle(3)),
    Launch(
        "nvfp4-ours-dspark", "hybrid-nvfp4-dspark", "the same with a DSpark draft", "nvfp4", env=OURS_TOO,
        flags=DSPARK, text=True,
    ),
    Launch(
        "nvfp4-ours-cast", "hybrid-nvfp4-cast", "NVFP4 that is a cast of MXFP4, run as that", "nvfp4", env=OURS_TOO,
        flags=EAGLE,
    ),
    Launch(
        "nvfp4-twin", "mxfp4", "the same numbers as MXFP4 on sm120_triton, target and draft", "nvfp4", env=OURS_TOO,
        flags=EAGLE,
    ),
    Launch("nvfp4-marlin", "hybrid-nvfp4", "hybrid, Marlin for the target, our draft", "nvfp4", env=OURS),
)  # fmt: skip
# The same greedy texts with and without speculation, alone and together: what keeps them equal, step by step.
INVARIANT = OURS_TOO | {"SGLANG_SM120_BATCH_INVARIANT": "1"}
DETERMINISTIC = ("--enable-deterministic-inference",)
DETERMINISM = tuple(
    Launch(
        f"{name}-{kind.partition('-')[0]}-{steps or 'plain'}", kind,
        f"{kind}, {says}, {f'{steps} draft steps' if steps else 'no speculation'}", "determinism", env=env,
        flags=(*more, *(eagle(steps) if steps else ())), texts_of=f"{name}-{kind.partition('-')[0]}-plain", text=True,
    )
    for kind, name, says, env, more, drafts in (
        ("hybrid-nvfp4", "det", "batch-invariant experts and SGLang's flag", INVARIANT, DETERMINISTIC, (0, 1, 3)),
        ("hybrid-nvfp4", "inv", "batch-invariant experts alone", INVARIANT, (), (0, 1)),
        ("hybrid-nvfp4", "any", "neither", OURS_TOO, (), (0,)),
        ("mxfp4", "det", "batch-invariant experts and SGLang's flag", INVARIANT, DETERMINISTIC, (1,)),
    )
    for steps in drafts
)  # fmt: skip
ON_SM120_CODE = OURS_TOO | SM120_CODE | {"PYTHONPATH": CODE}
SM120 = (
    Launch(
        "own-mxfp4", "mxfp4", "native MXFP4, sm120_triton for target and draft", "sm120-code", env=OURS_TOO,
        flags=EAGLE,
    ),
    Launch("code-mxfp4", "mxfp4", "the same on SM120's code", "sm120-code", env=ON_SM120_CODE, flags=EAGLE),
    Launch(
        "own-hybrid", "hybrid-nvfp4", "hybrid, sm120_triton for target and draft", "sm120-code", env=OURS_TOO,
        flags=EAGLE,
    ),
    Launch("code-hybrid", "hybrid-nvfp4", "the same on SM120's code", "sm120-code", env=ON_SM120_CODE, flags=EAGLE),
    Launch(
        "code-mxfp4-w4a8", "mxfp4", "MXFP8 activations on SM120's code", "sm120-code",
        env=ON_SM120_CODE | {"SGLANG_SM120_ACTIVATION": "mxfp8"}, flags=EAGLE,
    ),
)  # fmt: skip
FAULTS = (
    Launch(
        "fault-corrupt-shard", "mxfp4-corrupt", "one shard cut short", "faults", serves=False, env=OURS,
        ends_with="SafetensorError: ",
    ),
    Launch(
        "fault-missing-tensor", "mxfp4-missing", "one draft expert's tensor renamed", "faults", serves=False, env=OURS,
        ends_with="the checkpoint did not deliver",
    ),
    Launch(
        "fault-wrong-value", "mxfp4", "SGLANG_SM120_DRAFT_MOE=sm120-triton", "faults", serves=False,
        env=ASSUME | {"SGLANG_SM120_DRAFT_MOE": "sm120-triton"}, ends_with="SGLANG_SM120_DRAFT_MOE",
    ),
    Launch(
        "fault-plugin-off", "hybrid-nvfp4", "restarted with SGLANG_SM120=0", "faults", serves=False, env=OFF,
        ends_with=NO_QUANTIZER,
    ),
    Launch(
        "fault-no-room", "mxfp4", "no room for compiled kernels", "faults", serves=False,
        env=OURS | {"TRITON_CACHE_DIR": "FULL"}, ends_with="No space left on device",
    ),
)  # fmt: skip
LAUNCHES = MAIN + MORE + LOAD + KINDS + NVFP4 + DETERMINISM + SM120 + TWO_GPUS + FAULTS
GROUPS = tuple(dict.fromkeys(launch.group for launch in LAUNCHES))
