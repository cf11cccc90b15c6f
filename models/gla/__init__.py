"""Gated linear attention (arXiv:2312.06635), as flash-linear-attention has it."""

from models.architecture import Architecture
from models.gla.dims import SIZES, GlaDims
from models.gla.layout import GlaLayout

ARCHITECTURE = Architecture(
    name="gla",
    dims=GlaDims,
    sizes=SIZES,
    model="models.gla.model:GlaLanguageModel",
    fused_packages=("triton", "fla-core"),
    layout=GlaLayout(
        dims=GlaDims,
        hf_class="GLAForCausalLM",
        keys={"n_heads": "num_heads", "expand_k": "expand_k", "expand_v": "expand_v", "mlp_width": "intermediate_size"},
        own={"gate_range": None},
        written={"hidden_act": "swish", "use_short_conv": False, "use_output_gate": True, "fuse_norm": True},
        supported={
            "attn": None,
            "attn_mode": ("chunk", "fused_chunk", "fused_recurrent"),
            "clamp_min": None,
            "feature_map": None,
            "fuse_norm": True,
            "hidden_act": "swish",
            "num_kv_heads": None,
            "use_output_gate": True,
            "use_short_conv": False,
        },
    ),
)
