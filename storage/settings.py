"""What is kept and where: the `data.*`, `bank.*` and `tracking.*` settings."""

from dataclasses import dataclass

BYTES_NAME = "bytes"
"""The `data.tokenizer` that needs no file."""


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The text: which documents, how they become tokens, how tokens become windows."""

    files: tuple[str, ...] = ()
    """Text (.txt), JSON lines (.jsonl, .json, also .zst/.gz/.xz) or .parquet files; globs are expanded.

    Empty: the shipped corpus."""
    field: str = "text"
    """Column that holds the text in JSON lines and parquet files."""
    tokenizer: str = BYTES_NAME
    """`bytes`: one token per UTF-8 byte, vocabulary 256. Else the path of a Hugging Face tokenizer.json."""
    packing: str = "document"
    """`document`: windows stay inside a document. `eos`: documents are joined by an end-of-text token."""

    def __post_init__(self) -> None:
        if self.tokenizer != BYTES_NAME and not self.tokenizer.endswith(".json"):
            raise ValueError(
                f"data.tokenizer is {self.tokenizer!r}; write 'bytes' or the path of a Hugging Face tokenizer.json"
            )
        if self.packing not in ("document", "eos"):
            raise ValueError(f"data.packing is {self.packing!r}; write 'document' or 'eos'")
        if not self.field:
            raise ValueError("data.field is empty; name the column that holds the text, for example data.field=text")


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
