"""Splits, disjoint by document: `train`, `select` (choosing), `report` (tables and figures), and `apart`.

A document's split follows from the SHA-256 of its text: the first 8 bytes as a fraction of 2^64, below 0.70 `train`,
below 0.85 `select`, else `report`. Hashing the text rather than the name makes two copies of a text land together, so
no report document was trained on under another name; and adding documents moves no other (but see `assign_splits`).
`apart` holds the shipped novel only: reported apart, never trained on.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable

TRAIN, SELECT, REPORT, APART = "train", "select", "report", "apart"
FRACTIONS = {TRAIN: (0.0, 0.70), SELECT: (0.70, 0.85), REPORT: (0.85, 1.0)}
"""Interval [low, high) of the hash fraction that belongs to each split."""


def text_hash(text: str) -> str:
    """SHA-256 of the UTF-8 text, hex. A lone surrogate is hashed as it stands (the tokenizer refuses it)."""
    return hashlib.sha256(text.encode("utf-8", errors="surrogatepass")).hexdigest()


def hash_fraction(content_hash: str) -> float:
    """The first 8 bytes of a hex hash as a fraction in [0, 1]."""
    return int(content_hash[:16], 16) / 2**64


def split_of(content_hash: str) -> str:
    """The split of a document with this text hash: `train`, `select` or `report`."""
    fraction = hash_fraction(content_hash)
    return next((name for name, (_, high) in FRACTIONS.items() if fraction < high), REPORT)


def assign_splits(content_hashes: Iterable[str]) -> dict[str, str]:
    """Split of every distinct text hash; all three splits are filled where there are at least three texts.

    With few documents the fractions can leave a split empty. It then takes, from a split that has more than one, the
    text whose fraction lies nearest to its own interval. That is deterministic and independent of the documents'
    order; with dozens of documents it never happens. With fewer than three texts a split stays empty.
    """
    split_by_hash = {content_hash: split_of(content_hash) for content_hash in sorted(set(content_hashes))}
    for split, (low, high) in FRACTIONS.items():
        sizes = Counter(split_by_hash.values())
        donors = [text for text, owner in split_by_hash.items() if sizes[owner] > 1]
        if sizes[split] == 0 and donors:
            split_by_hash[min(donors, key=lambda text: _distance(hash_fraction(text), low, high))] = split
    return split_by_hash


def _distance(fraction: float, low: float, high: float) -> float:
    return max(low - fraction, fraction - high, 0.0)
