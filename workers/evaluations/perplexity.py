"""Perplexity by position: windows are streamed in chunks from zero state, with the state carried from chunk to chunk.

Memory depends on the chunk, not on the length. Every arm sees the same windows, always from zero state. Windows are
shared out over the workers; each window's sums are its own, so the curve does not depend on how.

Legend: W windows of one pass, C tokens of a chunk.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from models.interface import RecurrentLanguageModel
from models.loss import token_nll
from storage.curves import Curve, CurveBuilder
from storage.windows import EvaluationWindow
from workers.context import TrialContext
from workers.evaluations.sharing import dealt_order
from workers.settings import TrialConfig

TOKENS_AT_ONCE = 8192
"""Tokens of one forward pass: as many windows go together as this allows, one at least."""

Tell = Callable[[int, int], None]
"""Told (positions done, positions in all) as an evaluation goes on."""


def evaluate_splits(
    model: RecurrentLanguageModel,
    splits: dict[str, list[EvaluationWindow]],
    config: TrialConfig,
    context: TrialContext,
) -> dict[str, Curve]:
    """The curve of each split, whole on every worker."""
    return {split: _share_out(model, windows, split, config, context) for split, windows in splits.items()}


def _share_out(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    split: str,
    config: TrialConfig,
    context: TrialContext,
) -> Curve:
    mine = windows[context.rank :: context.world]

    def tell(done: int, total: int) -> None:
        # Only the first worker knows how far it is; several would have to report equally often.
        if context.world == 1:
            context.report({"phase": f"evaluating {split}", "at": done, "of": total, "history": []})

    curve = measure(model, mine, split, config, context.device, tell) if mine else None
    gathered = context.gather(curve)
    if context.world == 1:
        return gathered[0]
    return interleave([part for part in gathered if part is not None])


def measure(
    model: RecurrentLanguageModel,
    windows: Sequence[EvaluationWindow],
    split: str,
    config: TrialConfig,
    device: torch.device,
    tell: Tell | None = None,
) -> Curve:
    """The curve of these windows (one at least, all of this split) on this worker."""
    length, chunk = config.eval.length, config.eval.chunk
    builder = CurveBuilder(
        document_ids=tuple(window.document_id for window in windows),
        starts=[window.start for window in windows],
        length=length,
        split=split,
        train_length=config.trial.context,
        unit=windows[0].unit,
        bytes_per_token=windows[0].bytes_per_token,
    )
    together = max(1, TOKENS_AT_ONCE // chunk)
    passes = [(first, windows[first : first + together]) for first in range(0, len(windows), together)]
    for number, (first, some) in enumerate(passes):
        for position, nll_WC in stream_nll(model, some, length, chunk, device):
            builder.accumulate(nll_WC, position, first)
            if tell and (position // chunk) % 4 == 0:
                tell(number * length + position, len(passes) * length)
    return builder.finish()


@torch.no_grad()
def stream_nll(
    model: RecurrentLanguageModel, windows: Sequence[EvaluationWindow], length: int, chunk: int, device: torch.device
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (first position of the chunk, NLL (W, C) in nats) over the windows' whole length."""
    state = None
    was_training = model.training
    model.eval()
    try:
        for start in range(0, length, chunk):
            stop = min(length, start + chunk)
            tokens_WC1 = torch.from_numpy(np.stack([window.tokens(start, stop + 1) for window in windows])).to(device)
            hidden_WCD, state = model(tokens_WC1[:, :-1], state)
            # The target of the chunk's last input is the next chunk's first token: no position is lost at the cut.
            yield start + 1, token_nll(hidden_WCD, tokens_WC1[:, 1:], model).cpu().numpy()
    finally:
        model.train(was_training)


def interleave(parts: Sequence[Curve]) -> Curve:
    """One curve from the workers' shares, windows in the order in which they were dealt out."""
    order = dealt_order([len(part.starts) for part in parts])
    ids = [name for part in parts for name in part.document_ids]
    first = parts[0]
    return Curve(
        edges=first.edges,
        nll_sum=np.concatenate([part.nll_sum for part in parts])[order],
        count=np.concatenate([part.count for part in parts])[order],
        nonfinite=np.concatenate([part.nonfinite for part in parts])[order],
        document_ids=tuple(ids[index] for index in order),
        starts=np.concatenate([part.starts for part in parts])[order],
        split=first.split,
        train_length=first.train_length,
        unit=first.unit,
        bytes_per_token=first.bytes_per_token,
    )
