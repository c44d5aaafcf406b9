"""The checkpoint's experts made ready for the kernels, in place, and given back."""

from __future__ import annotations

import torch

from . import checks, nvfp4
from .formats import MXFP4, NARROW_SCALES, NVFP4
from .prepared import PreparedWeights
from .repack import repack


def prepare_mxfp4(
    w13: torch.Tensor, w13_scale: torch.Tensor, w2: torch.Tensor, w2_scale: torch.Tensor
) -> PreparedWeights:
    """Repack the MXFP4 experts of one layer in place.

    w13        uint8|int8 [E, 2I, H/2], contiguous: gate rows, then up rows; two e2m1 codes a byte, low nibble = even k
    w13_scale  uint8|float8_e8m0fnu|float32 [E, 2I, H/32]: 2**(byte - 127) per 32 codes; float32 must be exact powers of
               two from 2**-127 to 2**127, or NaN
    w2         uint8|int8 [E, H, I/2];  w2_scale [E, H, I/32], as above. H and I are multiples of 32.

    The given w13, w2 and byte scales hold the prepared bytes afterwards and must not be used otherwise; float32 scales
    are converted to new tensors. Raises ValueError (and changes nothing) for any other type, shape, layout or value.
    Synchronises with the device once.
    """
    experts, hidden, inter = checks.check_weights(w13, w2)
    s13 = checks.e8m0_bytes("w13_scale", w13_scale, (experts, 2 * inter), hidden, w13.device)
    s2 = checks.e8m0_bytes("w2_scale", w2_scale, (experts, hidden), inter, w13.device)
    return _prepared_mxfp4(w13.view(torch.uint8), s13, w2.view(torch.uint8), s2)


def prepare_nvfp4(
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w13_global: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    w2_global: torch.Tensor,
    *,
    cast: bool | None = None,
) -> PreparedWeights:
    """Repack the NVFP4 experts of one layer in place.

    w13         uint8|int8 [E, 2I, H/2], contiguous: gate rows, then up rows; two e2m1 codes a byte, low nibble = even k
    w13_scale   uint8|float8_e4m3fn [E, 2I, H/16], contiguous: e4m3 per 16 codes, from 0 to 448, rows as they are in a
                checkpoint (not swizzled)
    w13_global  float32 [E, 2]: what the gate rows, and what the up rows, of an expert are multiplied by
    w2          uint8|int8 [E, H, I/2];  w2_scale [E, H, I/16], as above;  w2_global float32 [E]
    cast        None: weights that are a lossless cast of MXFP4 are prepared as MXFP4, which gives the same numbers from
                fewer bytes; the result's `cast_from` says so. False: never. True: any others are refused

    H and I are multiples of 32. The given w13, w2 and scales hold the prepared bytes afterwards and must not be used
    otherwise; the globals are read by the kernels where they are. Codes under a scale of 0 become 0. Raises ValueError
    (and changes nothing) for any other type, shape, layout or value: scales that are negative or NaN, globals that are
    not finite and above 0. Synchronises with the device a few times.
    """
    s13, s2 = check_nvfp4(w13, w13_scale, w13_global, w2, w2_scale, w2_global)
    experts, hidden, inter = w2.shape[0], w2.shape[1], 2 * w2.shape[2]
    is_cast = cast is not False and nvfp4.is_cast((s13, s2), (w13_global, w2_global))
    if cast and not is_cast:
        raise ValueError(
            "w13_scale, w2_scale and the globals are not those of MXFP4 written as NVFP4, expected that because cast "
            "is True: powers of two, and equal scales for both halves of each 32 codes"
        )
    w13, w2 = w13.view(torch.uint8), w2.view(torch.uint8)
    with torch.no_grad():
        for codes, scale in ((w13, s13), (w2, s2)):
            if not bool(scale.amin()):
                nvfp4.silence(codes, scale)
        if is_cast:
            e13, e2 = nvfp4.to_e8m0(s13, w13_global), nvfp4.to_e8m0(s2, w2_global)
            return _prepared_mxfp4(
                w13, e13, w2, e2, w13_global=w13_global, w2_global=w2_global, cast_from=NVFP4, given_scales=(s13, s2)
            )
        repack(w13, s13, NVFP4, gated=True, forward=True)
        repack(w2, s2, NVFP4, gated=False, forward=True)
    return PreparedWeights(
        w13, s13, w2, s2, experts, hidden, inter, wide_scales=False, format=NVFP4, w13_global=w13_global,
        w2_global=w2_global,
    )  # fmt: skip


def check_nvfp4(
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w13_global: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    w2_global: torch.Tensor,
    *,
    names: tuple[str, str, str, str] = ("w13_scale", "w13_global", "w2_scale", "w2_global"),
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raise the ValueError that `prepare_nvfp4` would raise of these arguments, and change nothing; the scale bytes.

    names: of scales and globals in messages, for callers whose users know them by others.
    """
    experts, hidden, inter = checks.check_weights(w13, w2)
    s13 = checks.e4m3_bytes(names[0], w13_scale, (experts, 2 * inter), hidden, w13.device)
    s2 = checks.e4m3_bytes(names[2], w2_scale, (experts, hidden), inter, w13.device)
    checks.check_global(names[1], w13_global, (experts, 2), w13.device)
    checks.check_global(names[3], w2_global, (experts,), w13.device)
    return s13, s2


def restore(w: PreparedWeights) -> tuple[torch.Tensor, ...]:
    """Undo `prepare_mxfp4` or `prepare_nvfp4` in place: what was given, in that order and the checkpoint's layout.

    Codes and scales are uint8, also where another type was given. The bytes are those given, except that codes under an
    NVFP4 scale of 0 are 0. `w` must not be used afterwards. Experts may then be overwritten and prepared again.
    """
    with torch.no_grad():
        repack(w.w13, w.w13_scale, w.format, gated=True, forward=False)
        repack(w.w2, w.w2_scale, w.format, gated=False, forward=False)
        if w.w13_global is None or w.w2_global is None:
            return w.w13, w.w13_scale, w.w2, w.w2_scale
        s13, s2 = w.given_scales or (w.w13_scale, w.w2_scale)
        if w.given_scales:
            nvfp4.from_e8m0(s13, w.w13_global)
            nvfp4.from_e8m0(s2, w.w2_global)
    return w.w13, s13, w.w13_global, w.w2, s2, w.w2_global


def _prepared_mxfp4(
    w13: torch.Tensor, s13: torch.Tensor, w2: torch.Tensor, s2: torch.Tensor, **more
) -> PreparedWeights:
    wide = scales_are_wide(s13, s2)
    with torch.no_grad():
        repack(w13, s13, MXFP4, gated=True, forward=True)
        repack(w2, s2, MXFP4, gated=False, forward=True)
    experts, hidden = w2.shape[:2]
    return PreparedWeights(w13, s13, w2, s2, experts, hidden, 2 * w2.shape[2], wide_scales=wide, **more)


def scales_are_wide(w13_scale: torch.Tensor, w2_scale: torch.Tensor) -> bool:
    """Whether weights with these MXFP4 scale bytes (uint8, any shape and layout) are `wide_scales`. Synchronises."""
    return bool(_outside_narrow(w13_scale) | _outside_narrow(w2_scale))


def is_mxfp4_cast(
    w13_scale: torch.Tensor, w13_global: torch.Tensor, w2_scale: torch.Tensor, w2_global: torch.Tensor
) -> bool:
    """Whether `prepare_nvfp4` would prepare weights with these scales and globals as MXFP4. Synchronises."""
    return nvfp4.is_cast((w13_scale.view(torch.uint8), w2_scale.view(torch.uint8)), (w13_global, w2_global))


def _outside_narrow(scale: torch.Tensor) -> torch.Tensor:
    low, high = NARROW_SCALES
    return (scale.amin() < low) | (scale.amax() > high)
