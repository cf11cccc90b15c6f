"""What is kept and where: the `data.*`, `bank.*` and `tracking.*` settings."""

import re
from dataclasses import dataclass

BYTES_NAME = "bytes"
"""The `data.tokenizer` that needs no file."""
TRAIN_SPLIT = "train"
MAIN_REVISION = "main"
LOST_DATASETS = ("EleutherAI/pile", "EleutherAI/the_pile", "the_pile")
"""Names of the Pile as it was: its files were taken down."""
_HUB_TOKENIZER = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")


def is_hub_tokenizer(name: str) -> bool:
    """Whether a `data.tokenizer` is `owner/name` or `owner/name@revision` on the Hugging Face Hub."""
    return not name.endswith(".json") and _HUB_TOKENIZER.fullmatch(name) is not None


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The text: which documents, how they become tokens, how tokens become windows."""

    files: tuple[str, ...] = ()
    """Text (.txt), JSON lines (.jsonl, .json, also .zst/.gz/.xz) or .parquet files; globs are expanded.

    Empty, and no `dataset` either: the shipped corpus."""
    dataset: str = ""
    """A dataset of the Hugging Face Hub, `owner/name`, or a folder laid out like one; streamed, never stored whole."""
    dataset_config: str = ""
    """Which of the dataset's configurations; empty: the only one, or the default."""
    dataset_split: str = TRAIN_SPLIT
    """Which of the dataset's own splits is read. Ours are made of it, by document."""
    revision: str = ""
    """Branch, tag or commit of the dataset; empty: `main`. A run replaces it by the full commit that it stands for."""
    max_tokens: int = 0
    """Documents are taken in the dataset's order until they hold so many tokens, the last one whole; 0: all of them."""
    cache: str = ""
    """Folder of token caches that sweeps share; empty: each sweep keeps its own."""
    field: str = "text"
    """Column that holds the text in JSON lines, parquet files and datasets."""
    tokenizer: str = BYTES_NAME
    """`bytes`: one token per UTF-8 byte, vocabulary 256. Else the path of a Hugging Face tokenizer.json, or
    `owner/name` or `owner/name@revision` on the Hub."""
    packing: str = "document"
    """`document`: windows stay inside a document. `eos`: documents are joined by an end-of-text token."""

    def __post_init__(self) -> None:
        if self.tokenizer != BYTES_NAME and not self.tokenizer.endswith(".json") and not self.has_hub_tokenizer:
            raise ValueError(
                f"data.tokenizer is {self.tokenizer!r}; write 'bytes', the path of a Hugging Face tokenizer.json, or "
                "owner/name of a tokenizer on the Hugging Face Hub"
            )
        if self.packing not in ("document", "eos"):
            raise ValueError(f"data.packing is {self.packing!r}; write 'document' or 'eos'")
        if not self.field:
            raise ValueError("data.field is empty; name the column that holds the text, for example data.field=text")
        if self.max_tokens < 0:
            raise ValueError(f"data.max_tokens is {self.max_tokens}; write a number of tokens, or 0 for all of them")
        if self.dataset:
            self._check_dataset()
        else:
            self._refuse_alone()

    @property
    def has_hub_tokenizer(self) -> bool:
        """Whether the tokenizer comes from the Hub."""
        return is_hub_tokenizer(self.tokenizer)

    def _check_dataset(self) -> None:
        if self.files:
            raise ValueError(
                f"data.dataset={self.dataset} and data.files={','.join(self.files)} are both set; leave one of them out"
            )
        if self.dataset in LOST_DATASETS:
            raise ValueError(
                f"data.dataset: {self.dataset} is no longer offered, its files were taken down; write "
                "data.dataset=monology/pile-uncopyrighted, the part of the Pile without the contested texts"
            )
        if not self.dataset_split:
            raise ValueError("data.dataset_split is empty; write the name of a split, for example train")

    def _refuse_alone(self) -> None:
        usual = {"dataset_config": "", "dataset_split": TRAIN_SPLIT, "revision": "", "max_tokens": 0}
        for name, value in usual.items():
            if (found := getattr(self, name)) != value:
                raise ValueError(f"data.{name} is {found!r}, but data.dataset is not set; set it, or leave this out")


@dataclass(frozen=True, kw_only=True)
class BankSettings:
    """The state bank: how many shards, what goes through it, and the precision on the wire."""

    shards: int = 0
    """Number of Ray actors that hold the bank; 0: one for each worker. Results do not depend on it."""
    mode: str = "auto"
    """`everything`: each step's states go through the bank; `resident`: rows stay with their worker, and the bank takes
    what crosses workers or outlives them; `auto`: by the bytes of a step's states. Results do not depend on it."""
    wire_dtype: str = "fp32"
    """`fp32` or `bf16`: precision of states on their way to and from the bank. Part of the identity."""

    def __post_init__(self) -> None:
        if self.shards < 0:
            raise ValueError(f"bank.shards is {self.shards}; write a whole number, or 0 for one shard per worker")
        if self.mode not in ("auto", "everything", "resident"):
            raise ValueError(f"bank.mode is {self.mode!r}; write 'auto', 'everything' or 'resident'")
        if self.wire_dtype not in ("fp32", "bf16"):
            raise ValueError(f"bank.wire_dtype is {self.wire_dtype!r}; write 'fp32' or 'bf16'")


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """The MLflow store. Not part of any identity."""

    uri: str = "sqlite:///mlflow.db"
    """Tracking URI. The default lies in the current folder, so that a plain `mlflow ui` shows it."""

    def __post_init__(self) -> None:
        if self.uri.startswith("file:") or "://" not in self.uri:
            raise ValueError(
                f"tracking.uri is {self.uri!r}; MLflow keeps file stores in maintenance mode only, "
                "write sqlite:///mlflow.db or the address of an MLflow server"
            )
