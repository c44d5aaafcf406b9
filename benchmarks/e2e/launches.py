"""The launches that are compared: one server each, all on one GPU at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

# Small pools, so that several servers fit on one GPU. A prefill of up to 64 tokens keeps to few kernel shapes.
COMMON = ("--context-length", "8192", "--max-total-tokens", "32768")
COMMON += ("--mem-fraction-static", "0.4", "--max-running-requests", "16", "--chunked-prefill-size", "2048")
COMMON += ("--watchdog-timeout", "1200", "--cuda-graph-bs-decode", "1", "2", "4", "8")


def eagle(steps: int) -> tuple[str, ...]:
    """Speculation with the checkpoint's own draft, a chain of `steps` tokens."""
    chain = ("--speculative-num-steps", str(steps), "--speculative-eagle-topk", "1")
    return ("--speculative-algorithm", "EAGLE", *chain, "--speculative-num-draft-tokens", str(steps + 1))


EAGLE = eagle(1)
MARLIN = ("--moe-runner-backend", "marlin")
DUMMY = ("--load-format", "dummy")
IDS_ONLY, TEXT = ("--skip-tokenizer-init",), ("--enable-metrics",)
ASSUME = {"SGLANG_SM120_ASSUME": "sm120"}


@dataclass(frozen=True)
class Launch:
    """One server.

    Attributes:
        name: of its log and of its entry in the results.
        kind: of checkpoint, as in `scripts/make_checkpoint.py`.
        says: what it is, in a few words.
        serves: whether it is expected to become ready.
        env: variables of the overlay.
        flags: of SGLang, beside `COMMON`.
        main: whether a run starts it unless told otherwise.
        loaded: whether it gets the short loads too.
        text: whether it takes text and shows metrics, and `sglang-sm120 verify` asks it.
    """

    name: str
    kind: str
    says: str
    serves: bool = True
    env: dict[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = MARLIN + EAGLE
    main: bool = True
    loaded: bool = True
    text: bool = False

    def arguments(self, model: str, port: int, *more: str) -> list[str]:
        """The command line after the interpreter."""
        where = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
        return ["-m", "sglang.launch_server", *where, *COMMON, *(TEXT if self.text else IDS_ONLY), *self.flags, *more]


OFF, OURS = {"SGLANG_SM120": "0"}, ASSUME | {"SGLANG_SM120_DRAFT_MOE": "sm120_triton"}
EAGER = ("--disable-cuda-graph",)
LAUNCHES = (
    Launch("stock-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay off", serves=False, env=OFF),
    Launch("ours-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay on", env=ASSUME),
    Launch("stock-mxfp4", "mxfp4", "native MXFP4, overlay off: Marlin for target and draft", env=OFF),
    Launch("ours-mxfp4", "mxfp4", "native MXFP4, overlay on: Marlin for the target, ours for the draft", env=OURS),
    Launch(
        "stock-hybrid-plain", "hybrid-nvfp4", "hybrid, overlay off, no speculation", env=OFF, flags=MARLIN,
        main=False, loaded=False,
    ),
    Launch(
        "ours-hybrid-marlin", "hybrid-nvfp4", "hybrid, overlay on, upstream's Marlin for the draft",
        env=ASSUME | {"SGLANG_SM120_DRAFT_MOE": "marlin"}, main=False, loaded=False,
    ),
    Launch(
        "ours-hybrid-eager", "hybrid-nvfp4", "hybrid, overlay on, no CUDA graphs", env=ASSUME,
        flags=MARLIN + EAGLE + EAGER, main=False, loaded=False, text=True,
    ),
    Launch(
        "stock-mxfp4-3", "mxfp4", "as stock-mxfp4, with 3 draft steps", env=OFF, flags=MARLIN + eagle(3),
        main=False, text=True,
    ),
    Launch(
        "ours-mxfp4-3", "mxfp4", "as ours-mxfp4, with 3 draft steps", env=OURS, flags=MARLIN + eagle(3),
        main=False, text=True,
    ),
    Launch(
        "ours-mxfp4-w4a8", "mxfp4", "as ours-mxfp4, with MXFP8 activations in the draft's experts",
        env=OURS | {"SGLANG_SM120_ACTIVATION": "mxfp8"}, main=False, loaded=False,
    ),
)  # fmt: skip
