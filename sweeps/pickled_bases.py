"""Pickled weights, read once before a sweep starts: they have no header that a plan could look at. Imports no torch."""

import multiprocessing
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from models.architecture import ModelDims
from models.content import CONFIG, read_config, weights_files
from models.errors import ModelError
from models.layout import dims_from_config, fitted_dims
from models.shipped import checkpoint_folder
from sweeps.settings import SettingError
from workers.settings import FRESH_BASE, TRAINED_BASE, TrialConfig
from workers.shapes import model_dims


def check_pickled_bases(configs: Iterable[TrialConfig]) -> None:
    """Raise SettingError where a base's pickled weights are cut, hold more than tensors, or do not fit the model.

    In a process of its own, which takes torch and the weights away with it.
    """
    bases = {
        (config.base.checkpoint, config.base.revision, model_dims(config))
        for config in configs
        if config.base.checkpoint not in (FRESH_BASE, TRAINED_BASE)
    }
    folders = {(checkpoint_folder(name, revision), dims) for name, revision, dims in bases}
    pickled = [(folder, dims) for folder, dims in folders if weights_files(folder)[0].suffix != ".safetensors"]
    if not pickled:
        return
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        for folder, dims in pickled:
            try:
                process.submit(_read, folder, dims).result()
            except ModelError as error:
                raise SettingError(str(error)) from error


def _read(folder: Path, dims: ModelDims) -> None:
    from models.checkpoints import read_tensors

    # torch warns of pickles that it did not write, and then refuses them.
    warnings.simplefilter("ignore")
    found = dims_from_config(read_config(folder), str(folder / CONFIG))
    read_tensors(folder, fitted_dims(found, dims, str(folder)))
