"""The error of this package that the user can mend."""


class ModelError(ValueError):
    """A model or checkpoint that cannot be used: the message is one sentence that says what is wrong and what to do."""
