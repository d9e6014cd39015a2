"""The one value that flows: the mean and covariance of a Gaussian."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Moments(NamedTuple):
    """The two tensors of a `Gaussian`, as a plain tuple."""

    mean: Tensor
    cov: Tensor


class Gaussian(Moments):
    """A batch of Gaussians that share one covariance over channels.

    Every pixel p of image b is N(mean[b, :, p], cov): means differ by image and pixel, the
    covariance over channels is one matrix for all of them.

    `sigma` is the input noise it was propagated from, None where that is not known. It is an
    attribute and not an entry of the tuple: vmap, forward-mode derivatives and CUDA graphs take
    results apart into tensors, and put them together again without it.

    Example:
        >>> import torch
        >>> out = Gaussian(torch.zeros(8, 10), torch.eye(10))
        >>> out.mean.shape, out.cov.shape
        (torch.Size([8, 10]), torch.Size([10, 10]))
    """

    sigma: float | None = None

    def __new__(cls, mean: Tensor, cov: Tensor, sigma: float | None = None) -> Gaussian:
        self = super().__new__(cls, mean, cov)
        self.sigma = sigma
        return self
