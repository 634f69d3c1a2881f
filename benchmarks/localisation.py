"""What the localisation ratio costs, against decoding every perturbed latent in full.

The network is the paper's vsPAIR for MNIST (784 and 32 latents) with random weights; both ways
perturb the same latents of the same images, in turn. Run it with

    python benchmarks/localisation.py [--images 64] [--dims 24] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from vspair.config import ModelConfig
from vspair.model import build
from vspair.networks import NetworkConfig
from vspair.posterior import LatentPosterior
from vspair.uncertainty import localisation

PAPER = 6000 * 784


def mnist(images: int, device: str) -> LatentPosterior:
    """Return the posterior of random observations by the paper's network."""
    torch.manual_seed(0)
    network = NetworkConfig("conv", width=16, depth=2)
    model = build(ModelConfig("vsPAIR", 784, 32, network, network), (28, 28), (28, 28))
    return model.to(device).posterior(torch.rand(images, 28, 28))


@torch.no_grad()
def in_full(post: LatentPosterior, region: Tensor, dims: list[int]) -> Tensor:
    """Return ratios of shape (B, K) by decoding each perturbed latent, image by image."""
    ratios, plain = [], post.decode(post.code.mean)
    for z, x, inside in zip(post.code.mean, plain, region, strict=True):
        moved = z.repeat(len(dims), 1)
        moved[range(len(dims)), dims] *= 2
        square = (post.decode(moved) - x).square()
        ratios.append(square[:, inside].mean(1) / square[:, ~inside].mean(1))
    return torch.stack(ratios)


def seconds(f: Callable[[], Tensor], device: str) -> tuple[float, Tensor]:
    """Return the time that a call takes, and its result."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = f()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def main() -> None:
    """Print decodes a second of both ways, their ratio and the time at the paper's size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--dims", type=int, default=24, help="latents that are perturbed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--chunk", type=int, help="of the fast way")
    parser.add_argument("--bfloat16", action="store_true", help="in the fast way's layers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    post = mnist(options.images, options.device)
    region = torch.rand(options.images, 28, 28, device=options.device) < 0.27
    dims = list(range(0, 784, max(1, 784 // options.dims)))[: options.dims]
    dtype = torch.bfloat16 if options.bfloat16 else None

    def fast() -> Tensor:
        result = localisation(post, region, dims=dims, chunk=options.chunk, dtype=dtype)
        return result.ratio[:, dims]

    ways = {"in full": lambda: in_full(post, region, dims), "vspair": fast}
    runs = [
        {name: seconds(way, options.device) for name, way in ways.items()}
        for _ in range(options.repeats + 1)
    ][1:]
    times = {name: statistics.median(run[name][0] for run in runs) for name in ways}
    for name, t in times.items():
        speed = options.images * len(dims) / t
        print(f"{name:<8} {speed:9.0f} decodes a second, 6,000 x 784 in {PAPER / speed:.0f} s")
    print(f"ratio    {statistics.median(r['in full'][0] / r['vspair'][0] for r in runs):9.2f}")
    a, b = runs[-1]["in full"][1], runs[-1]["vspair"][1]
    off = ((a - b) / a).abs().nan_to_num(0.0)
    print(f"their ratios differ by {float(off.median()):.0e} in the median")


if __name__ == "__main__":
    main()
