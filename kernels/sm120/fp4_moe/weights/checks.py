"""What weights must be to be prepared; nothing here changes a tensor."""

from __future__ import annotations

import math

import torch

from .formats import MXFP4, NVFP4, Format

SLICE_BYTES = 4 << 20
LARGEST_GLOBAL = 2.0**100  # the kernels multiply it by 2**7, and sums by the product
NOT_A_SCALE = 0x7F  # e4m3: this byte and all above are NaN or negative


def check_weights(w13: torch.Tensor, w2: torch.Tensor) -> tuple[int, int, int]:
    """(E, H, I), or ValueError."""
    for name, w in (("w13", w13), ("w2", w2)):
        if not isinstance(w, torch.Tensor) or w.dtype not in (torch.uint8, torch.int8):
            raise ValueError(f"{name} is {_describe(w)}, expected a tensor of uint8 or int8 (two e2m1 codes a byte)")
        if w.dim() != 3 or 0 in w.shape:
            raise ValueError(f"{name} has shape {tuple(w.shape)}, expected three dimensions, none of them 0")
        _check_storage(name, w)
    experts, rows, hidden = w13.shape[0], w13.shape[1], 2 * w13.shape[2]
    if rows % 64:
        raise ValueError(f"w13 has {rows} rows, expected 2 I (gate, then up) with I a multiple of 32")
    if hidden % 32:
        raise ValueError(f"w13 has {w13.shape[2]} bytes a row, so H = {hidden}; expected a multiple of 32")
    expected = (experts, hidden, rows // 4)
    if tuple(w2.shape) != expected:
        raise ValueError(f"w2 has shape {tuple(w2.shape)}, expected {expected} (E, H, I/2) to fit w13")
    if w2.device != w13.device:
        raise ValueError(f"w2 is on {w2.device}, expected {w13.device} like w13")
    return experts, hidden, rows // 2


def e8m0_bytes(name: str, scale: torch.Tensor, rows: tuple[int, int], columns: int, device: torch.device):
    """MXFP4 scales of [E, N, columns] codes as bytes; rows is (E, N). float32 ones are converted to a new tensor."""
    kinds = (torch.uint8, torch.float8_e8m0fnu, torch.float32)
    if not isinstance(scale, torch.Tensor) or scale.dtype not in kinds:
        raise ValueError(f"{name} is {_describe(scale)}, expected uint8, float8_e8m0fnu or float32 powers of two")
    _check_place(name, scale, (*rows, columns // MXFP4.group), MXFP4, device)
    if scale.dtype != torch.float32:
        scale = scale.view(torch.uint8)
        _check_storage(name, scale)
        return scale
    out = torch.empty(scale.shape, dtype=torch.uint8, device=device)
    flat, target = scale.reshape(-1), out.view(-1)
    for start in range(0, flat.numel(), SLICE_BYTES):
        part = flat[start : start + SLICE_BYTES]
        target[start : start + SLICE_BYTES] = _exponent_bytes(name, part)
    return out


def e4m3_bytes(name: str, scale: torch.Tensor, rows: tuple[int, int], columns: int, device: torch.device):
    """NVFP4 scales of [E, N, columns] codes as bytes, none of them negative or NaN; rows is (E, N)."""
    if not isinstance(scale, torch.Tensor) or scale.dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise ValueError(f"{name} is {_describe(scale)}, expected uint8 or float8_e4m3fn")
    _check_place(name, scale, (*rows, columns // NVFP4.group), NVFP4, device)
    scale = scale.view(torch.uint8)
    _check_storage(name, scale)
    bad = scale.view(rows[0], -1).amax(1) >= NOT_A_SCALE
    if bool(bad.any()):
        expert = int(bad.nonzero()[0])
        byte = scale[expert].flatten()
        byte = int(byte[byte >= NOT_A_SCALE][0])
        what = "NaN" if byte & 0x7F == NOT_A_SCALE else "a negative value"
        raise ValueError(f"{name} of expert {expert} holds {what} (byte {byte:#04x}), expected e4m3 from 0 to 448")
    return scale


def check_global(name: str, scale: torch.Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise ValueError unless the multipliers of the experts' matrices are float32, finite and above 0."""
    if not isinstance(scale, torch.Tensor) or scale.dtype != torch.float32:
        raise ValueError(f"{name} is {_describe(scale)}, expected float32")
    if tuple(scale.shape) != shape:
        what = "(gate, up) of each expert" if len(shape) == 2 else "one for each expert"
        raise ValueError(f"{name} has shape {tuple(scale.shape)}, expected {shape}: {what}")
    if scale.device != device:
        raise ValueError(f"{name} is on {scale.device}, expected {device} like w13")
    if not scale.is_contiguous():
        raise ValueError(f"{name} has strides {scale.stride()}, expected a contiguous tensor (kernels read it)")
    for place, value in enumerate(scale.flatten().tolist()):
        if not (math.isfinite(value) and 0 < value <= LARGEST_GLOBAL):
            expert = place // (2 if len(shape) == 2 else 1)
            raise ValueError(
                f"{name} of expert {expert} is {value!r}, expected a finite multiplier above 0 and up to 2**100"
            )


def _check_place(name: str, t: torch.Tensor, shape: tuple[int, ...], kind: Format, device: torch.device) -> None:
    if tuple(t.shape) != shape:
        raise ValueError(
            f"{name} has shape {tuple(t.shape)}, expected {shape} (one scale per {kind.group} codes of a row)"
        )
    if t.device != device:
        raise ValueError(f"{name} is on {t.device}, expected {device} like w13")


def _check_storage(name: str, t: torch.Tensor) -> None:
    if not t.is_contiguous():
        raise ValueError(f"{name} has strides {t.stride()}, expected a contiguous tensor (it is repacked in place)")
    if t.data_ptr() % 16:
        raise ValueError(f"{name} starts at address {t.data_ptr():#x}, expected a multiple of 16 bytes")


def _describe(t: object) -> str:
    return str(t.dtype) if isinstance(t, torch.Tensor) else type(t).__name__


def _exponent_bytes(name: str, scale: torch.Tensor) -> torch.Tensor:
    bits = scale.contiguous().view(torch.int32)
    nan = torch.isnan(scale)
    smallest = bits == 0x00400000  # 2**-127, a float32 subnormal, is byte 0
    exponent = bits >> 23
    fits = nan | smallest | ((bits & 0x7FFFFF) == 0) & (exponent >= 1) & (exponent <= 254)
    if not bool(fits.all()):
        value = float(scale[~fits][0])
        raise ValueError(f"{name} has the value {value!r}, expected exact powers of two from 2**-127 to 2**127, or NaN")
    exponent = torch.where(smallest, 0, torch.where(nan, 255, exponent))
    return exponent.to(torch.uint8)
