"""Write a small DeepSeek-V4 checkpoint with the names and dtypes of NVIDIA's hybrid FP8+NVFP4 release.

    python scripts/checkpoints/tiny.py OUT [--experts 8] [--hidden 512] [--intermediate 256] [--seed 0]

The target's routed experts are NVFP4 (U8 bytes, F8_E4M3 scales per 16, F32 scalars), the draft's (`mtp.0`) are MXFP4
(I8 bytes, F8_E8M0 scales per 32), shared experts are block FP8. It holds the embeddings and the MoE part of each block
of `make.py --small`, and `e_proj`, by which a NextN draft is known; attention tensors are left out, so it can be
planned and its MoE layers loaded, but not served.

As it is written without options it is for launches with --tp 1 or 2, with EAGLE or without. Each GPU's part of the
shared expert must be a multiple of 128 columns, the block of its FP8 weights: for --tp N give --intermediate a multiple
of N x 128. It has no DSpark draft; `make.py OUT --small --kind hybrid-nvfp4 --draft dspark` writes one.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.checkpoints import make
from scripts.checkpoints.make import Shape

SHAPE = replace(make.SMALL, kind="hybrid-nvfp4")


def _is_left_out(name: str) -> bool:
    return name.startswith(("layers.", "mtp.", "hc_")) and ".ffn" not in name and ".e_proj." not in name


def write(directory: Path, shape: Shape = SHAPE) -> Path:
    """Write the checkpoint, the same bytes for the same shape, and return its directory."""
    parts = [[tensor for tensor in part if not _is_left_out(tensor.name)] for part in make.shards(shape)]
    return make.write_tensors(directory, shape, parts)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    for name in ("experts", "hidden", "intermediate", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(SHAPE, name))
    arguments = vars(parser.parse_args())
    try:
        directory = write(arguments.pop("out"), replace(SHAPE, **arguments))
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"{directory}: {sum(f.stat().st_size for f in directory.iterdir()) / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
