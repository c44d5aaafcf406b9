"""The mixture-of-experts layer in float64 plain torch: what every kernel here is held to.

MXFP4 is that of the OCP Microscaling Formats (MX) Specification v1.0: e2m1 elements, e8m0 scales, blocks of 32. NVFP4
is that of NVIDIA's ModelOpt checkpoints: e2m1 elements, e4m3 scales, blocks of 16, and a float32 multiplier for each
expert's matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def scale_to_float64(scale: torch.Tensor) -> torch.Tensor:
    """2**(byte - 127), NaN for byte 255; float32 scales are taken as they are."""
    if scale.dtype == torch.float32:
        return scale.to(torch.float64)
    byte = scale.view(torch.uint8).to(torch.float64)
    return torch.where(byte == 255, torch.nan, torch.exp2(byte - 127))


def dequantize(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes uint8|int8 [..., K/2] (low nibble = even k) and scales [..., K/32] -> float64 [..., K]."""
    return _values(codes) * scale_to_float64(scale).repeat_interleave(32, dim=-1)


def dequantize_nvfp4(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Codes uint8|int8 [..., K/2] and e4m3 scales uint8|float8_e4m3fn [..., K/16] -> float64 [..., K], no global."""
    factor = scale.view(torch.uint8).view(torch.float8_e4m3fn).to(torch.float64)
    return _values(codes) * factor.repeat_interleave(16, dim=-1)


def _values(codes: torch.Tensor) -> torch.Tensor:
    table = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=codes.device)
    codes = codes.view(torch.uint8).to(torch.int64)
    return torch.stack([table[codes & 15], table[codes >> 4]], dim=-1).flatten(-2)


def quantize_mxfp8(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] rounded to MXFP8 and back, float32: e4m3 elements, one e8m0 scale per 32.

    The scale is the smallest power of two that keeps the block's largest magnitude within e4m3's 448. Blocks of zeros
    stay zero; a block with NaN or Inf becomes NaN.
    """
    blocks = x.to(torch.float32).unflatten(-1, (-1, 32))
    largest = blocks.abs().amax(dim=-1, keepdim=True)
    exponent = scale_exponent(largest)
    scale = torch.exp2(exponent.to(torch.float64))
    rounded = (blocks.to(torch.float64) / scale).to(torch.float32).to(torch.float8_e4m3fn).to(torch.float64)
    rounded = torch.where(torch.isfinite(largest), rounded * scale, torch.nan)
    return rounded.to(torch.float32).flatten(-2)


def scale_exponent(largest: torch.Tensor) -> torch.Tensor:
    """int32 ceil(log2(largest / 448)) clamped to -126 .. 112, from the bits of the float32 `largest` (so exact)."""
    bits = largest.to(torch.float32).view(torch.int32)
    # 448 = 1.75 * 2**8: one binade up where the significand passes 1.75
    exponent = (bits >> 23) - 127 - 8 + ((bits & 0x7FFFFF) > 0x600000).to(torch.int32)
    return exponent.clamp(-126, 112)


def mxfp4_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    swiglu_limit: float | None = 10.0,
    routed_scaling_factor: float = 1.0,
    activation: str = "exact",
) -> torch.Tensor:
    """float64 [T, H]: y[t] = factor * sum over k of topk_weights[t, k] * expert(topk_ids[t, k])(x[t]).

    All arguments are in the checkpoint's layout (see `prepare_mxfp4`); ids outside 0 .. E-1 contribute nothing.
    An expert is w2 (silu(min(w1 x, L)) * clip(w3 x, -L, L)) with w13 = [w1; w3]. `activation="mxfp8"` rounds x and the
    intermediate to MXFP8 as the kernel's mode of that name does; "exact" rounds nothing.
    """
    if activation not in ("exact", "mxfp8"):
        raise ValueError(f"activation is {activation!r}, expected 'exact' or 'mxfp8'")

    def matrices(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        return dequantize(w13[expert], w13_scale[expert]), dequantize(w2[expert], w2_scale[expert])

    rounding = quantize_mxfp8 if activation == "mxfp8" else None
    y = _moe(x, len(w13), matrices, topk_ids, topk_weights, limit=swiglu_limit, rounding=rounding)
    return y * routed_scaling_factor


def nvfp4_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w13_global: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    w2_global: torch.Tensor,
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    swiglu_limit: float | None = 10.0,
    routed_scaling_factor: float = 1.0,
) -> torch.Tensor:
    """float64 [T, H]: `mxfp4_moe` for weights in NVFP4, in the checkpoint's layout (see `prepare_nvfp4`).

    w1's and w3's rows of w13 are multiplied by w13_global[:, 0] and w13_global[:, 1], w2 by w2_global.
    """
    inter = w13.shape[1] // 2

    def matrices(expert: int) -> tuple[torch.Tensor, torch.Tensor]:
        factor = w13_global[expert].to(torch.float64).repeat_interleave(inter)[:, None]
        first = dequantize_nvfp4(w13[expert], w13_scale[expert]) * factor
        return first, dequantize_nvfp4(w2[expert], w2_scale[expert]) * w2_global[expert].to(torch.float64)

    y = _moe(x, len(w13), matrices, topk_ids, topk_weights, limit=swiglu_limit)
    return y * routed_scaling_factor


def _moe(
    x: torch.Tensor,
    experts: int,
    matrices: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    *,
    limit: float | None,
    rounding: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> torch.Tensor:
    """matrices: an expert's w13 and w2 in float64. rounding: of x and the intermediate."""
    xs = (rounding(x) if rounding else x).to(torch.float64)
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < experts:
            continue
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        w13, w2 = matrices(expert)
        gate, up = (xs[token] @ w13.T).chunk(2, dim=-1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        hidden = gate * torch.sigmoid(gate) * up
        if rounding:
            hidden = rounding(hidden).to(torch.float64)
        y.index_add_(0, token, (hidden @ w2.T) * topk_weights[token, slot, None].to(torch.float64))
    return y
