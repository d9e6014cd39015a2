"""What a recipe may say in `[data]`, `[labels]`, `[noise]` and `[train]`.

The keys of `[model]`, `[method]` and `[weighting]` are the parameters of what these name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from covprop.data.label_noise import NEEDS
from covprop.errors import InvalidInput
from covprop.options import Fraction, NotNegative, Positive, Range
from covprop.pixels import Sigma


@dataclass(frozen=True)
class DataOptions:
    """[data]: a registered set, an .npz file or a folder of class folders, and its augmentation.

    `holdout` training images, evenly spaced, are left out of training; they take the place of the
    test images after an epoch, and `covprop certify RUN --split holdout` certifies them.
    `num_classes`, `image_shape`, `mean` and `std` are facts of the set, filled in when it is
    loaded; an own data set may give its `mean` and `std` per channel, and a folder of class folders
    the `image_shape` that its images are scaled and cropped to.
    """

    name: str
    augment: Literal["none", "flip", "crop-flip"] = "none"
    workers: Annotated[int, Range(0)] = 0
    normalize: bool = True
    holdout: Annotated[int, Range(1)] | None = None
    num_classes: Annotated[int, Range(2)] | None = None
    image_shape: tuple[int, int, int] | None = None
    mean: tuple[Annotated[float, Range()], ...] | None = None
    std: tuple[Positive, ...] | None = None


@dataclass(frozen=True)
class NoiseOptions:
    """[noise]: standard deviation of the Gaussian noise on the [0, 1] pixel scale.

    `sigma` is what the run is made for: the noise it is evaluated, estimated and certified with.
    Training draws `share` of it, and a method's estimated radius is then one for that noise too.
    """

    sigma: Sigma
    share: Positive = 1.0

    @property
    def training(self) -> float:
        """Standard deviation of the noise that training draws."""
        return self.sigma * self.share


@dataclass(frozen=True)
class LabelOptions:
    """[labels]: what becomes of the training labels before anything sees them.

    "pair" and "symmetric" make a share `rate` of them wrong; "matrix" draws them by the transition
    matrix in `file`; "file" takes the given labels in `file`. In all these the data set's own
    labels count as the truth. "none" leaves the labels alone and the truth unknown.
    """

    name: Literal["pair", "symmetric", "matrix", "file", "none"]
    rate: Fraction | None = None
    file: str | None = None
    seed: Annotated[int, Range(-(2**63), 2**63 - 1)] = 0
    """Of the labels alone: runs that differ in train.seed still see the same labels."""

    def check(self) -> None:
        """What no single value shows; raises InvalidInput."""
        for key in ("rate", "file"):
            given = getattr(self, key) is not None
            if given != (NEEDS[self.name] == key):
                what = "does not take" if given else "needs"
                raise InvalidInput(f'labels.name = "{self.name}" {what} labels.{key}.')


@dataclass(frozen=True)
class TrainOptions:
    """[train]: everything the trainer itself does."""

    epochs: Annotated[int, Range(1)]
    batch_size: Annotated[int, Range(1)] = 128
    optimizer: Literal["sgd", "adamw", "muon"] = "sgd"
    """"muon": SGD that moves filter banks by orthogonal matrices, with a decay of its own size."""
    lr: Positive = 0.01
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    weight_decay: NotNegative = 5e-4
    decay_all: bool = True
    """Decay biases and norm weights too, as most code of the field does."""
    schedule: Literal["constant", "step", "cosine", "one-cycle", "linear"] = "step"
    milestones: tuple[Annotated[int, Range(1)], ...] = ()
    gamma: Positive = 0.1
    warmup_epochs: NotNegative = 0.0
    peak: Annotated[float, Range(0, 1, strict=True)] = 0.3
    """Share of a one-cycle run after which its largest lr is reached."""
    decay_from: Annotated[int, Range(0)] = 0
    """Epoch, counted from 0, at which schedule = "linear" begins to fall towards 0."""
    late_beta1: Fraction | None = None
    """AdamW's first beta from `decay_from` on, where it differs."""
    clip_norm: NotNegative = 0.0
    """Largest norm of the whole gradient; 0 leaves it alone."""
    ema: Fraction = 0.0
    """Decay of the running average of the weights, which is then what is saved; 0 is off."""
    seed: int = 0
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = False
    compile: Literal["auto", True, False] = "auto"
    """Have torch.compile fuse a step; "auto": on a GPU, where the run is long enough to gain."""
    fast: bool = True
    """On a GPU, record the step as a CUDA graph and replay it, where the method allows it; false
    also means that "auto" compiles nothing."""
    eval_every: Annotated[int, Range(0)] = 1
    """Epochs between measurements on the test split; 0 measures after the last one only."""
    checkpoint_minutes: NotNegative = 5.0
    """At most this long between checkpoints; 0 writes one after every step. The end of an epoch
    writes one too, unless the last is less than ten seconds old."""
    max_loss: Positive = 1e4
    """A mean loss above this counts as divergence and stops the run."""
    tensorboard: bool = False

    def check(self) -> None:
        """What no single value shows; raises InvalidInput."""
        if list(self.milestones) != sorted(set(self.milestones)):
            raise InvalidInput(
                f"train.milestones must be increasing epochs, not {list(self.milestones)}."
            )
        if self.schedule == "step" and self.milestones and self.milestones[-1] >= self.epochs:
            raise InvalidInput(
                f"train.milestones names epoch {self.milestones[-1]}, but the run ends after "
                f"{self.epochs}; lower it, raise train.epochs, or give the length as --epochs "
                f"{self.epochs}, which scales milestones too."
            )
        if self.warmup_epochs >= self.epochs:
            raise InvalidInput(
                f"train.warmup_epochs = {self.warmup_epochs:g} leaves nothing of the "
                f"{self.epochs} epochs; lower it."
            )
        if self.schedule == "one-cycle" and self.warmup_epochs:
            raise InvalidInput(
                'train.warmup_epochs goes with other schedules; "one-cycle" rises by itself '
                "until train.peak."
            )
        if self.decay_from >= self.epochs:
            raise InvalidInput(
                f"train.decay_from = {self.decay_from} lies behind the {self.epochs} epochs; "
                "lower it."
            )
        if self.schedule != "linear" and (self.decay_from or self.late_beta1 is not None):
            raise InvalidInput(
                'train.decay_from and train.late_beta1 go with schedule = "linear" only.'
            )
        if self.late_beta1 is not None and self.optimizer != "adamw":
            raise InvalidInput('train.late_beta1 needs optimizer = "adamw".')
        if 1.0 in (*self.betas, self.late_beta1):
            raise InvalidInput(
                "train.betas and train.late_beta1 lie below 1: at 1 an average never moves."
            )
        if self.nesterov and (self.momentum == 0 or self.optimizer == "adamw"):
            raise InvalidInput(
                'train.nesterov needs a momentum above 0 and optimizer = "sgd" or "muon".'
            )
