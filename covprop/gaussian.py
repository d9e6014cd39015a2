"""The one value that flows: the mean and covariance of a Gaussian."""

from typing import NamedTuple

from torch import Tensor


class Gaussian(NamedTuple):
    """A batch of Gaussians that share one covariance over channels.

    Every pixel p of image b is N(mean[b, :, p], cov): means differ by image and pixel, the
    covariance over channels is one matrix for all of them.

    Example:
        >>> import torch
        >>> out = Gaussian(torch.zeros(8, 10), torch.eye(10))
        >>> out.mean.shape, out.cov.shape
        (torch.Size([8, 10]), torch.Size([10, 10]))
    """

    mean: Tensor
    cov: Tensor
