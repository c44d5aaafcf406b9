"""Layers of each format for `method_checks`: a bare module with what SGLang's FusedMoE gives, and random experts.

Experts are (expert, shard) -> {kind: tensor}, with the kinds and dtypes of a checkpoint.
"""

from __future__ import annotations

from types import SimpleNamespace

E, H, I = 4, 64, 32  # noqa: E741 - the field's letters
SIZES = {"w1": (I, H), "w3": (I, H), "w2": (H, I)}
SHARDS = tuple(SIZES)


def write(param, loaded, name, shard_id, expert_id):
    """SGLang's loader for one rank: gate rows, then up rows; one multiplier each."""
    rows = param.data[expert_id]
    if shard_id != "w2":
        half = rows.shape[0] // 2
        rows = rows[:half] if shard_id == "w1" else rows[half:]
    rows.copy_(loaded)


def module(torch, experts=E):
    layer = torch.nn.Module()
    vars(layer).update(
        moe_ep_size=1, moe_ep_rank=0, num_experts=experts, num_local_experts=experts, num_fused_shared_experts=0,
        uses_expert_location=False, should_fuse_routed_scaling_factor_in_topk=False, dispatcher=None,
        _map_global_expert_id_to_local_expert_id=lambda e: e,
    )  # fmt: skip
    return layer


def codes(torch, g, shard):
    rows, columns = SIZES[shard]
    return torch.randint(0, 256, (rows, columns // 2), generator=g, dtype=torch.uint8)


class Mxfp4:
    """The draft's experts. `draw` gives scales of the fast range, `far` others."""

    prefix = "model.decoder.mlp.experts"
    parameters = ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv")
    scale, group, byte = "weight_scale_inv", 32, 120

    def method(self):
        from sglang_sm120.moe.mxfp4_method import Sm120Mxfp4MoEMethod

        return Sm120Mxfp4MoEMethod(self.prefix)

    def draw(self, torch, seed, low=118, high=124):
        g, made = torch.Generator().manual_seed(seed), {}
        for expert in range(E):
            for shard, (rows, columns) in SIZES.items():
                scale = torch.randint(low, high, (rows, columns // 32), generator=g, dtype=torch.uint8)
                packed = codes(torch, g, shard).view(torch.int8)
                made[expert, shard] = {"weight": packed, "weight_scale_inv": scale.view(torch.float8_e8m0fnu)}
        return made

    def far(self, torch, seed):
        return self.draw(torch, seed, low=88, high=98)

    def oracle(self, torch, x, tensors, ids, probabilities):
        from sglang_sm120.kernels.sm120 import fp4_moe

        weights = (w for name in ("w13", "w2") for w in stacked(torch, tensors, name, ("weight", "weight_scale_inv")))
        return fp4_moe.reference.mxfp4_moe(x, *weights, ids, probabilities, routed_scaling_factor=1.5)


class Nvfp4:
    """The target's experts. `draw` gives no cast of MXFP4, gate and up multipliers ten times apart; `far` a cast."""

    prefix = "model.layers.0.mlp.experts"
    parameters = (
        "w13_weight", "w13_weight_scale", "w13_weight_scale_2", "w2_weight", "w2_weight_scale", "w2_weight_scale_2",
    )  # fmt: skip
    scale, group, byte = "weight_scale", 16, 0x39

    def method(self):
        from sglang_sm120.moe.nvfp4_method import Sm120Nvfp4MoEMethod

        return Sm120Nvfp4MoEMethod(self.prefix)

    def draw(self, torch, seed):
        def scales(g, rows, columns):
            return torch.randint(0x28, 0x48, (rows, columns // 16), generator=g, dtype=torch.uint8)  # 2^-2 to 4

        return self._made(torch, seed, scales, {"w1": 0.01, "w3": 0.1, "w2": 0.03})

    def far(self, torch, seed):
        return self.cast(torch, seed)

    def cast(self, torch, seed):
        def scales(g, rows, columns):
            byte = torch.randint(5, 9, (rows, columns // 32), generator=g, dtype=torch.uint8) * 8
            return byte.repeat_interleave(2, 1)

        return self._made(torch, seed, scales, {"w1": 2.0**-7, "w3": 2.0**-4, "w2": 2.0**-5})

    def _made(self, torch, seed, scales, factors):
        g, made = torch.Generator().manual_seed(seed), {}
        for expert in range(E):
            for shard, (rows, columns) in SIZES.items():
                packed, scale = codes(torch, g, shard), scales(g, rows, columns)
                factor = torch.tensor(factors[shard] * 2.0 ** (expert % 3))
                named = {"weight": packed, "weight_scale": scale.view(torch.float8_e4m3fn), "weight_scale_2": factor}
                made[expert, shard] = named
        return made

    def oracle(self, torch, x, tensors, ids, probabilities):
        from sglang_sm120.kernels.sm120 import fp4_moe

        kinds = ("weight", "weight_scale")
        w13, s13, w2, s2 = (w for name in ("w13", "w2") for w in stacked(torch, tensors, name, kinds))
        factor = {shard: torch.stack([tensors[e, shard]["weight_scale_2"] for e in range(E)]) for shard in SHARDS}
        halves = torch.stack([factor["w1"], factor["w3"]], 1)
        weights = w13, s13, halves, w2, s2, factor["w2"]
        return fp4_moe.reference.nvfp4_moe(x, *weights, ids, probabilities, routed_scaling_factor=1.5)


class Nvfp4Cast(Nvfp4):
    """The target's experts. `draw` gives a cast of MXFP4, `far` none."""

    byte = 0x38

    def draw(self, torch, seed):
        return self.cast(torch, seed)

    def far(self, torch, seed):
        return super().draw(torch, seed)


FORMATS = {"mxfp4": Mxfp4(), "nvfp4": Nvfp4(), "nvfp4 cast": Nvfp4Cast()}


def stacked(torch, tensors, name, kinds):
    """Each kind of w13 (gate above up) or w2 of all experts, as bytes."""
    shards = ("w1", "w3") if name == "w13" else ("w2",)
    for kind in kinds:
        experts = [torch.cat([tensors[e, shard][kind].view(torch.uint8) for shard in shards]) for e in range(E)]
        yield torch.stack(experts)


def layer_and_method(torch, form):
    layer, method = module(torch), form.method()
    method.create_weights(layer, E, H, I, torch.bfloat16, weight_loader=write)
    config = SimpleNamespace(activation="silu", is_gated=True, swiglu_limit=10.0, top_k=2, routed_scaling_factor=1.5)
    method.create_moe_runner(layer, config)
    return layer, method


def load(torch, layer, tensors):
    """Deliver as SGLang's loader does, in the order of the checkpoint."""
    for (expert, shard), kinds in tensors.items():
        name = "w2" if shard == "w2" else "w13"
        for kind, data in kinds.items():
            param = getattr(layer, f"{name}_{kind}")
            param.weight_loader(param, data, f"experts.{name}_{kind}", shard_id=shard, expert_id=expert)
