"""The paper's method: cross-entropy plus a hinge on the ESTIMATED radius, in closed form."""

from collections.abc import Hashable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from covprop.errors import InvalidInput
from covprop.estimate.linearized import linearize
from covprop.gaussian import Gaussian
from covprop.layers import widened
from covprop.methods.base import Losses, draw, laid_out_as, logits_of
from covprop.noise import Stream, seeded
from covprop.options import NotNegative, Range, check_fields
from covprop.pixels import Sigma
from covprop.propagate.propagator import Propagator
from covprop.propagate.settings import PAPER, REFERENCE, Settings
from covprop.radius import RadiusLoss, estimated_radius, gap_between, hinge, ratio

PRESETS = {"paper": PAPER, "reference": REFERENCE}
OVERRIDES = tuple(one.name for one in fields(Settings) if one.name != "noisy_mean")
"""Options that replace the preset's field of that name; `mean` takes the place of noisy_mean."""
OF_SIGMA = tuple(
    name for name in OVERRIDES if name not in ("offset", "hinge_in_sigma", "soft_term")
)
"""Options about a propagated Σ, which `linearized` does not have."""

CALIBRATION_IMAGES = 32
CALIBRATION_MOMENTUM = 0.9


@dataclass(eq=False)
class Radius:
    """Cross-entropy(μ, y) + λ · max(0, Γ − estimated radius) where the prediction is right.

    Three estimators give the mean of the logits μ and the variance of the margin. `linearized`
    (σ²‖∇ₓ margin‖² at the noisy image), the default, stayed accurate while it was maximised.
    `shared` (the paper's one Σ a layer) is one that networks learn to fool. `calibrated` is the
    same with its variances corrected by measured ones, an exponential average over the steps.

    Args:
        estimator: where the margin's variance comes from.
        preset: of the paper's method, with `shared` or `calibrated`: "paper" (the text, the
            default there) or "reference" (its authors' code); the options named like fields of
            `covprop.Settings` override single fields of it.
        weight: λ, switched on at epoch `from_epoch`; before that, and with 0, only the
            cross-entropy is left and no covariance reaches the loss.
        offset: Γ, where the hinge ends. Default: 1 with `linearized`, else the preset's.
        mean: what the cross-entropy and the margin see. "sample": the network's own logits of
            x + noise; "noisy": moments propagated from x + noise; "clean": moments propagated
            from x. `linearized` always takes the network's own logits, at x + noise or at x.
            Default: "sample" with `linearized`, "clean" for the paper's preset, "noisy" for the
            reference's.
        share: the part of each batch, its first images, of which `linearized` computes the radius.
            Their hinge is weighted by 1/share, which keeps its mean over the batch; the others have
            no radius. A step then costs about 1 + share plain ones instead of 2. The two parts run
            one after the other: a batch norm sees two batches.

    To weight each image's loss by its radius as well, or instead, see `covprop.methods.weighting`.
    """

    sigma: Sigma
    input_shape: tuple[int, int, int]
    estimator: Literal["shared", "calibrated", "linearized"] = "linearized"
    preset: Literal["paper", "reference"] | None = None
    weight: NotNegative = 1.0
    from_epoch: int = 0
    mean: Literal["sample", "noisy", "clean"] | None = None
    offset: float | None = None
    share: Annotated[float, Range(0, 1, strict=True)] = 1.0
    r_max: float | Literal["estimated"] | None = None
    multi_block: bool | None = None
    detach_covariance: bool | None = None
    relu_floor: float | None = None
    scale_overlapping_pool: bool | None = None
    margin_covariance: Literal["difference", "sum"] | None = None
    hinge_in_sigma: bool | None = None
    soft_term: bool | None = None
    quadrature_nodes: int | None = None
    products: Literal["auto", "float32", "bfloat16"] | None = None
    _prop: Propagator | None = field(default=None, init=False, repr=False)
    _saved: dict[str, Any] | None = field(default=None, init=False, repr=False)
    _r_max_epoch: int = field(default=-1, init=False, repr=False)  # of the last measurement

    def __post_init__(self) -> None:
        check_fields("method", self)
        linearized = self.estimator == "linearized"
        if self.share != 1 and not linearized:
            raise InvalidInput(
                f'method.share goes with method.estimator = "linearized", not "{self.estimator}".'
            )
        given = [name for name in ("preset", *OF_SIGMA) if getattr(self, name) is not None]
        if linearized and given:
            raise InvalidInput(
                f"method.{given[0]} is about a propagated Σ, so it goes with method.estimator = "
                '"shared" (or "calibrated"); for "linearized", the default, take a recipe without '
                "it, such as digits/radius-linearized-0.25."
            )
        base = PAPER.but(offset=1.0) if linearized else PRESETS[self.preset or "paper"]
        changes = {name: getattr(self, name) for name in OVERRIDES}
        self.settings: Settings = base.but(
            **{name: value for name, value in changes.items() if value is not None}
        )
        if self.mean is None and linearized:
            self.mean = "sample"
        elif self.mean is None:
            self.mean = "noisy" if self.settings.noisy_mean else "clean"

    def __call__(
        self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int, generator: torch.Generator
    ) -> Losses:
        weight = self.weight if epoch >= self.from_epoch else 0.0
        noise = draw(x, 1, self.sigma, generator)
        if self.mean == "clean":
            noise = torch.zeros_like(noise)
        if self.estimator == "linearized":
            return self._linearized(model, x, y, noise, weight)
        prop = self.propagator(model)
        self._measure(prop, x, epoch, generator)
        if self.mean == "sample":
            out = Gaussian(logits_of(model, x, noise).squeeze(1), prop.logit_covariance())
        else:
            x = x + noise.squeeze(1)
            del noise  # as large as the images
            out = prop(x)
        loss, radius = self._judge(out, y, weight)
        return Losses(loss, out.mean.detach(), radius)

    def phase(self, epoch: int) -> Hashable | None:
        """Whether the radius term is on; None if steps measure something."""
        if self.estimator == "calibrated" or self.settings.r_max == "estimated":
            return None
        return self.weight > 0 and epoch >= self.from_epoch

    def _judge(self, out: Gaussian, y: Tensor, weight: float) -> tuple[Tensor, Tensor]:
        loss = RadiusLoss(self.sigma, weight, settings=self.settings, reduction="none")(out, y)
        return loss, estimated_radius(out, self.sigma, y, self.settings).detach()

    def compile_for(self, model: nn.Module) -> bool:
        """Compile the two passes separately if they can overlap; returns whether they can."""
        prop = self.propagator(model) if self.estimator == "shared" else None
        if prop is None or self.mean == "sample" or not prop.overlaps():
            return False
        prop.compile()
        self._judge = torch.compile(self._judge, dynamic=False)  # type: ignore[method-assign]
        return True

    def _linearized(
        self, model: nn.Module, x: Tensor, y: Tensor, noise: Tensor, weight: float
    ) -> Losses:
        """The hinge for the first `share` of the batch, the cross-entropy alone for the others."""
        count = max(1, round(self.share * len(x))) if weight else 0
        parts = []
        if count:
            hinge_weight = weight * len(x) / count
            parts.append(self._hinged(model, x[:count], y[:count], noise[:count], hinge_weight))
        if count < len(x):
            logits = logits_of(model, x[count:], noise[count:]).squeeze(1)
            loss = F.cross_entropy(logits, y[count:], reduction="none")
            parts.append(Losses(loss, logits.detach(), torch.full_like(loss.detach(), torch.nan)))
        if len(parts) == 1:
            return parts[0] if count else parts[0]._replace(radius=None)
        return Losses(*(torch.cat(values) for values in zip(*parts, strict=True)))

    def _hinged(
        self, model: nn.Module, x: Tensor, y: Tensor, noise: Tensor, weight: float
    ) -> Losses:
        """The loss with Var(margin) = σ²‖∇ₓ margin‖² at each noisy image."""
        settings = self.settings
        noisy = laid_out_as(x, x + noise.squeeze(1))
        found = linearize(model, noisy, self.sigma, create_graph=True)
        logits = widened(found.logits)
        scaled, right = ratio(found.gap, found.var), found.top == y
        loss = F.cross_entropy(logits, y, reduction="none")
        loss = loss + weight * hinge(scaled, logits, right, self.sigma, settings.offset, settings)
        # Where the label loses, its gap is divided by the top two's deviation: that of its own
        # margin would cost another pass.
        behind = gap_between(logits, y, found.top)
        radius = self.sigma * torch.where(right, scaled, ratio(behind, found.var))
        return Losses(loss, logits.detach(), radius.detach())

    def propagator(self, model: nn.Module) -> Propagator:
        """The propagator over this model: built at the first call, rebuilt for another model."""
        if self._prop is None or self._prop.model is not model:
            calibrated = self.estimator == "calibrated"
            shape = self.input_shape
            self._prop = Propagator(model, self.sigma, shape, self.settings, calibrated=calibrated)
            if self._saved:
                self._apply(self._saved)
        return self._prop

    def _measure(self, prop: Propagator, x: Tensor, epoch: int, generator: torch.Generator) -> None:
        """Measure on noisy samples what the settings ask for: variances each step, r_max each
        epoch."""
        if self.settings.r_max != "estimated" and self.estimator != "calibrated":
            return
        few = _first_images(x, generator)
        if self.settings.r_max == "estimated" and self._r_max_epoch != epoch:
            with seeded(_seed_from(generator), x.device):
                prop.measure_r_max(few)
            self._r_max_epoch = epoch
        if self.estimator == "calibrated":
            with seeded(_seed_from(generator), x.device):
                prop.calibrate(few, samples=2, momentum=CALIBRATION_MOMENTUM)

    def state_dict(self) -> dict[str, Any]:
        """What was measured so far; the weights are the model's own."""
        if self._prop is None:
            return dict(self._saved or {})
        return {
            "variances": dict(self._prop.named_buffers(recurse=False)),
            "r_max": self._prop.r_max,
            "measured": self._r_max_epoch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from `state_dict()`; it is applied once the model is known."""
        self._saved = dict(state)
        if self._prop is not None and state:
            self._apply(state)

    def _apply(self, state: dict[str, Any]) -> None:
        assert self._prop is not None
        self._prop.load_state_dict(state["variances"], strict=False)
        self._prop.r_max = state["r_max"]
        self._r_max_epoch = state["measured"]


def _first_images(x: Tensor, generator: torch.Generator) -> Tensor:
    """The first images of the global batch, the same in every process, to measure on."""
    few = x[:CALIBRATION_IMAGES].contiguous()
    world = generator.world if isinstance(generator, Stream) else 1
    if world == 1:
        return few
    parts = [torch.empty_like(few) for _ in range(world)]
    dist.all_gather(parts, few)
    return torch.cat(parts)[:CALIBRATION_IMAGES]


def _seed_from(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))
