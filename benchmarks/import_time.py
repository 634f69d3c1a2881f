"""What ``import vspair`` costs beside ``import torch``, each in fresh processes, in turn.

Run it with

    python benchmarks/import_time.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(module: str) -> float:
    """Return the time of a process that imports one module."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    """Print both times and their ratio."""
    seconds("vspair")
    times = [(seconds("torch"), seconds("vspair")) for _ in range(9)]
    torch, vspair = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(b / a for a, b in times)
    print(f"torch {torch:.2f} s, vspair {vspair:.2f} s, ratio {ratio:.2f} (at most 1.5)")


if __name__ == "__main__":
    main()
