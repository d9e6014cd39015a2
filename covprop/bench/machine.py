"""Where and with what something was measured."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import torch

Facts = dict[str, str | int | float | None]


def facts(device: torch.device) -> Facts:
    """Hardware, versions, commit, command, date, and how busy the machine was."""
    found: Facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": platform.platform(),
        "commit": commit(),
        "command": shlex.join(["covprop", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    if device.type == "cuda":
        found["cuda"] = torch.version.cuda
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        return names[0]
    except (OSError, IndexError):
        return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the sources, marked where they differ from it; None outside a checkout.

    A copy of a checkout does not know it: there `COVPROP_COMMIT` says so.
    """
    if given := os.environ.get("COVPROP_COMMIT"):
        return given
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", "..")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes" if changed else head


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout.strip()
