"""Tensors as a checkpoint stores them, as values of a parameter: the same numbers, or a refusal.

SGLang's loader ends in `Tensor.copy_`, which converts numbers. A scale that a checkpoint stores as a plain byte would
become the scale nearest to that byte's number (112, which means 2^-15, becomes 134), and a number that the parameter's
type lacks would be rounded; nobody would be told.
"""

from __future__ import annotations

import torch

_BYTES = (torch.uint8, torch.int8)  # hold a value of any one-byte type bit for bit
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_ARE = {
    torch.float8_e8m0fnu: "powers of two from 2^-127 to 2^127 (F8_E8M0)",
    torch.float8_e4m3fn: "values of F8_E4M3",
    torch.float32: "F32 values",
    torch.uint8: "packed e2m1 codes (U8 or I8)",
    torch.int8: "packed e2m1 codes (U8 or I8)",
}


def of_type(stored: torch.Tensor, wanted: torch.dtype) -> torch.Tensor:
    """The values of a checkpoint's tensor in a parameter's type.

    Bytes are taken bit for bit; numbers are converted where that loses nothing. NaN stays NaN.

    Args:
        stored: as the checkpoint has it, of any shape, on any device.
        wanted: the parameter's type: an e2m1 pair's (uint8, int8), a scale's (float8) or a multiplier's (float32).

    Returns:
        A tensor of `wanted` and the same shape; a view of the given one where the bytes are the same.

    Raises:
        ValueError: the types have nothing to do with each other, or a value has no equal in `wanted`.
    """
    if stored.dtype == wanted:
        return stored
    if stored.dtype in _BYTES and wanted.itemsize == 1:
        return stored.view(wanted)
    if stored.dtype not in _FLOATS or wanted in _BYTES:
        raise ValueError(f"is stored as {_name(stored.dtype)}; expected {_ARE[wanted]}")
    converted = stored.to(wanted)
    exact = (converted.to(torch.float64) == stored.to(torch.float64)) | (converted.isnan() & stored.isnan())
    if not bool(exact.all()):
        value = float(stored[~exact].flatten()[0])
        raise ValueError(f"is stored as {_name(stored.dtype)} with the value {value!r}; expected {_ARE[wanted]}")
    return converted


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
