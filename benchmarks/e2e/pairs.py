"""Which servers of a run are compared in docs/E2E.md, and the question that it answers; receipts hold all pairs."""

from __future__ import annotations

PAIRS = (
    ("stock-mxfp4", "ours-mxfp4", "upstream's Marlin draft and ours"),
    ("stock-mxfp4-3", "ours-mxfp4-3", "the same, 3 draft steps"),
    ("ours-mxfp4", "ours-mxfp4-w4a8", "bf16 and MXFP8 activations in the draft"),
    ("ours-hybrid", "ours-hybrid-marlin", "our draft and upstream's Marlin draft"),
    ("ours-hybrid", "ours-hybrid-eager", "with CUDA graphs and without"),
    ("ours-hybrid", "stock-hybrid-plain", "with our draft and without speculation"),
    ("ours-hybrid", "stock-mxfp4", "NVFP4 target and MXFP4 target, the same numbers"),
    ("stock-mxfp4", "stock-mxfp4-3", "stock alone: 2 and 4 tokens verified at once"),
    ("one-gpu-mxfp4", "tp2-ours-mxfp4", "one GPU and TP2, sm120_triton for target and draft"),
    ("tp2-stock-mxfp4", "tp2-ours-mxfp4", "TP2: upstream's Marlin and sm120_triton for target and draft"),
    ("one-gpu-mxfp4", "tp2-stock-mxfp4", "one GPU with sm120_triton and TP2 with Marlin"),
    ("tp2-ours-mxfp4", "tp2-ep2-mxfp4", "TP2 without and with expert parallelism"),
    ("tp2-hybrid", "tp2-ours-mxfp4", "TP2: NVFP4 target and MXFP4 target, the same numbers"),
    ("load-stock-mxfp4", "load-ours-mxfp4", "upstream's Marlin and sm120_triton for target and draft"),
    ("nvfp4-ours", "nvfp4-twin", "NVFP4 target and MXFP4 target on sm120_triton, the same numbers"),
    ("nvfp4-ours", "nvfp4-marlin", "NVFP4 target on sm120_triton and on Marlin"),
    ("nvfp4-ours", "nvfp4-ours-3", "2 and 4 tokens verified at once"),
    ("nvfp4-ours-cast", "nvfp4-twin", "a cast of MXFP4 and the MXFP4 that it is"),
    ("stock-mxfp4-5", "ours-mxfp4-5", "the same, 5 draft steps"),
    ("load-ours-mxfp4", "ours-mxfp4-5", "sm120_triton alone: 2 and 6 tokens verified at once"),
    ("load-ours-mxfp4", "ours-fp8", "MXFP4 experts on sm120_triton and FP8 experts on Triton, the same numbers"),
    ("own-mxfp4", "code-mxfp4", "sm120_triton as SM90's code and as SM120's"),
    ("own-hybrid", "code-hybrid", "the same, hybrid checkpoint"),
    ("ours-hybrid-marlin", "ours-hybrid-dspark", "EAGLE and DSpark: targets that differ in one row of the head"),
)
