"""The numbers behind the figures of section 4.2, and where they are kept.

What a figure shows is measured once, for one trained model, and saved; ``report.mnist`` draws
from the saved numbers alone. All models are shown on the same three test images, and each also
on its own images at the 25th, 50th and 96th percentile of error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from vspair.codes import SpikeSlab
from vspair.model import InverseModel
from vspair.networks import squared_changes
from vspair.posterior import LatentPosterior
from vspair.problems.inpainting import InpaintingData, InpaintingProblem
from vspair.studies.mnist import drawing as report
from vspair.uncertainty import always_active, draw_active, nnz, perturb

__all__ = ["FILE", "at_percentiles", "illustrate", "numbers", "redraw", "scattered"]

FILE = "figures.npz"
PERCENTILES = (0.25, 0.50, 0.96)
WALK = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
"""Perturbations of a factor, from -400 % to +400 % of its value."""

JUDGES = ("vPAIR", "sVAE", "vsPAIR (paper)")
"""The models whose mean error decides which images all models are shown on, as in the paper."""

Images = Mapping[str, Tensor]


def scattered(n: int) -> Tensor:
    """Return which of n test images the scatter of variance and error shows, at most 500."""
    return torch.randperm(n, generator=Generator().manual_seed(0))[:500]


def at_percentiles(error: Tensor) -> Tensor:
    """Return the images at the 25th, 50th and 96th percentile of error, with shape (3,).

    Arguments:
        error: One error for each test image, with shape (N,).

    Example:
        >>> at_percentiles(torch.linspace(1, 0, 101))
        tensor([75, 50,  4])
    """
    order = error.argsort(stable=True)
    places = [round(p * (len(error) - 1)) for p in PERCENTILES]
    return order[torch.tensor(places, device=order.device)].cpu()


def numbers(
    model: InverseModel,
    data: InpaintingData,
    images: Images,
    shared: Tensor,
    *,
    samples: int = 30,
    factor: float = 4.0,
) -> dict[str, Any]:
    """Return what the figures show of one trained model, as arrays by name.

    Arguments:
        model: The model, on any device. PAIR has no samples, gates or active factors: the
            names that need them are left out.
        data: The pairs; only the test pairs are used.
        images: The values of each test image that ``studies.mnist.measure`` returned.
        shared: The test images that every model is shown on, indices of shape (S,). The middle
            one is that whose factors are perturbed.
        samples: Samples that means and variances are taken over.
        factor: How far localised factors are moved to show what they change.
    """
    point = model.config.kind == "PAIR"
    error = images["mse" if point else "mse30"]
    found: dict[str, Any] = {"range": torch.tensor((data.low, data.high))}
    for group, index in (("percentile", at_percentiles(error)), ("shared", shared)):
        parts = _reconstructions(model, data, index, samples)
        parts |= {"index": index, "mse": error[index]}
        found |= {f"{group}_{k}": v for k, v in parts.items()}
    post = model.posterior(data.y_test[shared])
    found |= _codes(post)
    if not point:
        found["factors"] = torch.tensor(WALK)
        found |= _walk(model.posterior(data.y_test[shared[len(shared) // 2]][None]), samples)
        found |= _localised(post, images, shared, samples, factor)
        found |= _spreads(images)
    return {k: _array(v) for k, v in found.items()}


def _array(values: Tensor) -> Any:
    """Return a tensor as a small array: images, which need few digits, in half precision."""
    values = values.detach().cpu()
    if not values.is_floating_point():
        return values.numpy()
    return values.to(torch.float16 if values.ndim > 2 else torch.float32).numpy()


def _generator(post: LatentPosterior) -> Generator:
    return Generator(post.code.mean.device).manual_seed(0)


@torch.no_grad()
def _reconstructions(
    model: InverseModel, data: InpaintingData, index: Tensor, samples: int
) -> dict[str, Tensor]:
    """Return images, reconstructions, variances and errors, each of shape (len(index), H, W)."""
    x, y = data.x_test[index], data.y_test[index]
    post = model.posterior(y)
    found = {"x": x, "y": y, "region": InpaintingProblem.changed(x, y)}
    if model.config.kind == "PAIR":
        mean = post.approximate_mean().cpu()
    else:
        drawn = post.sample(samples, _generator(post)).cpu()
        mean = drawn.mean(0)
        found |= {"sample": drawn[0], "variance": drawn.var(0)}
    return found | {"mean": mean, "error": (mean - x).abs()}


@torch.no_grad()
def _codes(post: LatentPosterior) -> dict[str, Tensor]:
    """Return one latent sample, the mean code and, where there are gates, their probability."""
    found = {"code_sample": post.code.rsample(_generator(post)), "code_mean": post.code.mean}
    if isinstance(post.code, SpikeSlab):
        found["code_omega"] = post.code.omega
    return found | {"code_nnz": nnz(post, _generator(post))}


def _walk(post: LatentPosterior, samples: int, most: int = 3) -> dict[str, Tensor]:
    """Return mean reconstructions of one image along the factors that carry most variance.

    Only factors that are active in all samples are taken, or in any where those are too few.

    Returns:
        ``walk_dims`` and ``walk_stable`` of shape (K,) and ``walk_images`` of shape (K, F, H, W)
        for at most ``most`` factors; nothing where no factor is active.
    """
    counts = draw_active(post, samples, _generator(post))
    stable = always_active(counts, samples)
    among = stable if int(stable.sum()) >= most else counts > 0
    k = min(most, int(among.sum()))
    if k == 0:
        return {}
    dims = post.factors(k, among=among).index[0]
    walk = perturb(post, dims, WALK, samples, _generator(post))[0]
    return {"walk_dims": dims, "walk_stable": stable[0, dims], "walk_images": walk}


@torch.no_grad()
def _localised(
    post: LatentPosterior, images: Images, shared: Tensor, samples: int, factor: float
) -> dict[str, Tensor]:
    """Return what the factor of highest localisation ratio does to each of S images.

    Returns:
        ``localised_dim`` (-1 where no factor is active), ``localised_stable`` and
        ``localised_ratio`` of shape (S,); the decoded mean code before and after perturbation
        and its squared change, of shape (S, H, W); mean reconstructions ``localised_walk`` of
        shape (S, F, H, W).
    """
    z, shape = post.code.mean, post.model.x_shape
    stable = images["dim_stable"][shared] >= 0
    dim = torch.where(stable, images["dim_stable"][shared], images["dim_any"][shared])
    ratio = torch.where(stable, images["ratio_stable"][shared], images["ratio_any"][shared])
    place = dim.clamp(min=0)[:, None].to(z.device)
    none = (dim < 0)[:, None].to(z.device)
    move = factor * z.gather(1, place).masked_fill(none, 0.0)
    shift = torch.zeros_like(z).scatter_(1, place, move)
    every = torch.eye(math.prod(shape)).expand(len(z), -1, -1).to(z.device)
    changes = squared_changes(post.model.x_decoder, post.model.x_normaliser.std, z, shift, every)
    change = changes.gather(1, place[..., None].expand(-1, 1, every.shape[-1]))
    walk = perturb(post, place, WALK, samples, _generator(post))[:, 0]
    still = walk[:, WALK.index(0.0)][:, None].expand_as(walk)
    return {
        "localised_dim": dim,
        "localised_stable": stable,
        "localised_ratio": ratio,
        "localised_before": post.decode(z),
        "localised_after": post.decode(z + shift),
        "localised_change": change.reshape(len(z), *shape),
        "localised_walk": torch.where(none[..., None, None], still, walk),
    }


def _spreads(images: Images) -> dict[str, Tensor]:
    """Return the values of single images that scatter, violins and histograms show."""
    chosen = scattered(len(images["variance"]))
    names = ["ratio_stable", "ratio_any", "inside_stable"]
    if images["variance_ratio"].isfinite().sum() > 1:
        names.append("variance_ratio")
    return {
        "scatter_variance": images["variance"][chosen],
        "scatter_error": images["mse30"][chosen],
    } | {name: images[name] for name in names}


def illustrate(
    measured: Mapping[str, tuple[InverseModel, Images]],
    data: InpaintingData,
    out: Path,
    *,
    samples: int = 30,
    factor: float = 4.0,
) -> str:
    """Save the numbers of all models to ``figures.npz`` and draw every figure.

    Arguments:
        measured: Models by the name that figures show, with the values of each test image.
        data: The pairs.
        out: The folder of the results.
        samples: Samples that means and variances are taken over.
        factor: The perturbation that localisation was measured with.

    Returns:
        The figures with their captions, as Markdown.
    """
    judges = [name for name in JUDGES if name in measured] or list(measured)[:1]
    errors = [measured[name][1]["mse30"] for name in judges]
    shared = at_percentiles(torch.stack(errors).mean(0))
    found = {
        name: numbers(model, data, images, shared, samples=samples, factor=factor)
        for name, (model, images) in measured.items()
    }
    report.save(found, out / FILE)
    return report.gallery(report.draw_all(found, out))


def redraw(folder: Path) -> list[Path]:
    """Draw every figure again from the saved numbers of a results folder; return their paths."""
    return report.draw_all(report.load(folder / FILE), folder)
