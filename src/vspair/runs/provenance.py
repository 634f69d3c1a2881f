"""What made a result: the commit, the machine and the versions of packages."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import torch

from vspair.errors import VspairError

__all__ = ["command_line", "commit", "machine", "pick_device", "versions"]


@functools.cache
def commit() -> str:
    """Return the commit of the source that is running, or ``unknown`` outside a checkout.

    ``VSPAIR_COMMIT`` says it where the source was exported from a checkout, to a cluster say.
    Asked for once: a study that writes its results into the checkout does not become dirty by it.
    """
    if given := os.environ.get("VSPAIR_COMMIT"):
        return given
    here = Path(__file__).parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def pick_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.zeros(1, device=name).tolist()
        return torch.device(name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise VspairError(f"device = {name!r} cannot be used: {reason}. Try cpu.") from None


def machine(device: str | torch.device = "cpu") -> str:
    """Return what the computation runs on, in words."""
    device = pick_device(device) if isinstance(device, str) else device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU, {os.cpu_count()} cores ({platform.machine()})"


def versions() -> dict[str, str]:
    """Return the versions of Python and of every package that decides the numbers."""
    names = ("vspair", "torch", "numpy", "safetensors")
    found = {
        "python": sys.version.split()[0],
        "platform": f"{platform.system()} {platform.machine()}",
    }
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # Source that is run where it lies is not installed, but has a version.
            found[name] = getattr(sys.modules.get(name), "__version__", "not installed")
    return found | {"commit": commit()}


_FOLDERS = {"--data-dir": "D", "--runs": "R", "--out": "O"}
"""Options that name folders of one machine, with the letters that stand for them."""


def command_line() -> str:
    """Return the command that was typed, folders of this machine as letters.

    Empty where the library was called from Python.
    """
    if Path(sys.argv[0]).name not in ("vspair", "__main__.py"):
        return ""
    words = [word for text in sys.argv[1:] for word in _split_option(text)]
    shown = [_FOLDERS.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return shlex.join(["vspair", *shown])


def _split_option(text: str) -> list[str]:
    """Return ``--option=value`` as two words where the option names a folder."""
    option, _, value = text.partition("=")
    return [option, value] if option in _FOLDERS and value else [text]
