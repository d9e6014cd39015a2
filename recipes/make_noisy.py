"""The recipes under noisy/: labels made wrong on purpose, every method with the same network.

The schedule is that of this literature: Adam, 200 epochs, lr falling to 0 from epoch 80, or 100 on
CIFAR-100, where its first beta becomes 0.1. The network pools by average, since a maximum has no
covariance rule.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, dict[str, Any]]

NOISY: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "bootstrap-hard": {"name": "bootstrap", "kind": "hard", "beta": 0.8},
    "bootstrap-soft": {"name": "bootstrap", "kind": "soft", "beta": 0.95},
    "smodel": {"name": "smodel", "pretrain": 30},
    "decoupling": {"name": "decoupling"},
    "mentornet": {"name": "mentornet", "ramp": 10},
    "coteaching": {"name": "coteaching", "ramp": 10},
    "truncated": {"name": "truncated", "q": 0.7, "k": 0.5, "from_epoch": 40, "refresh": 10},
    "radius-largest": {"name": "radius", "end": "largest", "drop": 0.1, "from_epoch": 60},
    "radius-smallest": {"name": "radius", "end": "smallest", "drop": 0.1, "from_epoch": 60},
    # Not the paper's: by the radius of the label, within every label, a tenth more than are wrong.
    "radius-label": {
        **{"name": "radius", "end": "smallest", "of": "label", "drop": 0.55, "per_class": True},
        **{"from_epoch": 30, "weight": 0.0},
    },
    # The same choice after a start through the S-model's layer, which keeps what is not chosen.
    "radius-layer": {
        **{"name": "radius", "end": "smallest", "of": "label", "drop": 0.55, "per_class": True},
        **{"layer": 30, "from_epoch": 60, "weight": 0.0},
    },
}
NOISY_DATA = ("digits", "mnist", "fashion-mnist", "cifar10", "cifar100")
HALVED = ("from_epoch", "refresh", "pretrain", "layer")
"""Epochs that shrink with the run on the digits, which is half as long."""


def noisy(data: str, method: str) -> Config:
    """One experiment with 45 % pair flips."""
    small, cifar = data == "digits", data.startswith("cifar")
    options = dict(NOISY[method])
    if options["name"] == "radius":
        options.setdefault("weight", 0.5)
    if small:
        options |= {key: options[key] // 2 for key in HALVED if key in options}
    config: Config = {
        "data": {"name": data},
        "labels": {"name": "pair", "rate": 0.45, "seed": 0},
        "model": {"name": "cnn9"} if cifar else {"name": "lenet", "width": 16 if small else 32},
        "noise": {"sigma": 0.1 if small or cifar else 0.25},
        "method": options,
        "train": {
            "epochs": 100 if small else 200,
            "batch_size": 64 if small else 128,
            "optimizer": "adamw",
            "lr": 0.001,
            "weight_decay": 0.0,
            "schedule": "linear",
            "decay_from": {"digits": 40, "cifar100": 100}.get(data, 80),
            "late_beta1": 0.1,
        },
    }
    if cifar:
        config["train"] |= {"precision": "bf16", "channels_last": True}
    if options.get("layer"):
        config["noise"]["sigma"] = 0.02  # enough to rank by; more slows the start down
    return config


def noisy_paper(data: str) -> Config:
    """The paper's own schedule for its method, as far as it is told."""
    config = noisy(data, "radius-largest")
    config["model"] = {"name": "preact_resnet18", "norm": "none"}
    config["noise"]["sigma"] = 0.25
    config["method"]["weight"] = 4.0
    config["train"] = {
        "epochs": 120,
        "batch_size": 128,
        "lr": 0.01,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "step",
        "milestones": [30, 60, 90],
        "gamma": 0.1,
        "precision": "bf16",
        "channels_last": True,
    }
    return config


def noisy_recipes() -> dict[str, Config]:
    """Name -> recipe."""
    found = {}
    for data in NOISY_DATA:
        for method in NOISY:
            found[f"noisy/{data}/{method}-pair-0.45"] = noisy(data, method)
        if data.startswith("cifar"):
            found[f"noisy/{data}/radius-paper-pair-0.45"] = noisy_paper(data)
    return found
