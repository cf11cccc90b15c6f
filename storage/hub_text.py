"""The text of a dataset, streamed row by row through Hugging Face `datasets`, from any place that was reached before.

The Hub's files are read over the network as they are needed; `datasets` writes nothing but an empty folder, and that
goes to a temporary place. Rows come in the order of the dataset's files, without shuffling: only then does its
`state_dict` continue exactly (with a shuffle buffer rows are lost and repeated).
"""

import difflib
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import StorageError
from storage.hub import commit_of, is_folder, reason
from storage.settings import DataSettings

State = dict[str, Any]
"""Place in a split, as JSON holds it: `row`, the index of the next row, and the `stream`'s own state."""


@dataclass(eq=False)
class HubText:
    """An open split."""

    settings: DataSettings
    row: int
    """Index of the next row, from 0 at the start of the split."""
    _stream: Any = field(repr=False)
    _rows: Iterator[dict[str, Any]] = field(repr=False)
    _opened_at: State | None = field(repr=False)

    @property
    def name(self) -> str:
        """What document ids begin with: the dataset's name, or that of its folder."""
        return Path(self.settings.dataset).name if is_folder(self.settings.dataset) else self.settings.dataset

    def take(self, count: int) -> list[str]:
        """The texts of the next `count` rows; fewer only at the end. Raises StorageError for a row without text."""
        try:
            rows = list(itertools.islice(self._rows, count))
        # The readers raise whatever their parsers and the network raise.
        except Exception as error:
            raise StorageError(
                f"data.dataset: {self.settings.dataset} broke off after row {self.row} ({reason(error)}); the same "
                "command goes on from the last shard that is whole"
            ) from error
        texts = [self._text_of(row, self.row + index) for index, row in enumerate(rows)]
        self.row += len(rows)
        return texts

    def state(self) -> State:
        """The place after the last row taken."""
        if self._opened_at is not None and self._opened_at["row"] == self.row:
            # `datasets` 5.2 forgets the place that was loaded until the first row after it is read.
            return self._opened_at
        return {"row": self.row, "stream": self._stream.state_dict()}

    def _text_of(self, row: Mapping[str, Any], index: int) -> str:
        column = self.settings.field
        if column not in row:
            raise _no_column(self.settings, list(row))
        if not isinstance(value := row[column], str):
            found = "empty (null)" if value is None else f"of type {type(value).__name__}"
            raise StorageError(
                f"data.field: row {index} of {self.settings.dataset} is {found} in the column {column!r}; every row "
                "must hold text there"
            )
        return value


@contextmanager
def open_hub_text(settings: DataSettings, state: State | None = None) -> Iterator[HubText]:
    """Open the split of `data.dataset` at its start, or where `state` was taken.

    Raises StorageError, in one sentence, for a dataset that is not there, is gated or cannot be reached, and for a
    configuration, split or column that it does not have.
    """
    if not is_folder(settings.dataset):
        # `datasets` words these refusals in several ways, and some of them late.
        commit_of(settings.dataset, settings.revision)
    with tempfile.TemporaryDirectory(prefix="datasets-") as cache:
        stream = _one_column(_split(settings, _open_splits(settings, cache)), settings)
        if state is not None:
            stream.load_state_dict(state["stream"])
        yield HubText(settings, state["row"] if state else 0, stream, iter(stream), state)


def _open_splits(settings: DataSettings, cache: str) -> Mapping[str, Any]:
    datasets = _import_datasets()
    where = {"path": settings.dataset, "revision": settings.revision or None}
    try:
        builder = datasets.load_dataset_builder(**where, name=settings.dataset_config or None, cache_dir=cache)
        splits: Mapping[str, Any] = builder.as_streaming_dataset()
    # As above: several libraries speak here.
    except Exception as error:
        _check_configuration(datasets, where, settings)
        raise StorageError(
            f"data.dataset: {settings.dataset} cannot be opened ({reason(error)}); `datasets` {datasets.__version__} "
            "reads repositories and folders of parquet, JSON lines and text files, and runs no loading scripts"
        ) from error
    return splits


def _check_configuration(datasets: Any, where: Mapping[str, Any], settings: DataSettings) -> None:
    """Raise StorageError if that is what was wrong: a configuration that is not there, or none where one is needed."""
    try:
        names: list[str] = datasets.get_dataset_config_names(**where)
    except Exception:  # then something else is wrong, which the caller says
        return
    if settings.dataset_config and settings.dataset_config not in names:
        raise StorageError(
            f"data.dataset_config: {settings.dataset} has no configuration {settings.dataset_config!r}; "
            f"{_choose(names, settings.dataset_config, 'data.dataset_config')}"
        )
    if not settings.dataset_config and len(names) > 1:
        raise StorageError(
            f"data.dataset_config: {settings.dataset} has several configurations; "
            f"{_choose(names, 'default', 'data.dataset_config')}"
        )


def _split(settings: DataSettings, splits: Mapping[str, Any]) -> Any:
    if settings.dataset_split in splits:
        return splits[settings.dataset_split]
    names = [str(name) for name in splits]
    raise StorageError(
        f"data.dataset_split: {settings.dataset} has no split {settings.dataset_split!r}; "
        f"{_choose(names, settings.dataset_split, 'data.dataset_split')}"
    )


def _one_column(stream: Any, settings: DataSettings) -> Any:
    """The stream with the text's column alone, so that no other is decoded."""
    if stream.features is None:  # known only once it is read
        return stream
    if settings.field not in stream.features:
        raise _no_column(settings, list(stream.features))
    return stream.select_columns([settings.field])


def _no_column(settings: DataSettings, columns: Sequence[str]) -> StorageError:
    return StorageError(
        f"data.field: {settings.dataset} has no column {settings.field!r}; "
        f"{_choose(columns, settings.field, 'data.field')}"
    )


def _choose(names: Sequence[str], asked: str, setting: str) -> str:
    """What there is, and the nearest to what was asked for."""
    best = (difflib.get_close_matches(asked, names, n=1, cutoff=0) or ["NAME"])[0]
    shown = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"it has {shown or 'none'}: write {setting}={best}"


def _import_datasets() -> Any:
    """Import `datasets`, offline if and only if the Hub's client is: `storage.user_files` may have imported it so."""
    import datasets
    from huggingface_hub import constants

    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    return datasets
