"""Which class implements which architecture."""

from collections.abc import Callable

from models.interface import RecurrentLanguageModel
from models.mamba2 import Mamba2LanguageModel
from models.settings import ModelSettings
from models.sizes import Mamba2Dims, dims

ARCHITECTURES: dict[str, Callable[[Mamba2Dims, int, str], RecurrentLanguageModel]] = {"mamba2": Mamba2LanguageModel}
"""Architecture name -> constructor of (dims, seed, scan name); the names are `models.sizes.ARCHITECTURE_NAMES`."""


def build_model(settings: ModelSettings, vocab_size: int, seed: int) -> RecurrentLanguageModel:
    """Build a freshly initialised model on the CPU in fp32.

    Args:
        settings: architecture, size and scan.
        vocab_size: entries of the tokenizer in use.
        seed: the initial parameters are a function of this and the dimensions alone.
    """
    size = dims(settings.architecture, settings.size, vocab_size)
    return ARCHITECTURES[settings.architecture](size, seed, settings.scan)
