"""Mamba-2 (arXiv:2405.21060)."""

from models.architecture import Architecture
from models.mamba2.dims import SIZES, Mamba2Dims
from models.mamba_layout import MambaLayout

ARCHITECTURE = Architecture(
    name="mamba2",
    dims=Mamba2Dims,
    sizes=SIZES,
    model="models.mamba2.model:Mamba2LanguageModel",
    fused_packages=("triton", "mamba-ssm", "causal-conv1d"),
    layout=MambaLayout(
        dims=Mamba2Dims,
        hf_type="mamba2",
        hf_class="Mamba2ForCausalLM",
        layer="Mamba2",
        layer_by_default=False,
        ssm_keys=("d_state", "headdim", "expand", "ngroups", "d_conv"),
        hf_keys={"headdim": "head_dim", "ngroups": "n_groups"},
        hf_more={"n_heads": "num_heads"},
        ranges={"a_init_range": "A_init_range"},
    ),
)
