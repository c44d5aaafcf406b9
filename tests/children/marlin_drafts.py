"""A `sitecustomize` of users: as soon as SGLang has its hybrid quantization, drafts get Marlin and the rest passes."""

import importlib.abc
import sys

MODULE = "sglang.srt.layers.quantization.modelopt_quant"


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            wrap(module.HybridFp8NvFp4Config)

        spec.loader.exec_module = exec_module
        return spec


def wrap(cls):
    original = cls.get_quant_method

    def get_quant_method(self, layer, prefix):
        if "decoder" in prefix and type(layer).__name__ == "FusedMoE":
            from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod
            from sglang.srt.layers.quantization.mxfp4_marlin_moe import Mxfp4MarlinMoEMethod

            return Mxfp4MarlinMoEMethod(Fp8MoEMethod(self), prefix=prefix)
        return original(self, layer, prefix)

    cls.get_quant_method = get_quant_method


sys.meta_path.insert(0, Finder())
