"""The errors a user can cause. Each message is one clear sentence that names the thing and the remedy."""


class CovpropError(Exception):
    """Base of every error that is the user's to mend; the command line prints it and exits with 2."""


class UnsupportedModel(CovpropError):
    """A model holds operations that no rule covers; the message lists every one of them."""


class InvalidInput(CovpropError, ValueError):
    """An argument, a file or a tensor is not what the operation needs."""
