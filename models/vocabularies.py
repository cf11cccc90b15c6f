"""Sizes of the vocabularies that size presets are stated with; a trial replaces them by that of its tokenizer."""

BYTES = 256
PILE = 50277
"""Entries of the GPT-NeoX tokenizer that the published Mambas were trained with."""
