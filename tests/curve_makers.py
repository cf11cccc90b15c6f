"""Curves with known properties for the tests of statistics, tables and figures."""

import numpy as np

from storage.curves import Curve, bin_edges


def make_curve(
    mean_nll: float = 1.2,
    *,
    rise: float = 0.0,
    documents: int = 8,
    windows_per_document: int = 1,
    spread: float = 0.1,
    noise: float = 0.0,
    seed: int = 0,
    length: int = 16384,
    train_length: int = 64,
) -> Curve:
    """NLL falls over the first positions to `mean_nll` and rises by `rise` nats per octave beyond 1K positions.

    `spread` is between documents (the same for every curve of one length), `noise` between curves by `seed`.
    """
    edges = bin_edges(length, train_length)
    ends = edges[1:].astype(np.float64)
    shape_B = mean_nll + 1.2 * (16 / ends) ** 1.5 + rise * np.maximum(np.log2(ends / 1024), 0)
    document_W = np.repeat(np.arange(documents), windows_per_document)
    level_W = spread * np.random.default_rng(99).standard_normal(documents)[document_W]
    own_W = noise * np.random.default_rng(seed).standard_normal(len(document_W))
    count = np.tile(np.diff(edges), (len(document_W), 1))
    return Curve(
        edges=edges,
        nll_sum=(shape_B[None] + (level_W + own_W)[:, None]) * count,
        count=count,
        nonfinite=np.zeros(len(document_W), np.int64),
        document_ids=tuple(f"document-{index}" for index in document_W),
        starts=np.tile(np.arange(windows_per_document) * length, documents),
        split="report",
        train_length=train_length,
    )


def curve_of(nll_W: list[float], document_ids: tuple[str, ...], count_W: list[int] | None = None) -> Curve:
    """A curve of one bin (0, 16] with these NLL sums and counts per window."""
    counts = count_W or [1] * len(nll_W)
    return Curve(
        edges=np.array([0, 16]),
        nll_sum=np.array(nll_W, np.float64)[:, None],
        count=np.array(counts, np.int64)[:, None],
        nonfinite=np.zeros(len(nll_W), np.int64),
        document_ids=document_ids,
        starts=np.arange(len(nll_W)) * 16,
        split="report",
        train_length=16,
    )
