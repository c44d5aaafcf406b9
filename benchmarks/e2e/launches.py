"""The launches that are compared: one server each, all on one GPU at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

# Small pools, so that several servers fit on one GPU. A prefill of up to 64 tokens keeps to few kernel shapes.
COMMON = ("--skip-tokenizer-init", "--context-length", "8192", "--max-total-tokens", "32768")
COMMON += ("--mem-fraction-static", "0.4", "--max-running-requests", "16", "--chunked-prefill-size", "2048")
COMMON += ("--watchdog-timeout", "1200", "--cuda-graph-bs-decode", "1", "2", "4", "8")
EAGLE = ("--speculative-algorithm", "EAGLE", "--speculative-num-steps", "1")
EAGLE += ("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "2")
MARLIN = ("--moe-runner-backend", "marlin")
DUMMY = ("--load-format", "dummy")
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
    """

    name: str
    kind: str
    says: str
    serves: bool = True
    env: dict[str, str] = field(default_factory=dict, hash=False)
    flags: tuple[str, ...] = MARLIN + EAGLE

    def arguments(self, model: str, port: int, *more: str) -> list[str]:
        """The command line after the interpreter."""
        where = ["--model-path", model, "--host", "127.0.0.1", "--port", str(port)]
        return ["-m", "sglang.launch_server", *where, *COMMON, *self.flags, *more]


LAUNCHES = (
    Launch("stock-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay off", serves=False, env={"SGLANG_SM120": "0"}),
    Launch("ours-hybrid", "hybrid-nvfp4", "hybrid FP8+NVFP4, overlay on", env=ASSUME),
    Launch("stock-mxfp4", "mxfp4", "native MXFP4, overlay off: Marlin for target and draft", env={"SGLANG_SM120": "0"}),
    Launch(
        "ours-mxfp4",
        "mxfp4",
        "native MXFP4, overlay on: Marlin for the target, sm120_triton for the draft",
        env=ASSUME | {"SGLANG_SM120_DRAFT_MOE": "sm120_triton"},
    ),
)
