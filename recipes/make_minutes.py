"""The recipes under minutes/: one short schedule for all, which one GPU trains in minutes.

One-cycle, batch 256, a network with batch norm; learning rates are the published ones, scaled to
the batch. MACER has its published steps where its term begins with the first of them. `late` is
Consistency that begins after a third of the run, `reach` the same on images moved as far as their
estimated radius goes, `weighted` plain training with every image weighted by its estimated radius
in the last third. `radius-steps` and `radius-reference-steps` are the paper's method with its own
learning rates (steps at 1/2, when its term is switched on, and 3/4) and no norm, in as many epochs.
Those of `-muon` have another optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from make_noisy import Config

SHARED = {"name": "radius", "estimator": "shared"}
MINUTES: dict[str, dict[str, Any]] = {
    "gaussian": {"name": "gaussian", "samples": 1},
    "consistency": {"name": "consistency", "samples": 2, "entropy": 0.5},
    "macer": {"name": "macer", "samples": 16, "gamma": 8.0, "beta": 16.0},
    "radius": {**SHARED, "preset": "paper", "weight": 4.0},
    "radius-reference": {**SHARED, "preset": "reference", "weight": 4.0},
    "radius-linearized": {
        **{"name": "radius", "estimator": "linearized", "mean": "sample"},
        **{"weight": 1.0, "offset": 1.0},
    },
    "late": {"name": "consistency", "samples": 2, "entropy": 0.5},
    "reach": {"name": "consistency", "samples": 2, "entropy": 0.5},
    "weighted": {"name": "gaussian", "samples": 1},
}
STEPS = "-steps"
"""After the name of one of the paper's: with its own learning rates, and no norm."""
MUON = "-muon"
"""After a name: with the optimizer that learns more in as many epochs."""
NAMES = (
    *MINUTES,
    f"radius{STEPS}",
    f"radius-reference{STEPS}",
    *(f"{name}{MUON}" for name in ("gaussian", "consistency", "macer", "late", "reach")),
)
EPOCHS = {"mnist": 40, "svhn": 30, "cifar10": 60}


def deferred(data: str, sigma: float) -> bool:
    """Whether MACER's term waits for the first decay; with λ β σ / 2 as large it collapses."""
    return data == "mnist" or (data == "cifar10" and sigma == 1)


def minutes(data: str, name: str, sigma: float) -> Config:
    """One experiment that a single GPU does in minutes."""
    method, epochs = name.removesuffix(STEPS).removesuffix(MUON), EPOCHS[data]
    config: Config = {
        "data": {"name": data},
        "model": {"name": "lenet"} if data == "mnist" else {"name": "preact_resnet18"},
        "noise": {"sigma": sigma},
        "method": method_options(data, method, sigma),
    }
    if method == "weighted":
        # In the last third: from 2/5 on it lost, and on top of Consistency it lost much.
        config["weighting"] = {"name": "radius", "from_epoch": epochs * 2 // 3}
    config["train"] = train_options(data, name, sigma)
    if data != "mnist":
        config["model"]["norm"] = "none" if name.endswith(STEPS) else "batch"
    if data == "cifar10":
        config["data"]["augment"] = "crop-flip"
    return config


def method_options(data: str, method: str, sigma: float) -> dict[str, Any]:
    """The section [method]: weights as published, phases as shares of the run."""
    options, epochs = dict(MINUTES[method]), EPOCHS[data]
    if options["name"] == "consistency":
        options["weight"] = 20.0 if sigma == 0.25 else 10.0
        if data == "mnist":  # by itself it wants more, found on held-out images
            options["weight"] *= 2 if method == "consistency" else 0.5
    if method in ("late", "reach"):
        options["from_epoch"] = epochs // 3
    if method == "reach":
        options["reach"] = 2 * sigma
    if options["name"] == "macer":
        options["weight"] = 4.0 if sigma == 0.5 else 12.0
        if data == "mnist":
            options["weight"] = 16.0
        if deferred(data, sigma):
            options["from_epoch"] = macer_steps(data)[0]
    if options["name"] == "radius":
        # The share of the run after which the paper switches its term on; ours bears it earlier.
        options["from_epoch"] = epochs // (5 if method == "radius-linearized" else 2)
    return options


def train_options(data: str, name: str, sigma: float) -> dict[str, Any]:
    """The section [train]."""
    epochs = EPOCHS[data]
    options: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": 256,
        "lr": 0.04 if name == "macer" else 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 5e-4,
        "schedule": "one-cycle",
        "eval_every": 0,
        "precision": "bf16",
        "channels_last": True,
    }
    if data == "mnist":
        options |= {"lr": 0.02, "precision": "fp32", "channels_last": False}
        if name == "consistency":  # found on held-out images, as its λ
            options["lr"] = 0.05
    if name == "macer" and deferred(data, sigma):
        options |= {"lr": 0.01 if data == "mnist" else 0.04, "nesterov": False}
        options |= {"schedule": "step", "gamma": 0.1, "milestones": macer_steps(data)}
    if name.endswith(STEPS):
        # 0.01 at batch 128.
        options |= {"lr": 0.02, "nesterov": False, "schedule": "step", "gamma": 0.1}
        options["milestones"] = [epochs // 2, epochs * 3 // 4]
        if data != "mnist":
            # Without it the network is dead within an epoch: every class equally likely for good.
            options["warmup_epochs"] = 2.0
    if name.endswith(MUON):
        decay = 0.01 if data == "mnist" else 0.05
        options |= {"optimizer": "muon", "lr": 0.05, "weight_decay": decay, "decay_all": False}
    return options


def macer_steps(data: str) -> list[int]:
    """The decays of MACER's published schedules, in as many epochs as there are here."""
    shares = (1 / 3, 2 / 3) if data == "mnist" else (200 / 440, 400 / 440)
    return [int(EPOCHS[data] * share) for share in shares]


def left_out(data: str, name: str, sigma: float) -> bool:
    """`reach` is for MNIST, since on CIFAR-10 it gained nothing (results/tried.md). Consistency
    gains nothing by Muon on MNIST, and `late` was not tried with it there; nor does MACER where it
    needs its published steps (docs/results.md)."""
    if name == f"macer{MUON}":
        return deferred(data, sigma)
    if data == "mnist":
        return name in (f"late{MUON}", f"consistency{MUON}")
    return name.startswith("reach")


def minutes_recipes(sigmas: Mapping[str, tuple[float, ...]]) -> dict[str, Config]:
    """Name -> recipe."""
    return {
        f"{data}/minutes/{name}-{sigma:.2f}": minutes(data, name, sigma)
        for data in EPOCHS
        for sigma in sigmas[data]
        for name in NAMES
        if not left_out(data, name, sigma)
    }
