"""Distances between next-token distributions, all in [0, 1] and in float64: 0 for equal ones.

Legend: V vocabulary; any axes before it.
"""

import math

import torch
from torch import Tensor


def probabilities(logits_V: Tensor) -> Tensor:
    """Softmax over the last axis, float64. A row with a logit that is NaN or +inf is NaN throughout."""
    return torch.softmax(logits_V.double(), dim=-1)


def total_variation(p_V: Tensor, q_V: Tensor) -> Tensor:
    """1/2 sum |p - q|: the largest difference in the probability of any set of tokens; 1 for disjoint ones."""
    return ((p_V - q_V).abs().sum(-1) / 2).clamp(0, 1)


def jensen_shannon_divergence(p_V: Tensor, q_V: Tensor) -> Tensor:
    """1/2 KL(p || m) + 1/2 KL(q || m) in bits, m = (p + q) / 2; 1 for disjoint ones."""
    m_V = (p_V + q_V) / 2
    terms_V = sum(torch.special.xlogy(r_V, r_V) - torch.special.xlogy(r_V, m_V) for r_V in (p_V, q_V))
    assert isinstance(terms_V, Tensor)
    # Equal distributions can come out a rounding below zero.
    return (terms_V.sum(-1) / (2 * math.log(2))).clamp(0, 1)


def jensen_shannon_distance(p_V: Tensor, q_V: Tensor) -> Tensor:
    """Square root of the divergence in bits: a metric."""
    return jensen_shannon_divergence(p_V, q_V).sqrt()


def one_minus_cosine(p_V: Tensor, q_V: Tensor) -> Tensor:
    """1 - p.q / (|p| |q|), formed as half the squared distance of the unit vectors, which loses no digits near 0."""
    unit_p, unit_q = (r_V / torch.linalg.vector_norm(r_V, dim=-1, keepdim=True) for r_V in (p_V, q_V))
    return ((unit_p - unit_q).square().sum(-1) / 2).clamp(0, 1)


DISTANCES = {
    "total_variation": total_variation,
    "jensen_shannon_distance": jensen_shannon_distance,
    "jensen_shannon_divergence": jensen_shannon_divergence,
    "one_minus_cosine": one_minus_cosine,
}
"""By the names of their columns."""
