"""The error of this package that the user can mend."""


class StorageError(ValueError):
    """Bad input or a bad place to keep things: the message is one sentence that says what is wrong and what to do."""
