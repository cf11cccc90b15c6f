"""Mamba-1 (arXiv:2312.00752)."""

from models.architecture import Architecture
from models.mamba1.dims import SIZES, Mamba1Dims
from models.mamba_layout import MambaLayout

ARCHITECTURE = Architecture(
    name="mamba1",
    dims=Mamba1Dims,
    sizes=SIZES,
    model="models.mamba1.model:Mamba1LanguageModel",
    fused_packages=("triton", "mamba-ssm", "causal-conv1d"),
    layout=MambaLayout(
        dims=Mamba1Dims,
        hf_type="mamba",
        hf_class="MambaForCausalLM",
        layer="Mamba1",
        layer_by_default=True,
        ssm_keys=("d_state", "expand", "d_conv", "dt_rank"),
        hf_keys={"dt_rank": "time_step_rank"},
        own=("a_scale",),
    ),
)
