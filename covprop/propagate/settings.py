"""Every knob of the propagation and of the radius loss, in one frozen dataclass."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from numbers import Real

from covprop.errors import InvalidInput
from covprop.names import unknown
from covprop.options import check_value


@dataclass(frozen=True)
class Settings:
    """How moments are propagated and how the radius enters the loss.

    `PAPER` holds what the text of the paper says, `REFERENCE` what its authors' public code does;
    every difference between the two is a field here. Derive your own with `.but(...)`:

        >>> PAPER.but(r_max=0.0).r_max
        0.0
    """

    r_max: float | Mapping[str, float] | str = 0.2
    """Bound on the correlation of neighbouring output pixels; convolutions scale Σ by 1 + r_max.
    A number for all layers, a mapping from qualified layer name to number (layers not named take
    0), or `"estimated"`: measured for each layer from a few noisy samples."""

    multi_block: bool = False
    """Use 1 + (m − 1)·r_max with m the number of pixels a layer sums over, the valid factor for m
    mutually correlated blocks, wherever pixels are summed; 1 + r_max is the bound for two."""

    detach_covariance: bool = False
    """Hold the weights constant in every covariance rule: Σ then only rescales the margin."""

    relu_floor: float = 0.0
    """Added to the diagonal of Σ after every ReLU."""

    scale_overlapping_pool: bool = True
    """Whether an average pool whose windows overlap divides Σ by its window size; if not, it
    leaves Σ alone."""

    margin_covariance: str = "difference"
    """Variance of the margin: `"difference"` is Σ[a,a] + Σ[b,b] − 2Σ[a,b]; `"sum"` is
    Σ[a,a] + Σ[b,b] + 2|Σ[a,b]|."""

    hinge_in_sigma: bool = True
    """The hinge acts on the radius σ·m/√v; if not, on m/√v without the factor σ."""

    offset: float = 8.0
    """Γ of the hinge max(0, Γ − radius). The text gives no value; the authors' code has 8."""

    soft_term: bool = False
    """Add a second hinge, weighted by λ too, on Φ⁻¹(p₁) − Φ⁻¹(p₂) with p = softmax(16·mean)."""

    noisy_mean: bool = False
    """The training method `radius` propagates the mean from x + noise instead of x. A `Propagator`
    takes the images it is given."""

    quadrature_nodes: int = 32
    """Gauss–Hermite nodes for the mean of activations without a closed form."""

    products: str = "auto"
    """Precision of the matrix products that take Σ through a convolution: `"float32"`,
    `"bfloat16"`, or `"auto"`: bfloat16 where the mean is (autocast on a GPU), float32 elsewhere.
    Σ itself, and all that follows a linear layer, stays in float32."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "r_max":
                check_value(field.name, getattr(self, field.name), type(field.default))
        if not isinstance(self.r_max, int | float | Mapping):
            if self.r_max != "estimated":
                raise InvalidInput(
                    f"r_max is {self.r_max!r}: give a number in [0, 1], a mapping from layer "
                    'name to number, or "estimated".'
                )
        else:
            values = self.r_max.values() if isinstance(self.r_max, Mapping) else (self.r_max,)
            if not all(isinstance(value, Real) and 0 <= value <= 1 for value in values):
                raise InvalidInput(f"r_max is {self.r_max}: a correlation bound lies in [0, 1].")
        if self.margin_covariance not in ("difference", "sum"):
            raise InvalidInput(
                f'margin_covariance is {self.margin_covariance!r}: choose "difference" or "sum".'
            )
        if not (math.isfinite(self.relu_floor) and self.relu_floor >= 0):
            raise InvalidInput(f"relu_floor is {self.relu_floor}: it is a variance, 0 or more.")
        if self.products not in ("auto", "float32", "bfloat16"):
            raise InvalidInput(
                f'products is {self.products!r}: choose "auto", "float32" or "bfloat16".'
            )
        if self.quadrature_nodes < 2:
            raise InvalidInput(f"quadrature_nodes is {self.quadrature_nodes}: use 2 or more.")

    def but(self, **changes: object) -> Settings:
        """These settings with some fields changed."""
        for name in changes:
            if not hasattr(self, name):
                raise unknown("setting", name, [field.name for field in fields(self)])
        return replace(self, **changes)  # type: ignore[arg-type]

    def of_layer(self, name: str) -> Settings:
        """These settings with r_max resolved to the number that holds for one layer."""
        if isinstance(self.r_max, Mapping):
            return self.but(r_max=self.r_max.get(name, 0.0))
        return self

    def correlation_factor(self, blocks: int) -> float:
        """The factor on Σ that pays for correlation among the `blocks` pixels a layer sums.

        1 + r_max, whatever the window (the paper's bound for two blocks, see `covprop.bound`), or
        1 + (m − 1)·r_max with `multi_block`.
        """
        assert isinstance(self.r_max, int | float), "r_max is resolved before rules run"
        return 1.0 + (blocks - 1 if self.multi_block else 1) * self.r_max


PAPER = Settings()
"""What the text says. It names no r_max for its main table; its main Places365 row equals the
r_max = 0.2 row of its ablation."""

REFERENCE = Settings(
    r_max=0.1,
    detach_covariance=True,
    relu_floor=0.1,
    scale_overlapping_pool=False,
    margin_covariance="sum",
    hinge_in_sigma=False,
    soft_term=True,
    noisy_mean=True,
)
"""What the authors' public code does."""


def check_settings(settings: Settings) -> Settings:
    """The settings given; anything else, such as the name of a preset, is refused."""
    if not isinstance(settings, Settings):
        raise InvalidInput(
            f"settings is {settings!r}: give covprop.PAPER, covprop.REFERENCE, or one of these "
            "with changes, such as covprop.PAPER.but(r_max=0.1)."
        )
    return settings
