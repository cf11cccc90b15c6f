"""How large a trial's model is, with the vocabulary of its tokenizer. Imports no torch: the planner asks too."""

from models.architecture import ModelDims
from models.registry import dims
from storage.tokens import vocabulary_named
from workers.settings import TrialConfig


def vocab_size(config: TrialConfig) -> int:
    """Entries of the tokenizer in use."""
    return vocabulary_named(config.data.tokenizer)


def model_dims(config: TrialConfig) -> ModelDims:
    """Dimensions of the trial's model."""
    return dims(config.model.architecture, config.model.size, vocab_size(config))
