"""Other projects' quantisers and decoders of weights, called as they are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from benchmarks.judges.stored import GROUPS, Stored

Decode = Callable[[Stored], torch.Tensor]
Quantise = Callable[[torch.Tensor, torch.Tensor], Stored]
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


@dataclasses.dataclass(frozen=True)
class Judge:
    """One project's code for one format.

    decode: a matrix, or a half of one, with one global scale or none -> its values. quantise: float32 [N, K] and the
    global scale to take (float32 [], for MXFP4 unused) -> the same as stored; None where the package has none that a
    CPU runs.
    """

    name: str
    format: str
    decode: Decode
    quantise: Quantise | None = None


def modelopt() -> list[Judge]:
    """NVIDIA's ModelOpt, which writes the hybrid checkpoints."""
    from modelopt.torch.quantization.qtensor.mxfp4_tensor import MXFP4QTensor
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    def shape_of(w: Stored) -> torch.Size:
        return torch.Size((len(w.codes), 2 * w.codes.shape[1]))

    def mxfp4(w: Stored) -> torch.Tensor:
        q = MXFP4QTensor(shape_of(w), torch.float32, w.codes)
        return q.dequantize(torch.float32, scale=w.scale.reshape(-1, 1), block_sizes={-1: 32})

    def nvfp4(w: Stored) -> torch.Tensor:
        q = NVFP4QTensor(shape_of(w), torch.float32, w.codes)
        return q.dequantize(torch.float32, scale=w.scale.view(E4M3), double_scale=w.factors, block_sizes={-1: 16})

    def to_mxfp4(x: torch.Tensor, factor: torch.Tensor) -> Stored:
        q, scale = MXFP4QTensor.quantize(x, 32)
        return Stored(q._quantized_data, scale.view(len(x), -1))

    def to_nvfp4(x: torch.Tensor, factor: torch.Tensor) -> Stored:
        q, scale, factor = NVFP4QTensor.quantize(x, 16, weights_scaling_factor_2=factor)
        return Stored(q._quantized_data, scale.view(torch.uint8), factor)

    return [Judge("ModelOpt", "mxfp4", mxfp4, to_mxfp4), Judge("ModelOpt", "nvfp4", nvfp4, to_nvfp4)]


def compressed_tensors() -> list[Judge]:
    """compressed-tensors, whose global scales are the inverse of ModelOpt's."""
    from compressed_tensors.compressors.mxfp4 import MXFP4PackedCompressor
    from compressed_tensors.compressors.nvfp4 import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES
    from compressed_tensors.quantization.utils import calculate_qparams

    def made(name: str, preset: str, compressor: type) -> Judge:
        scheme = QuantizationScheme(targets=["Linear"], **PRESET_SCHEMES[preset])

        def decode(w: Stored) -> torch.Tensor:
            state = {"weight_packed": w.codes, "weight_scale": w.scale}
            if w.factors is not None:
                state |= {"weight_scale": w.scale.view(E4M3), "weight_global_scale": 1 / w.factors.view(1)}
            return compressor.decompress(state, scheme)["weight"]  # type: ignore[attr-defined]

        def quantise(x: torch.Tensor, factor: torch.Tensor) -> Stored:
            inverse = None if name == "mxfp4" else 1 / factor.view(1)
            groups = x.unflatten(-1, (-1, GROUPS[name]))
            scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), scheme.weights, inverse)
            state = {"weight": x, "weight_scale": scale}
            if inverse is not None:
                state["weight_global_scale"] = inverse
            packed = compressor.compress(state, scheme)  # type: ignore[attr-defined]
            stored = packed["weight_packed"], packed["weight_scale"].view(torch.uint8)
            return Stored(*stored, None if inverse is None else factor)

        return Judge("compressed-tensors", name, decode, quantise)

    return [made("mxfp4", "MXFP4A16", MXFP4PackedCompressor), made("nvfp4", "NVFP4A16", NVFP4PackedCompressor)]


def torchao() -> list[Judge]:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor, to_dtype
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor

    fp4 = torch.float4_e2m1fn_x2

    def mxfp4(w: Stored) -> torch.Tensor:
        return to_dtype(w.codes, w.scale.view(E8M0), fp4, 32, torch.float32)

    def nvfp4(w: Stored) -> torch.Tensor:
        return NVFP4Tensor(w.codes, w.scale.view(E4M3), 16, torch.float32, w.factors).dequantize()

    def to_mxfp4(x: torch.Tensor, factor: torch.Tensor) -> Stored:
        q = MXTensor.to_mx(x, fp4, 32)
        return Stored(q.qdata.view(torch.uint8), q.scale.view(torch.uint8).view(len(x), -1))

    def to_nvfp4(x: torch.Tensor, factor: torch.Tensor) -> Stored:
        q = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=factor)
        return Stored(q.qdata.view(torch.uint8), q.scale.view(torch.uint8).view(len(x), -1), factor)

    return [Judge("torchao", "mxfp4", mxfp4, to_mxfp4), Judge("torchao", "nvfp4", nvfp4, to_nvfp4)]


def flashinfer() -> list[Judge]:
    """The references that FlashInfer's traces and tests compare its kernels with."""
    from flashinfer.trace.templates.moe import _dequantize_fp4_tensor

    def mxfp4(w: Stored) -> torch.Tensor:
        return _dequantize_fp4_tensor(w.codes, w.scale, True)

    def nvfp4(w: Stored) -> torch.Tensor:
        return _dequantize_fp4_tensor(w.codes, w.scale.view(E4M3), False) * w.factors

    return [Judge("FlashInfer", "mxfp4", mxfp4), Judge("FlashInfer", "nvfp4", nvfp4)]


def transformers() -> list[Judge]:
    """What transformers reads MXFP4 checkpoints with."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    def mxfp4(w: Stored) -> torch.Tensor:
        blocks = w.codes.view(1, len(w.codes), -1, 16)
        return convert_moe_packed_tensors(blocks, w.scale[None], dtype=torch.float32)[0].T

    return [Judge("transformers", "mxfp4", mxfp4)]


PROJECTS = (modelopt, compressed_tensors, torchao, flashinfer, transformers)


def whole(judge: Judge, w: Stored) -> torch.Tensor:
    """A matrix of two halves with global scales of their own, each decoded apart."""
    if w.factors is None:
        return judge.decode(w)
    return torch.cat([judge.decode(half) for half in w.halves])
