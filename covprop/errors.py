"""The errors a user can cause: each message is one sentence naming the thing and the remedy."""


class CovpropError(Exception):
    """Base of every error that is the user's to mend; the command line exits with 2 on it."""


class UnsupportedModel(CovpropError):
    """A model holds operations that no rule covers; the message lists every one of them.

    `faults` holds the same as a tuple of (name, operation, where, why, remedy).
    """

    faults: tuple = ()


class InvalidInput(CovpropError, ValueError):
    """An argument, a file or a tensor is not what the operation needs."""
