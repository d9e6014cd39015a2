"""What the page shows, computed for one image and one σ.

Every answer is a plain dictionary, and a function of its arguments alone: noise is drawn from
generators seeded by (draw, index), so the same question gives the same picture. Estimates come
from `covprop.margin` and `covprop.Propagator`; certificates are made elsewhere (`certifier.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from covprop.data import AnyImages
from covprop.errors import InvalidInput, UnsupportedModel
from covprop.estimate import margin
from covprop.estimate.result import gaussian_margin
from covprop.explore.layers import Inside
from covprop.explore.pictures import THUMBNAIL, image, png
from covprop.explore.plain import cloud, ellipse, margin_numbers, numbers, votes
from covprop.gaussian import Gaussian
from covprop.noise import seed_of, seeded
from covprop.pixels import check_sigma
from covprop.propagate.propagator import Propagator
from covprop.radius import top_two

BLOCK = 32  # samples in one pass; the noise of a block does not depend on how many follow
SAMPLES = (64, 128, 256, 512, 1024, 2048)
LIVE_SECONDS = 1.0  # what the samples of one view may take, by default
PAGE = 24  # thumbnails at a time

GoOn = Callable[[], None]
"""Called between blocks; raises when the answer is no longer wanted."""


class Explorer:
    """A trained classifier and a data set, ready to be looked at.

    A model that the propagation cannot take is still explored, by linearization and sampling;
    `fault` then says why.

    Args:
        model: returns logits [b, classes]; it is put in eval mode and not changed otherwise.
        images: the split to choose from.
        sigma: the noise level shown first.
        trained: the noise level the model was trained with, where known.
    """

    def __init__(
        self,
        model: nn.Module,
        images: AnyImages,
        sigma: float,
        trained: float | None = None,
    ) -> None:
        self.model, self.images = model.eval(), images
        self.sigma, self.trained = check_sigma(sigma), trained
        self.device = next(model.parameters(), torch.empty(0)).device
        self.fault = ""
        self.inside: Inside | None = None
        try:
            self.inside = Inside(model, images.image_shape)
        except UnsupportedModel as error:
            self.fault = str(error)
        self.samples_default = self._affordable()

    def about(self) -> dict[str, Any]:
        """What the page needs to know once."""
        return {
            "data": self.images.name,
            "count": len(self.images),
            "classes": list(self.images.classes),
            "sigma": self.sigma,
            "trained": self.trained,
            "fault": self.fault,
            "samples": list(SAMPLES),
            "samples_default": self.samples_default,
            "page": PAGE,
            "layers": [
                {"name": layer.name, "kind": layer.kind, "channels": layer.channels}
                for layer in (self.inside.layers if self.inside else ())
            ],
        }

    def thumbnails(self, start: int) -> dict[str, Any]:
        """Small pictures of the images from `start` on."""
        self._check(start)
        chosen = range(start, min(start + PAGE, len(self.images)))
        cpu = torch.device("cpu")
        return {
            "start": start,
            "pictures": [png(image(self.images, i, cpu)[0], THUMBNAIL) for i in chosen],
            "labels": [int(self.images.labels[i]) for i in chosen],
        }

    def estimates(
        self,
        index: int,
        sigma: float,
        draw: int = 0,
        layer: int | None = None,
        channels: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """The pictures, and what is known in closed form without sampling."""
        x = self.image(index)
        noisy = x[0] + sigma * next(self._noise(index, draw))[0]
        pair, out = self._top_two(x, sigma)
        margins = {"linearized": margin(self.model, x, sigma, "linearized")}
        ellipses = {"linearized": self._linearized(x, sigma, pair)}
        if out is not None:
            margins = {"shared": gaussian_margin(out, sigma), **margins}
            ellipses = {"shared": ellipse(out.mean[0], out.cov, pair), **ellipses}
        found = {
            "index": index,
            "sigma": sigma,
            "label": int(self.images.labels[index]),
            "clean": png(x[0]),
            "noisy": png(noisy),
            "pair": list(pair),
            "margins": {name: margin_numbers(m, sigma) for name, m in margins.items()},
            "ellipses": ellipses,
        }
        if layer is not None:
            inside = self._propagated()
            chosen, two = inside.choose(x, sigma, layer, channels)
            found["layer"] = inside.ellipse(x, sigma, chosen, two)
        return found

    def calibrated(self, index: int, sigma: float) -> dict[str, Any]:
        """The estimate corrected by a few noisy samples: `covprop.margin(…, "calibrated")`."""
        self._propagated()
        x = self.image(index)
        pair, _ = self._top_two(x, sigma)
        prop = Propagator(self.model, sigma, self.images.image_shape, calibrated=True)
        with torch.no_grad(), seeded(seed_of("explore", "calibrate", index), self.device):
            prop.calibrate(x, samples=8)
            out = prop(x)
        return {
            "pair": list(pair),
            "margin": margin_numbers(gaussian_margin(out, sigma), sigma),
            "ellipse": ellipse(out.mean[0], out.cov, pair),
        }

    @torch.no_grad()
    def samples(
        self,
        index: int,
        sigma: float,
        draw: int = 0,
        n: int = SAMPLES[0],
        layer: int | None = None,
        channels: tuple[int, int] | None = None,
        go_on: GoOn = lambda: None,
    ) -> dict[str, Any]:
        """Monte Carlo: how n noisy copies are classified, and where two values of them fall."""
        x = self.image(index)
        pair, _ = self._top_two(x, sigma)
        chosen = None
        if layer is not None:
            chosen, channels = self._propagated().choose(x, sigma, layer, channels)
        logits, points = [], []
        noise = self._noise(index, draw)
        for _ in range(math.ceil(n / BLOCK)):
            go_on()
            noisy = x + sigma * next(noise)
            if chosen is None or channels is None:
                logits.append(self.model(noisy))
            else:
                outs, two = self._propagated().run(noisy, chosen, channels)
                logits.append(outs)
                points.append(two)
        all_logits = torch.cat(logits)[:n].double()
        found = {"n": n, "pair": list(pair), **votes(all_logits)}
        found["logits"] = cloud(all_logits[:, pair])
        if channels is not None and points:
            found["layer"] = {"channels": list(channels), **cloud(torch.cat(points)[:n].double())}
        return found

    def _propagated(self) -> Inside:
        if self.inside is None:
            raise InvalidInput(self.fault)
        return self.inside

    def _check(self, index: int) -> None:
        if not 0 <= index < len(self.images):
            raise InvalidInput(
                f"there is no image {index}: {self.images.name} has 0 to {len(self.images) - 1}."
            )

    def image(self, index: int) -> Tensor:
        """Image `index` as [1, c, h, w] on the model's device."""
        self._check(index)
        return image(self.images, index, self.device)

    def _noise(self, index: int, draw: int) -> Iterator[Tensor]:
        """Blocks of standard normal noise; the very first is the one in the picture."""
        generator = torch.Generator(self.device).manual_seed(seed_of("explore", draw, index))
        while True:
            shape = (BLOCK, *self.images.image_shape)
            yield torch.randn(shape, generator=generator, device=self.device)

    def _top_two(self, x: Tensor, sigma: float) -> tuple[tuple[int, int], Gaussian | None]:
        """The two classes of the view, by the propagated mean where there is one."""
        out = None
        if self.inside is not None:
            out = self.inside.output(x, sigma)
            mean = out.mean
        else:
            with torch.no_grad():
                mean = self.model(x)
        found = top_two(mean)
        return (int(found.top), int(found.runner_up)), out

    def _linearized(self, x: Tensor, sigma: float, pair: tuple[int, int]) -> dict[str, Any]:
        """σ²JJᵀ of two logits at the clean image."""
        with torch.enable_grad():
            point = x.detach().requires_grad_(True)
            two = self.model(point)[0, list(pair)]
            rows = [torch.autograd.grad(u, point, retain_graph=True)[0].flatten() for u in two]
        jacobian = torch.stack(rows)
        return {"mean": numbers(two.detach()), "cov": numbers(sigma**2 * jacobian @ jacobian.T)}

    @torch.no_grad()
    def _affordable(self) -> int:
        """As many samples as take about a second on this machine."""
        x = torch.zeros(BLOCK, *self.images.image_shape, device=self.device)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            self.model(x).sum().item()
            times.append(time.perf_counter() - start)
        blocks = LIVE_SECONDS / max(min(times), 1e-9)
        return max(n for n in SAMPLES[:-1] if n == SAMPLES[0] or n <= blocks * BLOCK)
