"""RWKV-6 (arXiv:2404.05892), with the names of flash-linear-attention."""

from models.architecture import Architecture
from models.rwkv6.dims import SIZES, Rwkv6Dims
from models.rwkv6.layout import Rwkv6Layout

ARCHITECTURE = Architecture(
    name="rwkv6",
    dims=Rwkv6Dims,
    sizes=SIZES,
    model="models.rwkv6.model:Rwkv6LanguageModel",
    fused_packages=("triton", "fla-core"),
    layout=Rwkv6Layout(
        dims=Rwkv6Dims,
        hf_class="RWKV6ForCausalLM",
        keys={
            "n_heads": "num_heads",
            "expand_k": "expand_k",
            "expand_v": "expand_v",
            "ffn_width": "intermediate_size",
            "mix_rank": "proj_low_rank_dim",
            "decay_rank": "gate_low_rank_dim",
        },
        written={"hidden_act": "sqrelu", "norm_first": True, "norm_bias": True},
        supported={
            "attn": None,
            "attn_mode": ("chunk", "fused_recurrent"),
            "hidden_act": "sqrelu",
            "norm_bias": True,
            "norm_first": True,
        },
        # flash-linear-attention has no key for it: it takes norm_eps, and its converter changes the module afterwards.
        own={"head_norm_eps": "norm_eps", "decay_range": None},
    ),
)
