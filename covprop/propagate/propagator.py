"""`Propagator`: a model that maps images to the Gaussian of its logits under input noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.gaussian import Gaussian, Moments
from covprop.logits import as_logits
from covprop.pixels import check_sigma
from covprop.propagate.inputs import check_images, check_momentum, check_shape, type_named
from covprop.propagate.measure import measure
from covprop.propagate.parts import Parts
from covprop.propagate.plan import Plan, full_precision
from covprop.propagate.plans import Plans, check_same_steps
from covprop.propagate.settings import PAPER, Settings, check_settings
from covprop.propagate.tracing.links import check_links


def _note_calibrations(module: nn.Module, incompatible: object) -> None:
    assert isinstance(module, Propagator)
    module._measured = bool(module.calibrations > 0)


class Propagator(nn.Module):
    """Propagate N(x, σ²I) through a classifier in closed form.

    The input of every layer is Gaussian with a mean for each image and pixel and one channel
    covariance Σ for all of them. Σ depends on the weights and σ alone, so one small pass serves
    the whole batch, and none is needed inside `frozen()`.

    The model is used as it is: its modules, parameters and modes are its own, and it trains
    through the propagator (`prop.parameters()` are the model's).

    Args:
        model: any nn.Module that torch.fx can trace, returning logits [batch, classes].
        sigma: standard deviation of the noise, on the scale of the model's input.
        input_shape: shape of one image, (channels, height, width).
        settings: `PAPER`, `REFERENCE` or your own.
        calibrated: correct the propagated variances by measured ones; see `calibrate`.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        >>> prop = Propagator(model, sigma=0.25, input_shape=(1, 8, 8))
        >>> out = prop(torch.zeros(5, 1, 8, 8))
        >>> out.mean.shape, out.cov.shape
        (torch.Size([5, 3]), torch.Size([3, 3]))
    """

    calibrations: Tensor

    def __init__(
        self,
        model: nn.Module,
        sigma: float,
        input_shape: Sequence[int],
        settings: Settings = PAPER,
        calibrated: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.sigma = check_sigma(sigma)
        self.settings = check_settings(settings)
        auto = settings.products == "auto"
        self._in_half = settings.but(products="bfloat16") if auto else settings
        self.input_shape = check_shape(input_shape)
        self.calibrated = calibrated
        self.plans = Plans(model, self.input_shape, settings)
        self.r_max: dict[str, float] | None = None
        self._frozen: tuple[list[Tensor | None], Tensor] | None = None
        self._parts: dict[bool, Parts] | None = None
        self._measured = False  # host-side copy of calibrations > 0
        if calibrated:
            check_same_steps(self.plans[False], self.plans[True])
            device = next(model.parameters(), torch.empty(0)).device
            self.register_buffer("calibrations", torch.tensor(0, device=device))
            for slot, step in enumerate(self.plan.steps, start=1):
                if step.rule is not None:
                    self.register_buffer(
                        f"variance_{slot}", torch.zeros(step.channels, device=device)
                    )
            self.register_load_state_dict_post_hook(_note_calibrations)

    @property
    def plan(self) -> Plan:
        """The steps for the mode the model is in."""
        return self.plans[self.model.training]

    def forward(self, x: Tensor) -> Gaussian:
        """Mean [b, classes] and covariance [classes, classes] of the logits under the noise."""
        self._check(x)
        if x.dtype == next(self.model.parameters(), x).dtype:
            mean, cov = self._moments(x)
        else:
            with type_named(x, self.model):
                mean, cov = self._moments(x)
        # Checked here too, since a squeeze() in forward also drops the dimension of a batch of one.
        return Gaussian(as_logits(mean, len(x), type(self.model).__name__), cov, self.sigma)

    def _check(self, x: Tensor) -> None:
        check_images(x, self.input_shape, self.model)
        check_links(self.model, self.plan.root, self.plan.links)

    def _moments(self, x: Tensor) -> Moments:
        if self._frozen is not None:
            deviations, cov = self._frozen
            return Moments(self.plan.means(x, deviations, self.settings), cov)
        if self.settings.r_max == "estimated" and self.r_max is None:
            self.measure_r_max(x)
        if self.calibrated and not self._measured:
            self.calibrate(x)
        settings = self._settings(x)
        correct = self._correct if self.calibrated else None
        if self.plan.needs_image():
            return self.plan.run(x, self._input_cov(x), settings, correct)
        if self._parts is not None:
            return self._parts[self.model.training](x, self._input_cov(x), settings)
        with full_precision(x):
            covs = self.plan.covariances(self._input_cov(x), settings, correct)
            deviations = self.plan.deviations(covs)
        return Moments(self.plan.means(x, deviations, settings), self._output(covs))

    def overlaps(self) -> bool:
        """Whether the two passes can run concurrently: on a GPU, if Σ needs no image."""
        weight = next(self.model.parameters(), torch.empty(0))
        return weight.is_cuda and not self.calibrated and not self.plan.needs_image()

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the passes by torch.compile, with its options.

        On a GPU, if Σ needs no image, the two passes are compiled separately and overlap.

        Example:
            >>> prop.compile()      # doctest: +SKIP
        """
        if self.overlaps():
            device = next(self.model.parameters()).device
            self._parts = {mode: Parts(plan, device) for mode, plan in self.plans.known.items()}
        else:
            super().compile(*args, **options)

    def covariances(self) -> list[Tensor | None]:
        """Σ at the input and after every step (None for values without noise), image-free.

        Batch norms use their running variance here, also in training mode.
        """
        if self.calibrated and not self._measured:
            raise InvalidInput("nothing is calibrated yet: call prop.calibrate(x) first.")
        check_links(self.model, self.plan.root, self.plan.links)
        like = next(self.model.parameters(), torch.empty(0))
        correct = self._correct if self.calibrated else None
        settings = self._settings(like)
        with full_precision(like):
            return self.plan.covariances(self._input_cov(like), settings, correct)

    def logit_covariance(self) -> Tensor:
        """Σ of the logits [classes, classes], image-free as in `covariances`."""
        return self._output(self.covariances())

    @contextmanager
    def frozen(self) -> Iterator[Propagator]:
        """Compute Σ once and reuse it: for evaluation, while the weights do not change."""
        before = self._frozen
        with torch.no_grad():
            covs = self.covariances()
            self._frozen = (self.plan.deviations(covs), self._output(covs))
        try:
            yield self
        finally:
            self._frozen = before

    def __getstate__(self) -> dict[str, Any]:
        """What a copy gets: one that is made within `frozen` would never thaw."""
        return {**self.__dict__, "_frozen": None}

    @torch.no_grad()
    def measure_r_max(self, x: Tensor, samples: int = 16) -> dict[str, float]:
        """Measure r_max of every convolution and pool from noisy samples of a few images: the
        correlation of its output's pixels or, with `multi_block`, of the pixels that it sums.

        With `r_max="estimated"` in the settings the result is used from then on; the first forward
        pass measures on its own batch if nothing was measured before.
        """
        self._check(x)
        r_max: dict[str, float] = {}
        for plan in self.plans.measured():
            found = measure(plan, self.model, x, self.sigma, samples)
            between = {slot: layer.correlation for slot, layer in found.items()} | {0: 0.0}
            for slot in found:  # the largest value, if a layer is used more than once
                step = plan.steps[slot - 1]
                ends = step.random if self.settings.multi_block else (slot,)
                seen = max(between[end] for end in ends)
                r_max[step.name] = max(seen, r_max.get(step.name, 0.0))
        self.r_max = r_max
        return r_max

    @torch.no_grad()
    def calibrate(self, x: Tensor, samples: int = 2, momentum: float = 0.0) -> None:
        """Measure each layer's channel variances on noisy samples of x.

        new = momentum · old + (1 − momentum) · measured, with a momentum in [0, 1): 0 keeps only
        this measurement, 0.9 is an exponential average over training steps. Propagated covariances
        are then rescaled to D Σ D, with D = √(measured/propagated) held constant: measured
        variances, propagated correlations.
        """
        if not self.calibrated:
            raise InvalidInput("calibrate needs Propagator(..., calibrated=True).")
        self._check(x)
        check_momentum(momentum)
        found = measure(self.plans[False], self.model, x, self.sigma, samples)
        for slot, layer in found.items():
            old = getattr(self, f"variance_{slot}")
            new = layer.variance
            if self._measured and momentum:
                new = momentum * old + (1 - momentum) * new
            setattr(self, f"variance_{slot}", new)
        self.calibrations = self.calibrations + 1
        self._measured = True

    def _correct(self, slot: int, cov: Tensor) -> Tensor:
        measured = getattr(self, f"variance_{slot}").to(cov.dtype)
        propagated = torch.diagonal(cov).detach()
        tiny = torch.finfo(cov.dtype).tiny
        scale = torch.sqrt(measured / propagated.clamp_min(tiny))
        scale = torch.where(propagated > 0, scale, torch.ones_like(scale))
        return cov * (scale[:, None] * scale[None, :])

    def _output(self, covs: list[Tensor | None]) -> Tensor:
        return self.plan.logit_covariance(covs[self.plan.output])

    def _settings(self, like: Tensor) -> Settings:
        """The settings of this call: r_max as measured, products in half where autocast is on."""
        half = like.is_cuda and torch.is_autocast_enabled("cuda")
        settings = self._in_half if half else self.settings
        if settings.r_max != "estimated":
            return settings
        if self.r_max is None:
            raise InvalidInput('r_max="estimated" needs images: call prop.measure_r_max(x) first.')
        return settings.but(r_max=self.r_max)

    def _input_cov(self, like: Tensor) -> Tensor:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        eye = torch.eye(self.input_shape[0], dtype=dtype, device=like.device)
        return self.sigma**2 * eye

    def extra_repr(self) -> str:
        return f"sigma={self.sigma}, input_shape={self.input_shape}, steps={len(self.plan.steps)}"
