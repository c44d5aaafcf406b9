"""NVFP4's scales: the bytes that the kernels read, and those of layers that hold MXFP4 values exactly.

E5M3. A checkpoint's scale is e4m3 with subnormals, which no shift turns into a bf16. The prepared byte is that of
float16's bits of scale * 2**7 without sign and low mantissa: five exponent bits, three of mantissa, no subnormals. Then
byte << 4 added to a constant is the scale as bf16, times a power of two, for each of the 126 finite values above 0.
Only 0 is wrong, it would act as 2**-22; so codes under a scale of 0 are set to 0.

Lossless casts. A converter may write an MXFP4 checkpoint as NVFP4 without changing a value: scales that are powers of
two, the same for both halves of each 32 codes, and power-of-two globals. Such a layer can be MXFP4 again. A scale of 0,
under which codes are set to 0, becomes 2**-10 times the global, a power of two that no other e4m3 scale gives.
"""

from __future__ import annotations

import torch

from .checks import SLICE_BYTES
from .formats import NARROW_SCALES

_ZERO, _NONE = -10, 99  # in _EXPONENTS: the scale 0; no power of two


def _exponent(byte: int) -> int:
    if byte == 0:
        return _ZERO
    exponent, mantissa = byte >> 3, byte & 7
    if exponent:
        return exponent - 7 if mantissa == 0 else _NONE
    return {1: -9, 2: -8, 4: -7}.get(mantissa, _NONE)


_EXPONENTS = [_exponent(byte) for byte in range(128)]
_FROM_EXPONENTS = [_EXPONENTS.index(e) for e in range(_ZERO, 9)]


def to_e5m3(scale: torch.Tensor) -> torch.Tensor:
    """e4m3 bytes 0 .. 0x7E -> E5M3 bytes, uint8."""
    value = scale.view(torch.float8_e4m3fn).to(torch.float16) * 128
    return (value.view(torch.int16) >> 7).to(torch.uint8)


def from_e5m3(scale: torch.Tensor) -> torch.Tensor:
    """The inverse of `to_e5m3`."""
    value = (scale.to(torch.int16) << 7).view(torch.float16) / 128
    return value.to(torch.float8_e4m3fn).view(torch.uint8)


def silence(codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Set codes uint8 [experts, N, K/2] under scales [experts, N, K/16] of 0 to 0, in slices of experts."""
    groups = codes.view(*scale.shape, -1)
    for part in _parts(scale):
        groups[part].masked_fill_((scale[part] == 0)[..., None], 0)


def is_cast(scales: tuple[torch.Tensor, torch.Tensor], globals_: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether a layer's e4m3 scale bytes (w13, w2) and globals are MXFP4's, exactly, and within `NARROW_SCALES`.

    Outside, NVFP4's kernels are as exact as MXFP4's with more range, and faster. Of most layers one slice is read.
    """
    if not all(bool(((g.view(torch.int32) & 0x7FFFFF) == 0).all() & (g >= 2.0**-126).all()) for g in globals_):
        return False
    low, high = NARROW_SCALES
    for scale, factor in zip(scales, globals_, strict=True):
        table = torch.tensor(_EXPONENTS, dtype=torch.int16, device=scale.device)
        fits = []
        for part in _parts(scale):
            first, second = _halves(scale[part])
            exponent = table[first.int()]
            byte = exponent + _bias(factor[part], scale)
            fits.append(((first == second) & (exponent != _NONE) & (byte >= low) & (byte <= high)).all())
            if len(fits) == 1 and not bool(fits[0]):
                return False
        if not bool(torch.stack(fits).all()):
            return False
    return True


def to_e8m0(scale: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """A cast's e4m3 bytes [E, N, K/16] as MXFP4's [E, N, K/32], which lie in the first half of their storage."""
    experts, rows, groups = scale.shape
    target = scale.view(-1)[: scale.numel() // 2].view(experts, rows, groups // 2)
    table = torch.tensor(_EXPONENTS, dtype=torch.int16, device=scale.device)
    for part in _parts(scale):  # what is written lies before what is still to be read
        target[part] = (table[_halves(scale[part])[0].int()] + _bias(factor[part], scale)).to(torch.uint8)
    return target


def from_e8m0(scale: torch.Tensor, factor: torch.Tensor) -> None:
    """The inverse of `to_e8m0`, in place: scale is all of the storage.

    Bytes that are none of `to_e8m0` (of memory that was released and came back) give some scale or other.
    """
    experts, rows, groups = scale.shape
    source = scale.view(-1)[: scale.numel() // 2].view(experts, rows, groups // 2)
    table = torch.tensor(_FROM_EXPONENTS, dtype=torch.uint8, device=scale.device)
    for part in reversed(_parts(scale)):
        place = (source[part].to(torch.int16) - _bias(factor[part], scale) - _ZERO).clamp(0, len(_FROM_EXPONENTS) - 1)
        byte = table[place.int()]
        scale[part] = byte[..., None].expand(*byte.shape, 2).reshape(scale[part].shape)


def _halves(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = scale.unflatten(-1, (-1, 2)).unbind(-1)
    return first, second


def _bias(factor: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int16: what makes an e4m3 exponent the byte of an e8m0 scale, for each row; factor float32 [experts(, 2)]."""
    exponent = (factor.view(torch.int32) >> 23).to(torch.int16)  # with float32's bias, which is e8m0's
    rows = scale.shape[1]
    if exponent.dim() == 1:
        return exponent[:, None, None]
    return exponent.repeat_interleave(rows // 2, dim=1)[..., None]


def _parts(scale: torch.Tensor) -> list[slice]:
    """Slices of experts with few bytes."""
    step = max(1, SLICE_BYTES // scale[0].numel())
    return [slice(i, i + step) for i in range(0, scale.shape[0], step)]
