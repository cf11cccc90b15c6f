"""Initial values as published, and which parameters take no weight decay. Mamba-2's are in test_mamba2.py."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from models.architecture import ModelDims
from models.registry import dims, model_of
from tests.models.makers import random_model


def initial(architecture: str, size: str, n_layer: int) -> tuple[ModelDims, dict[str, Tensor]]:
    small = replace(dims(architecture, size), n_layer=n_layer, vocab_size=64)
    return small, model_of(small, seed=0).state_dict()


def test_mamba1_starts_at_the_published_values() -> None:
    size, values = initial("mamba1", "130m", 2)
    mixer = {
        name: values[f"backbone.layers.1.mixer.{name}"] for name in ("A_log", "D", "dt_proj.bias", "x_proj.weight")
    }
    torch.testing.assert_close(mixer["A_log"].exp(), torch.arange(1.0, 17.0).expand(1536, 16))
    assert torch.equal(mixer["D"], torch.ones(1536))
    step = F.softplus(mixer["dt_proj.bias"])
    assert 0.9e-3 <= float(step.min()) < 2e-3 < 5e-2 < float(step.max()) <= 0.11
    assert float(mixer["x_proj.weight"].abs().max()) == pytest.approx(1536**-0.5, rel=1e-2)
    out = values["backbone.layers.0.mixer.out_proj.weight"]
    assert float(out.abs().max()) == pytest.approx((1536 * size.n_layer) ** -0.5, rel=1e-2)
    assert float(values["backbone.embedding.weight"].std()) == pytest.approx(0.02, rel=0.05)


def test_gla_starts_at_the_values_of_fla() -> None:
    _, values = initial("gla", "340m", 1)
    for name, value in values.items():
        if value.ndim == 2:
            assert float(value.std()) == pytest.approx(0.02, rel=0.05), name
        elif name.endswith("bias"):
            assert not value.any(), name
        else:
            assert torch.equal(value, torch.ones_like(value)), name


def test_rwkv6_starts_at_the_official_values() -> None:
    size, values = initial("rwkv6", "70m", 3)
    for layer, exponent in enumerate((0.7, 1.35, 2.0)):
        attn = {name.split("attn.")[1]: v for name, v in values.items() if f"layers.{layer}.attn." in name}
        rate = attn["w_proj.linear.lora.2.bias"]
        assert (float(rate[0]), float(rate[-1])) == (-6.0, -1.0)
        assert float(rate[255]) == pytest.approx(-6 + 5 * (255 / 511) ** exponent, rel=1e-5)
        early = 1 - layer / size.n_layer
        assert float(attn["x_proj.0.mu"][128]) == pytest.approx(1 - 0.25**early, rel=1e-5)
        assert float(attn["x_bias"][0, 128]) == pytest.approx(1 - 0.25 ** (0.5 * early), rel=1e-5)
        assert float(attn["x_bias"][3, 128]) == pytest.approx(1 - 0.25**early - 0.3 * layer / 2, rel=1e-5)
        assert float(attn["bonus"].flatten()[1]) == pytest.approx(layer / 2 * (1 - 1 / 511) + 0.1, rel=1e-5)
        assert float(attn["g_norm.weight"][0]) == pytest.approx(((1 + layer) / 3) ** 0.7, rel=1e-5)
        assert not attn["o_proj.weight"].any()
        for name, gain in (("r_proj", 1.0), ("k_proj", 0.1)):
            weight = attn[f"{name}.linear.weight"] / gain
            torch.testing.assert_close(weight @ weight.T, torch.eye(512), rtol=0, atol=1e-4)
    assert float(values["model.embeddings.weight"].abs().max()) <= 1e-4


@pytest.mark.parametrize(
    ("architecture", "decayed"),
    [
        ("mamba1", {"conv1d.weight", "in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight"}),
        (
            "gla",
            {f"{name}_proj.weight" for name in ("q", "k", "v", "g", "o", "gate", "up", "down")}
            | {"gk_proj.0.weight", "gk_proj.1.weight", "lm_head.weight"},
        ),
        (
            "rwkv6",
            {f"{name}_proj.linear.weight" for name in ("r", "k", "v", "g")}
            | {"x_proj.0.linear.weight", "x_proj.2.weight", "lora.0.weight", "lora.2.weight", "o_proj.weight"}
            | {"key.linear.weight", "value.weight", "receptance.linear.weight", "lm_head.weight"},
        ),
    ],
)
def test_weight_decay_spares_all_but_matrices(architecture: str, decayed: set[str]) -> None:
    model = random_model(architecture)
    names = {name for name, _ in model.named_parameters()} - model.no_decay_parameters() - {model.dims.EMBEDDING}
    assert len(names) == len([n for n in names if any(n.endswith(f"{suffix}") for suffix in decayed)])
    assert all(any(name.endswith(suffix) for name in names) for suffix in decayed)
