"""The errors a user can cause: each message is one sentence naming the thing and the remedy."""

from collections.abc import Sequence


class CovpropError(Exception):
    """Base of every error that is the user's to mend; the command line exits with 2 on it."""


class UnsupportedModel(CovpropError):
    """A model holds operations that no rule covers; the message lists every one of them.

    `faults` holds the same as a tuple of (name, operation, where, why, remedy).
    """

    def __init__(self, message: str, faults: Sequence = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


class InvalidInput(CovpropError, ValueError):
    """An argument, a file or a tensor is not what the operation needs."""


def install(extra: str) -> str:
    """How one of the optional packages gets here; covprop itself is on no index.

    Example:
        >>> install("onnx")
        "pip install '.[onnx]' in the folder of covprop's sources"
    """
    return f"pip install '.[{extra}]' in the folder of covprop's sources"


def first_line(error: BaseException) -> str:
    """What an error of others says, cut to a line; its type where it says nothing.

    Example:
        >>> first_line(RuntimeError("no such file\\nand a long trace")), first_line(KeyError())
        ('no such file', 'KeyError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def out_of_memory(error: BaseException) -> bool:
    """Whether the computer or a GPU had too little memory; torch has a type for the latter only.

    Example:
        >>> out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
        True
    """
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def gpu_failed(error: BaseException) -> bool:
    """Whether a GPU stopped in the middle of its work, after which this process can use it no more.

    Example:
        >>> gpu_failed(RuntimeError("CUDA error: unspecified launch failure\\nSearch for ..."))
        True
    """
    return isinstance(error, RuntimeError) and str(error).startswith("CUDA error: ")


def machine_failed(error: BaseException) -> bool:
    """Whether an error tells of the machine, and so nothing of the network or images given.

    Example:
        >>> machine_failed(MemoryError()), machine_failed(RuntimeError("shapes cannot be added"))
        (True, False)
    """
    return out_of_memory(error) or gpu_failed(error)
