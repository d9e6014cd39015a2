"""Writes every shipped recipe: `python recipes/make.py`.

The published experiments are a grid (data set × noise × method) of files that differ in a few
numbers; this is where those numbers come from. A test holds the files against this script.

Schedules: MNIST, SVHN and CIFAR-10 train 200 epochs at lr 0.01 with decays at 100 and 150, the
radius term (λ = 4) from epoch 100 on; ImageNet and Places365 train 120 epochs with decays at 30,
60 and 90, λ = 0.5 from epoch 30 on. MACER keeps its own published schedule on the small sets; on
MNIST, and on CIFAR-10 at σ = 1, its term begins with the first decay, as others run it too.
What was not published (batch sizes of the small sets, augmentation) is the field's habit.

Under minutes/ and noisy/: see make_minutes.py and make_noisy.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from make_minutes import SHARED, deferred, minutes_recipes
from make_noisy import Config, noisy_recipes

from covprop.train.toml import dumps

SIGMAS = {
    "mnist": (0.25, 0.5),
    "svhn": (0.25, 0.5),
    "cifar10": (0.25, 0.5, 1.0),
    "imagenet": (0.25, 0.5, 1.0),
    "places365": (0.25, 0.5, 1.0),
}
METHODS = ("gaussian", "macer", "smoothadv", "consistency", "radius", "radius-reference")
LARGE = ("imagenet", "places365")


def published(data: str, method: str, sigma: float) -> Config:
    """One experiment of the grid."""
    large = data in LARGE
    config: Config = {
        "data": {"name": data},
        "model": {"name": "lenet" if data == "mnist" else "preact_resnet18"},
        "noise": {"sigma": sigma},
        "method": {"name": method},
        "train": {
            "epochs": 120 if large else 200,
            "batch_size": {"imagenet": 160}.get(data, 128),
            "lr": 0.01,
            "momentum": 0.9,
            "weight_decay": 5e-4,
            "schedule": "step",
            "milestones": [30, 60, 90] if large else [100, 150],
            "gamma": 0.1,
            "eval_every": 5,
        },
    }
    if data in ("cifar10", *LARGE):
        config["data"]["augment"] = "crop-flip"
    if large:
        config["data"]["workers"] = 8
    if data != "mnist":
        # The paper's networks have no norm layers; the other methods were published with them.
        config["model"]["norm"] = "none" if method.startswith("radius") else "batch"
        config["train"] |= {"precision": "bf16", "channels_last": True}
    _METHODS[method](config, sigma, large)
    return config


def _gaussian(config: Config, sigma: float, large: bool) -> None:
    config["method"]["samples"] = 1


def _macer(config: Config, sigma: float, large: bool) -> None:
    data = config["data"]["name"]
    config["method"] |= {"samples": 16, "weight": 12.0, "gamma": 8.0, "beta": 16.0}
    if data == "mnist":
        config["method"]["weight"] = 16.0
        config["train"] |= {"epochs": 90, "batch_size": 256, "milestones": [30, 60]}
    elif not large:
        config["train"] |= {"epochs": 440, "batch_size": 64, "milestones": [200, 400]}
    if data == "cifar10" and sigma == 0.5:
        config["method"]["weight"] = 4.0
    if deferred(data, sigma):
        config["method"]["from_epoch"] = config["train"]["milestones"][0]


def _smoothadv(config: Config, sigma: float, large: bool) -> None:
    config["method"] |= {"samples": 1 if large else 2, "epsilon": 2 * sigma, "steps": 10}
    if large:
        config["method"]["steps"] = 1


def _consistency(config: Config, sigma: float, large: bool) -> None:
    weight = 20.0 if sigma == 0.25 else 10.0
    config["method"] |= {"samples": 2, "weight": weight, "entropy": 0.5}


def _radius(config: Config, sigma: float, large: bool) -> None:
    config["method"] |= {
        "estimator": "shared",
        "preset": "paper",
        "weight": 0.5 if large else 4.0,
        "from_epoch": 30 if large else 100,
    }


def _reference(config: Config, sigma: float, large: bool) -> None:
    _radius(config, sigma, large)
    config["method"] |= {"name": "radius", "preset": "reference"}
    if large:
        config["train"]["lr"] = 1e-3 if config["data"]["name"] == "imagenet" else 1e-4


_METHODS = {
    "gaussian": _gaussian,
    "macer": _macer,
    "smoothadv": _smoothadv,
    "consistency": _consistency,
    "radius": _radius,
    "radius-reference": _reference,
}


def digits(method: dict[str, Any], epochs: int) -> Config:
    """A small experiment on the embedded digits: well under a minute on two cores."""
    return {
        "data": {"name": "digits"},
        "model": {"name": "lenet", "width": 16},
        "noise": {"sigma": 0.25},
        "method": method,
        "train": {
            "epochs": epochs,
            "batch_size": 64,
            "optimizer": "adamw",
            "lr": 0.004,
            "schedule": "one-cycle",
        },
    }


SMALL = {
    "gaussian": ({"name": "gaussian", "samples": 1}, 30),
    "consistency": ({"name": "consistency", "weight": 10.0}, 30),
    "macer": ({"name": "macer", "samples": 16, "weight": 4.0, "beta": 4.0, "from_epoch": 10}, 30),
    "smoothadv": ({"name": "smoothadv", "epsilon": 0.5, "steps": 2}, 30),
    "radius": ({**SHARED, "preset": "paper", "weight": 4.0, "from_epoch": 15}, 30),
    "radius-reference": ({**SHARED, "preset": "reference", "weight": 0.5, "from_epoch": 15}, 30),
    "radius-linearized": (
        {
            "name": "radius",
            "estimator": "linearized",
            "mean": "sample",
            "weight": 0.5,
            "offset": 1.0,
            "from_epoch": 10,
        },
        30,
    ),
}


def recipes() -> dict[str, str]:
    """Name -> text of every recipe; the first line is the command that runs it."""
    texts = {}
    for method, (options, epochs) in SMALL.items():
        name = f"digits/{method}-0.25"
        texts[name] = f"# covprop train {name}\n\n{dumps(digits(dict(options), epochs))}"
    for data, sigmas in SIGMAS.items():
        for sigma in sigmas:
            for method in METHODS:
                name = f"{data}/{method}-{sigma:.2f}"
                start = "torchrun --nproc-per-node=8 -m covprop" if data in LARGE else "covprop"
                command = f"# {start} train {name} --data DATA\n\n"
                texts[name] = command + dumps(published(data, method, sigma))
    for name, config in minutes_recipes(SIGMAS).items():
        texts[name] = f"# covprop train {name} --data DATA\n\n{dumps(config)}"
    for name, config in noisy_recipes().items():
        where = "" if config["data"]["name"] == "digits" else " --data DATA"
        texts[name] = f"# covprop noisy {name}{where}\n\n{dumps(config)}"
    return texts


if __name__ == "__main__":
    folder = Path(__file__).parent
    for name, text in recipes().items():
        file = folder / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
