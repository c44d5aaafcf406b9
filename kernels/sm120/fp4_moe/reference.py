"""The MXFP4 mixture-of-experts layer in float64 plain torch: what every kernel here is held to.

Formats are those of the OCP Microscaling Formats (MX) Specification v1.0: e2m1 elements, e8m0 scales, blocks of 32.
"""

from __future__ import annotations

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
    table = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=codes.device)
    codes = codes.view(torch.uint8).to(torch.int64)
    values = torch.stack([table[codes & 15], table[codes >> 4]], dim=-1).flatten(-2)
    return values * scale_to_float64(scale).repeat_interleave(32, dim=-1)


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
    inter = w13.shape[1] // 2
    xs = (quantize_mxfp8(x) if activation == "mxfp8" else x).to(torch.float64)
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert in topk_ids.unique().tolist():
        if not 0 <= expert < w13.shape[0]:
            continue
        token, slot = (topk_ids == expert).nonzero(as_tuple=True)
        both = xs[token] @ dequantize(w13[expert], w13_scale[expert]).T
        gate, up = both[:, :inter], both[:, inter:]
        if swiglu_limit is not None:
            gate, up = gate.clamp(max=swiglu_limit), up.clamp(-swiglu_limit, swiglu_limit)
        hidden = gate * torch.sigmoid(gate) * up
        if activation == "mxfp8":
            hidden = quantize_mxfp8(hidden).to(torch.float64)
        out = hidden @ dequantize(w2[expert], w2_scale[expert]).T
        y.index_add_(0, token, out * topk_weights[token, slot, None].to(torch.float64))
    return y * routed_scaling_factor
