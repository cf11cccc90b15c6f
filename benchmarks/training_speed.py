"""Training and evaluation tokens/s of our Mamba-2 beside the torch path of transformers, in one run at equal threads.

    python -m benchmarks.training_speed [--threads 1] [--repeats 7] [--dims demo wide] [--lengths 64 256 1024 2048]

Both compute with the same weights, and the run stops if their logits differ. A step is forward, loss and backward of a
batch of about `--tokens` tokens; ours carries every state in and out, transformers starts from zero and returns none.
Contenders take turns in every round. Tokens/s come from the median processor time of a step, which other programs
disturb less than wall time, and ratios are of those medians. transformers pads windows to its chunk, so read its
default chunk at short windows with care. The last table compares windows of 8192 with windows of 256.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Mamba2Config, Mamba2ForCausalLM

from benchmarks.markdown import header, table
from models.loss import cross_entropy_sum
from models.mamba2.dims import SIZES, Mamba2Dims
from models.mamba2.model import Mamba2LanguageModel

DIMS = {
    "demo": SIZES["demo"],
    "wide": Mamba2Dims(d_model=128, n_layer=4, d_state=128, headdim=64, vocab_size=256),
}
CHUNKS = (32, 64, 128, 256)
DEFAULT_CHUNK = 256
Step = Callable[[], object]


def transformers_twin(model: Mamba2LanguageModel, chunk: int) -> Mamba2ForCausalLM:
    """The model of transformers with our weights."""
    size = model.dims
    config = Mamba2Config(
        num_heads=size.n_heads,
        head_dim=size.headdim,
        vocab_size=size.vocab_rows,
        hidden_size=size.d_model,
        state_size=size.d_state,
        num_hidden_layers=size.n_layer,
        layer_norm_epsilon=size.norm_eps,
        expand=size.expand,
        conv_kernel=size.d_conv,
        n_groups=size.ngroups,
        chunk_size=chunk,
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    twin = Mamba2ForCausalLM(config)
    twin.load_state_dict({n.replace("embedding.", "embeddings."): v for n, v in model.state_dict().items()})
    return twin.train()


def our_step(model: Mamba2LanguageModel, x: Tensor, y: Tensor) -> Step:
    """One training step without the optimiser, from a given state and with its final state detached."""
    start = model.zero_state(x.shape[0])

    def step() -> object:
        model.zero_grad(set_to_none=True)
        hidden, final = model(x, start)
        total, count = cross_entropy_sum(hidden, y, model)
        (total / count).backward()
        return [{name: part.detach() for name, part in layer.items()} for layer in final]

    return step


def their_step(twin: Mamba2ForCausalLM, x: Tensor, y: Tensor) -> Step:
    """The same with transformers."""

    def step() -> object:
        twin.zero_grad(set_to_none=True)
        loss = F.cross_entropy(twin(x).logits.flatten(0, 1), y.flatten())
        loss.backward()
        return loss

    return step


def our_evaluation(model: Mamba2LanguageModel, x: Tensor) -> Step:
    """A forward pass without gradient."""

    def step() -> object:
        with torch.no_grad():
            return model.head(model(x)[0])

    return step


def medians(steps: dict[str, Step], repeats: int) -> dict[str, float]:
    """Median processor seconds of each step, the steps taking turns."""
    for step in steps.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            began = time.process_time()
            step()
            seconds[name].append(time.process_time() - began)
    return {name: statistics.median(values) for name, values in seconds.items()}


def batch(length: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random inputs and targets."""
    generator = torch.Generator().manual_seed(length)
    x, y = torch.randint(256, (2, max(1, tokens // length), length), generator=generator)
    return x, y


def compare(name: str, length: int, tokens: int, repeats: int) -> list[object]:
    """One row: ours beside every chunk size of transformers."""
    model = Mamba2LanguageModel(DIMS[name], seed=0).train()
    x, y = batch(length, tokens)
    twins = {chunk: transformers_twin(model, chunk) for chunk in CHUNKS}
    with torch.no_grad():
        right = twins[DEFAULT_CHUNK](x).logits
        error = float((model.head(model(x)[0]) - right).abs().max() / right.abs().max())
    if error > 1e-4:
        raise RuntimeError(f"our logits differ from those of transformers by {error:.1e}")
    theirs = {str(chunk): their_step(twin, x, y) for chunk, twin in twins.items()}
    steps = {"ours": our_step(model, x, y), "evaluation": our_evaluation(model, x), **theirs}
    seconds = medians(steps, repeats)
    best = min(CHUNKS, key=lambda chunk: seconds[str(chunk)])
    return [
        name,
        f"{x.shape[0]} x {length}",
        f"{x.numel() / seconds['ours']:.0f}",
        f"{x.numel() / seconds['evaluation']:.0f}",
        f"{seconds[str(DEFAULT_CHUNK)] / seconds['ours']:.2f}",
        f"{seconds[str(best)] / seconds['ours']:.2f}",
        best,
        f"{error:.0e}",
    ]


def long_over_short(name: str, repeats: int) -> list[object]:
    """One row: training tokens/s of one window of 8192 over that of 32 windows of 256."""
    model = Mamba2LanguageModel(DIMS[name], seed=0).train()
    steps = {str(length): our_step(model, *batch(length, 8192)) for length in (256, 8192)}
    seconds = medians(steps, repeats)
    return [name, *(f"{8192 / seconds[key]:.0f}" for key in steps), f"{seconds['256'] / seconds['8192']:.2f}"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--repeats", type=int, default=7, help="rounds per row")
    parser.add_argument("--tokens", type=int, default=3072, help="tokens per batch")
    parser.add_argument("--dims", nargs="+", choices=DIMS, default=list(DIMS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[64, 256, 1024, 2048], help="window lengths")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(header(f"Training speed beside transformers, {options.threads} thread(s)"))
    rows = [compare(name, n, options.tokens, options.repeats) for name in options.dims for n in options.lengths]
    columns = (
        "model",
        "batch",
        "training tokens/s",
        "evaluation tokens/s",
        "over default chunk 256",
        "over best chunk",
    )
    print(table([*columns, "best chunk", "logits differ by"], rows))
    long_rows = [long_over_short(name, options.repeats) for name in options.dims]
    print(table(["model", "tokens/s at 32 x 256", "tokens/s at 1 x 8192", "ratio"], long_rows))


if __name__ == "__main__":
    main()
