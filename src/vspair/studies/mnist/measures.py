"""What section 4.2 measures: of every test image, of a model as a whole, and for its figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from vspair import uncertainty
from vspair.codes import SpikeSlab
from vspair.data import Pairs
from vspair.evaluation import scores
from vspair.model import InverseModel, PairedAutoencoder
from vspair.posterior import LatentPosterior, Method
from vspair.problems.inpainting import InpaintingProblem
from vspair.runs import Groups
from vspair.studies.answers import Question, digest

__all__ = [
    "InpaintingQuestion",
    "at_percentiles",
    "describe_model",
    "figure_numbers",
    "table_column",
]

SAMPLES = 30
WALK = (-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0)
"""How far a factor is moved in figures: from -400 % to +400 % of its value."""
PERCENTILES = (0.25, 0.50, 0.96)
CHOICES = ("stable", "any")
"""The best localised factor is chosen among those active in all samples, or in any."""


def _seeded(post: LatentPosterior, seed: int = 0) -> Generator:
    return Generator(post.device).manual_seed(seed)


def _active(post: LatentPosterior, generator: Generator) -> dict[str, Tensor]:
    """Return the factors of each of :data:`CHOICES`, masks of shape (B, l)."""
    counts = uncertainty.draw_active(post, SAMPLES, generator)
    return {"stable": uncertainty.always_active(counts, SAMPLES), "any": counts > 0}


# -- of every test image ---------------------------------------------------------------------


@dataclass(frozen=True)
class InpaintingQuestion(Question):
    """Test pairs whose answers are scored; of models with spread, factors are measured too.

    For the localisation ratio a factor of one sample is moved by half of its value. The paper does
    not say; this comes nearest to its table (see :mod:`.conventions`).
    """

    samples: int = SAMPLES
    block: int = 500
    base: Literal["mean", "sample"] = "sample"
    step: float = 0.5

    @property
    def key(self) -> str:
        """What the question is known again by."""
        return digest(super().key, self.base, self.step)

    def scores(self, method: Method, rows: Tensor) -> dict[str, Tensor]:
        """Return scores and factors of k test images, one value an image for each name.

        The names of factors are ``sparsity``, ``variance_ratio``, ``always_active`` and, for the
        best localised one of each of :data:`CHOICES`, ``dim_``, ``ratio_`` and ``inside_``.
        """
        found = super().scores(method, rows)
        if not isinstance(method, InverseModel) or "variance" not in found:
            return found
        pairs = self.pairs[rows]
        post, region = method.posterior(pairs.y), InpaintingProblem.changed(pairs.x, pairs.y)
        if "nnz" in found:
            found["sparsity"] = 1 - found["nnz"] / post.code.mean.shape[1]
        generator = _seeded(post, int(rows[0]))
        _, std = post.moments(SAMPLES, generator)
        found["variance_ratio"] = uncertainty.variance_ratio(std.square(), region)
        among = _active(post, generator)
        found["always_active"] = among["stable"].sum(1)
        ratios = uncertainty.localisation(
            post, region, self.step, base=self.base, dims=among["any"], generator=generator,
            dtype=torch.bfloat16 if post.device.type == "cuda" else None,
        )  # fmt: skip
        for choice, allowed in among.items():
            best = uncertainty.best_localised(ratios, allowed)
            found |= {f"{name}_{choice}": value for name, value in vars(best).items()}
        return {name: value.cpu() for name, value in found.items()}


# -- of a model as a whole -------------------------------------------------------------------


@torch.no_grad()
def describe_model(
    load: Callable[[Tensor], InverseModel], pairs: Pairs, most: int = 2048
) -> Groups:
    """Return what explains a model's scores: its autoencoder alone, and its codes.

    Arguments:
        load: Returns the model that answers some rows.
        pairs: Test pairs.
        most: How many of them are used.
    """
    model, x, y = load(torch.arange(0)), pairs.x[:most], pairs.y[:most]
    row = {"parameters": float(model.n_parameters)}
    if isinstance(model, PairedAutoencoder):
        code = model.x_encoder(model.x_normaliser(x.to(model.device)))
        own = scores(LatentPosterior(model, code), x, samples=1)
        row["mse_autoencoder"] = float(own["mse_code"].mean())
        if isinstance(code, SpikeSlab):
            row["nnz_encoder"] = float(code.omega.sum(1).mean())
    post = model.posterior(y)
    return {"row": row | (uncertainty.spread_over_y(post) if model.rho is not None else {})}


def table_column(answer: Groups) -> dict[str, float]:
    """Return every number of a method, by its name in the vocabulary."""
    values = {name: torch.as_tensor(v).double() for name, v in answer["scores"].items()}
    best = [name for name in values if name.startswith(("dim_", "ratio_", "inside_"))]
    column = {name: float(v.mean()) for name, v in values.items() if name not in best}
    if best:
        counts, some = values["always_active"], scattered(len(values["variance"]))
        column["always_active_min"], column["always_active_max"] = map(float, counts.aminmax())
        column["localization_without"] = float((counts == 0).sum())
        column["variance_ratio"] = float(values["variance_ratio"].nanmedian())
        fit = uncertainty.uncertainty_error(values["variance"][some], values["mse_mean"][some])
        column["uncertainty_error_r"] = fit.r
    for choice in CHOICES if best else ():
        parts = (values[f"{name}_{choice}"] for name in ("dim", "ratio", "inside"))
        found = uncertainty.BestLocalised(*parts).summary()
        column[f"localization_median_{choice}"] = found["median_ratio"]
        column[f"localization_mean_{choice}"] = found["mean_ratio"]
        column[f"localization_corrupted_mse_{choice}"] = found["mean_inside"]
    return column | {name: float(v) for name, v in answer.get("row", {}).items()}


def scattered(n: int) -> Tensor:
    """Return which of n test images the scatter of variance and error shows, at most 500."""
    return torch.randperm(n, generator=Generator().manual_seed(0))[:500]


# -- what figures show -----------------------------------------------------------------------


def at_percentiles(error: Tensor) -> Tensor:
    """Return the images at the 25th, 50th and 96th percentile of error, with shape (3,).

    Example:
        >>> at_percentiles(torch.linspace(1, 0, 101))
        tensor([75, 50,  4])
    """
    places = [round(p * (len(error) - 1)) for p in PERCENTILES]
    return error.argsort(stable=True)[places]


@torch.no_grad()
def figure_numbers(
    model: InverseModel, asked: Question, answered: Mapping[str, Any], shared: Tensor
) -> dict[str, Any]:
    """Return what the figures show of one model, by name; of PAIR less, which has no samples.

    Arguments:
        model: The model.
        asked: The test pairs.
        answered: One value an image for each name, as :class:`InpaintingQuestion` returns them.
        shared: The test images that every model is shown on, indices of shape (S,). The middle
            one is that whose factors are moved.
    """
    images = {name: torch.as_tensor(v) for name, v in answered.items()}
    error = images["mse_mean"]
    found: dict[str, Any] = {}
    for group, rows in (("percentile", at_percentiles(error)), ("shared", shared)):
        parts = _reconstructions(model, asked, rows) | {"index": rows, "mse": error[rows]}
        found |= {f"{group}_{name}": v for name, v in parts.items()}
    post = model.posterior(asked.pairs.y[shared])
    found |= {"code_mean": post.code.mean, "code_sample": post.code.rsample(_seeded(post))}
    found |= {"code_omega": post.code.omega} if isinstance(post.code, SpikeSlab) else {}
    found["code_nnz"] = uncertainty.nnz(post, _seeded(post))
    if not post.has_spread:
        return found
    some, middle = scattered(len(error)), shared[len(shared) // 2]
    found |= {"scatter_variance": images["variance"][some], "scatter_error": error[some]}
    names = ["ratio_stable", "ratio_any", "inside_stable"]
    names += ["variance_ratio"] * bool(images["variance_ratio"].isfinite().sum() > 1)
    found |= {name: images[name] for name in names} | {"factors": torch.tensor(WALK)}
    found |= _walk(model.posterior(asked.pairs.y[middle][None]))
    return found | _localised(post, {name: v[shared] for name, v in images.items()})


def _reconstructions(model: InverseModel, asked: Question, rows: Tensor) -> dict[str, Tensor]:
    """Return what is seen of n test images and their answers, each of shape (n, H, W)."""
    pairs, shown = asked.pairs[rows], asked.images(model, rows)
    mean = shown["estimate"].cpu()
    found = {"x": pairs.x, "y": pairs.y, "region": InpaintingProblem.changed(pairs.x, pairs.y)}
    if "std" in shown:
        found |= {"sample": shown["sample"], "variance": shown["std"].square()}
    return found | {"mean": mean, "error": (mean - pairs.x).abs()}


def _walk(post: LatentPosterior, most: int = 3) -> dict[str, Tensor]:
    """Return mean reconstructions of one image along the factors that carry most variance.

    Only factors that are active in all samples are taken, or in any where those are too few.

    Returns:
        ``walk_dims`` and ``walk_stable`` of shape (K,) and ``walk_images`` of shape (K, F, H, W)
        for at most ``most`` factors; nothing where no factor is active.
    """
    stable, some = _active(post, _seeded(post)).values()
    among = stable if int(stable.sum()) >= most else some
    if not among.any():
        return {}
    dims = post.factors(min(most, int(among.sum())), among=among).index[0]
    walk = uncertainty.perturb(post, dims, WALK, SAMPLES, _seeded(post))[0]
    return {"walk_dims": dims, "walk_stable": stable[0, dims], "walk_images": walk}


def _localised(post: LatentPosterior, images: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the factor of highest localisation ratio does to each of S images.

    Returns:
        ``localised_dim`` (-1 where no factor is active), ``localised_stable`` and
        ``localised_ratio`` of shape (S,); the decoded mean code before and after the largest
        move, and its squared change, of shape (S, H, W); mean reconstructions
        ``localised_walk`` of shape (S, F, H, W).
    """
    stable, z = images["dim_stable"] >= 0, post.code.mean
    dim = torch.where(stable, images["dim_stable"], images["dim_any"])
    none, place = (dim < 0)[:, None].to(z.device), dim.clamp(min=0)[:, None].to(z.device)
    move = WALK[-1] * z.gather(1, place).masked_fill(none, 0.0)
    before, after = post.decode(z), post.decode(z.scatter_add(1, place, move))
    walk = uncertainty.perturb(post, place, WALK, SAMPLES, _seeded(post))[:, 0]
    still = walk[:, [WALK.index(0.0)]].expand_as(walk)
    return {
        "localised_dim": dim,
        "localised_stable": stable,
        "localised_ratio": torch.where(stable, images["ratio_stable"], images["ratio_any"]),
        "localised_before": before,
        "localised_after": after,
        "localised_change": (after - before).square(),
        "localised_walk": torch.where(none[..., None, None], still, walk),
    }
