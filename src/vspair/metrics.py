"""Scores of posterior samples against the truth, as functions of tensors.

Samples have shape (n, B, *shape) and truths (B, *shape). Every function returns numbers;
pictures are drawn elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from vspair.errors import VspairError

__all__ = [
    "c2st",
    "central_interval",
    "coverage",
    "crps",
    "energy_distance",
    "energy_score",
    "gaussian_kl",
    "gaussian_w2",
    "pca_share",
    "pearson",
    "principal_directions",
    "psnr",
    "sample_moments",
    "share_inside",
    "spanned_share",
    "spearman",
    "ssim",
]


def check_level(level: float) -> None:
    """Refuse a level that is not a probability."""
    if not 0 < level < 1:
        raise VspairError(f"level = {level}: expected a probability between 0 and 1.")


def central_interval(samples: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the ends of the central interval of samples (n, *shape), each of shape (*shape).

    The k-th smallest of n samples exceeds a share k / (n + 1) of what they were drawn from, on
    average, so the ends lie at the ranks tail * (n + 1), and the interval covers its level for
    few samples as for many (Weibull's positions, type 6). Where the level asks for ranks beyond
    the samples, which is below 19 samples for 0.9, the ends are the least and the greatest.

    Example:
        >>> central_interval(torch.arange(1.0, 20.0), 0.8)
        (tensor(2.), tensor(18.))
    """
    check_level(level)
    ordered = samples.sort(dim=0).values
    tail = (1 - level) / 2
    return _ranked(ordered, tail), _ranked(ordered, 1 - tail)


def _ranked(ordered: Tensor, q: float) -> Tensor:
    """Return the q-quantile of samples (n, *shape) in rising order, with shape (*shape)."""
    last = len(ordered) - 1
    position = min(max(q * (last + 2) - 1, 0.0), float(last))
    below, above = math.floor(position), math.ceil(position)
    return torch.lerp(ordered[below], ordered[above], position - below)


def energy_score(samples: Tensor, x: Tensor) -> Tensor:
    """Return E|X - x| - E|X - X'| / 2, unbiased in the number of samples, with shape (B,).

    The multivariate form of the CRPS: proper, so lower on average for a better posterior.
    One sample alone scores as a point estimate.
    """
    flat, truth = samples.flatten(2), x.flatten(1)
    n, error = len(flat), (flat - truth).norm(dim=-1).mean(0)
    if n < 2:
        return error
    spread = torch.stack([(flat[i] - flat[:i]).norm(dim=-1).sum(0) for i in range(1, n)]).sum(0)
    return error - spread / (n * (n - 1))


def energy_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return 2E|A - B| - E|A - A'| - E|B - B'| for samples (n, B, d) and (m, B, d), shape (B,).

    It is zero only where both are the same distribution. Unbiased, so it can be slightly
    negative for equal ones.
    """
    a, b = a.transpose(0, 1), b.transpose(0, 1)
    n, m = a.shape[1], b.shape[1]
    within = torch.cdist(a, a).sum((1, 2)) / (n * (n - 1))
    within = within + torch.cdist(b, b).sum((1, 2)) / (m * (m - 1))
    return 2 * torch.cdist(a, b).mean((1, 2)) - within


def crps(samples: Tensor, x: Tensor) -> Tensor:
    """Return the continuous ranked probability score of each entry, with shape (B, *shape).

    The fair estimator: unbiased in the number of samples.
    """
    n = len(samples)
    error = (samples - x).abs().mean(0)
    if n < 2:
        return error
    ordered = samples.sort(dim=0).values
    rank = torch.arange(n, dtype=samples.dtype, device=samples.device)
    weight = (2 * rank - n + 1).reshape(-1, *[1] * x.ndim)
    return error - (weight * ordered).sum(0) / (n * (n - 1))


def coverage(low: Tensor, high: Tensor, x: Tensor) -> Tensor:
    """Return the share of entries between the ends of an interval, with shape (B,)."""
    return ((low <= x) & (x <= high)).flatten(1).double().mean(1)


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Return the correlation of two vectors, a scalar."""
    a, b = a - a.mean(), b - b.mean()
    return (a * b).sum() / (a.norm() * b.norm())


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the rank correlation of two lists; NaN where all values of one are equal."""

    def ranks(values: Sequence[float]) -> Tensor:  # equal values share the mean of theirs
        v = torch.tensor(values, dtype=torch.float64)
        below, above = (v < v[:, None]).sum(1), (v > v[:, None]).sum(1)
        return (below - above) / 2

    return float(pearson(ranks(a), ranks(b)))


def share_inside(values: Tensor, region: Tensor) -> Tensor:
    """Return the share of each map's total that lies inside a region, float64 with shape (B,).

    Arguments:
        values: Maps of numbers that are not negative, such as variances, with shape (B, *shape).
        region: Which entries are inside, bool (B, *shape).
    """
    flat = values.flatten(1).double()
    return (flat * region.flatten(1)).sum(1) / flat.sum(1)


def spanned_share(residuals: Tensor, directions: Tensor) -> Tensor:
    r"""Return the share of each residual's squared norm that directions span, float64 (B,).

    .. math:: \sum_k (w_k^T e)^2 / \| e \|^2

    A residual of zero counts as spanned by nothing.

    Arguments:
        residuals: The residuals e, with shape (B, *shape).
        directions: Orthonormal directions w, with shape (K, *shape), or (B, K, *shape) where each
            residual has its own.
    """
    e = residuals.flatten(1).double()
    shared = directions.ndim == residuals.ndim
    w = directions.flatten(1)[None] if shared else directions.flatten(2)
    if w.shape[-1] != e.shape[-1] or len(w) not in (1, len(e)):
        raise VspairError(
            f"residuals has shape {tuple(residuals.shape)}, directions {tuple(directions.shape)}: "
            "expected (B, *shape), and (K, *shape) or (B, K, *shape)."
        )
    along = (w.double() @ e.unsqueeze(-1)).squeeze(-1)
    return along.square().sum(1) / e.square().sum(1).clamp(min=torch.finfo(e.dtype).tiny)


def pca_share(train: Tensor, test: Tensor, k: int) -> Tensor:
    """Return the share of each residual that principal directions of others span, float64 (M,).

    Uncentred: the directions are the k leading eigenvectors of the second moment of the training
    residuals, the same for all. Directions that know y should span more.

    Arguments:
        train: Residuals to find the directions in, with shape (N, *shape).
        test: Residuals to judge them by, with shape (M, *shape).
        k: How many directions.

    Example:
        >>> train = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0]])
        >>> pca_share(train, torch.tensor([[1.0, 1.0], [2.0, 0.0]]), k=1)
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    if train.shape[1:] != test.shape[1:]:
        raise VspairError(
            f"train has shape {tuple(train.shape)}, test {tuple(test.shape)}, k = {k}: expected "
            "residuals of one shape."
        )
    return spanned_share(test, principal_directions(train, k))


def principal_directions(residuals: Tensor, k: int) -> Tensor:
    """Return the leading eigenvectors of the second moment of residuals, float64 (k, *shape).

    Arguments:
        residuals: The residuals, with shape (N, *shape).
        k: How many directions, the first of them leading.
    """
    flat = residuals.flatten(1).double()
    if not 1 <= k <= min(flat.shape):
        raise VspairError(
            f"residuals has shape {tuple(residuals.shape)} and k = {k}: expected (N, *shape), and "
            f"k from 1 to {min(flat.shape)}."
        )
    # The smaller of the two products has the same directions, at a fraction of the cost.
    if flat.shape[0] < flat.shape[1]:
        vectors = flat.T @ torch.linalg.eigh(flat @ flat.T).eigenvectors[:, -k:].flip(1)
        directions = torch.linalg.qr(vectors).Q.T
    else:
        directions = torch.linalg.eigh(flat.T @ flat).eigenvectors[:, -k:].flip(1).T
    return directions.reshape(k, *residuals.shape[1:])


def _span(x: Tensor, span: float | None) -> Tensor:
    """Return the range of values, given or that of each truth (B, *shape), with shape (B,)."""
    flat = x.flatten(1).double()
    if span is not None:
        return flat.new_full((len(x),), span)
    return flat.amax(1) - flat.amin(1)


def psnr(estimate: Tensor, x: Tensor, span: float | None = None) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels, float64 with shape (B,).

    Arguments:
        estimate: Point estimates, with shape (B, *shape).
        x: The truths, with shape (B, *shape).
        span: The range of values. That of each truth where not given, as LoDoPaB-CT's
            benchmark has it.

    Example:
        >>> psnr(torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.1), span=1.0)
        tensor([20.0000], dtype=torch.float64)
    """
    error = (estimate.double() - x.double()).square().flatten(1).mean(1)
    return 10 * torch.log10(_span(x, span).square() / error)


def ssim(estimate: Tensor, x: Tensor, span: float | None = None, window: int = 7) -> Tensor:
    """Return the structural similarity of images, float64 with shape (B,).

    Wang et al., "Image Quality Assessment: From Error Visibility to Structural Similarity", IEEE
    Transactions on Image Processing 13 (2004), with plain square windows, unbiased variances and
    the mean over all windows that lie inside the image: the defaults of scikit-image.

    Arguments:
        estimate: Point estimates, with shape (B, H, W).
        x: The truths, with shape (B, H, W).
        span: The range of values; that of each truth where not given.
        window: The side of a window in pixels.
    """
    if x.ndim != 3 or estimate.shape != x.shape or not 1 < window <= min(x.shape[1:]):
        raise VspairError(
            f"estimate has shape {tuple(estimate.shape)}, x {tuple(x.shape)}: expected images of "
            f"shape (B, H, W) twice, not smaller than the window of {window} pixels."
        )
    scale = _span(x, span)[:, None, None]
    a, b = estimate.double(), x.double()
    # Shifted by the truth's mean: the difference of large squares would lose digits.
    centre = b.mean((1, 2), keepdim=True)
    parts = torch.stack((a, b, (a - centre) ** 2, (b - centre) ** 2, (a - centre) * (b - centre)))
    mean_a, mean_b, aa, bb, ab = F.avg_pool2d(parts, window, stride=1)
    da, db, unbiased = mean_a - centre, mean_b - centre, window**2 / (window**2 - 1)
    var_a, var_b, cov = (
        unbiased * (square - product)
        for square, product in ((aa, da * da), (bb, db * db), (ab, da * db))
    )
    small, large = (0.01 * scale) ** 2, (0.03 * scale) ** 2
    top = (2 * mean_a * mean_b + small) * (2 * cov + large)
    bottom = (mean_a**2 + mean_b**2 + small) * (var_a + var_b + large)
    return (top / bottom).mean((1, 2))


def sample_moments(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (B, n) and covariance (B, n, n) of samples (N, B, n)."""
    mean = samples.mean(0)
    centred = samples - mean
    return mean, torch.einsum("nbi,nbj->bij", centred, centred) / (len(samples) - 1)


def gaussian_kl(mean: Tensor, cov: Tensor, mean_p: Tensor, cov_p: Tensor) -> Tensor:
    """Return KL(N(mean, cov) || N(mean_p, cov_p)) for batches of shape (B, n) and (B, n, n)."""
    precision, error = torch.linalg.inv(cov_p), mean - mean_p
    trace = (precision @ cov).diagonal(dim1=-2, dim2=-1).sum(-1)
    square = (error.unsqueeze(-2) @ precision @ error.unsqueeze(-1)).squeeze(-1).squeeze(-1)
    logs = torch.linalg.slogdet(cov_p).logabsdet - torch.linalg.slogdet(cov).logabsdet
    return 0.5 * (trace + square - mean.shape[-1] + logs)


def gaussian_w2(mean: Tensor, cov: Tensor, mean_p: Tensor, cov_p: Tensor) -> Tensor:
    """Return the 2-Wasserstein distance of two Gaussians, with shape (B,)."""
    root = _sqrt(cov_p)
    cross = _sqrt(root @ cov @ root)
    trace = (cov + cov_p - 2 * cross).diagonal(dim1=-2, dim2=-1).sum(-1)
    return ((mean - mean_p).square().sum(-1) + trace.clamp(min=0)).sqrt()


def _sqrt(matrix: Tensor) -> Tensor:
    """Return the square root of symmetric positive semi-definite matrices (..., n, n)."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT


# -- the classifier two-sample test ----------------------------------------------------------

_BATCH, _STEP, _DECAY = 200, 1e-3, 1e-4
_PATIENCE, _TOLERANCE, _EPOCHS = 10, 1e-4, 10_000
"""How classifiers are trained: the defaults of scikit-learn's, which the benchmark takes."""


def c2st(
    a: Tensor, b: Tensor, seed: int = 1, folds: int = 5, device: torch.device | str = "cpu"
) -> Tensor:
    """Return how often a classifier tells samples a from samples b: 0.5 where they are alike.

    Lopez-Paz and Oquab, "Revisiting Classifier Two-Sample Tests", ICLR 2017, as Lueckmann et al.,
    "Benchmarking Simulation-Based Inference", AISTATS 2021, have it: the accuracy of a network
    with two hidden layers of 10 d rectified units on folds that it has not seen. It is trained by
    Adam until its loss has not fallen for ten epochs.

    Arguments:
        a: The reference samples, with shape (n, d) or (B, n, d), whose moments standardise both.
        b: The samples to be judged, of the same shape.
        seed: Fixes folds, first weights and batches.
        folds: Into how many parts the samples are divided.
        device: Where classifiers are trained.

    Returns:
        The accuracy, float64, with shape () or (B,). The classifiers of all folds and of all B
        comparisons are trained side by side.
    """
    points = _standardised(a, b, folds)
    (sets, count, d), generator = points.shape, Generator().manual_seed(seed)
    order = torch.rand(sets, count, generator=generator).argsort(1)
    parts = order[:, : count // folds * folds].reshape(sets, folds, -1)
    spare = order[:, count // folds * folds :]
    rest = [
        torch.cat([parts[:, torch.arange(folds) != fold].flatten(1), spare], dim=1)
        for fold in range(folds)
    ]
    first = count * torch.arange(sets)[:, None, None]  # rows count through all comparisons
    labels = (torch.arange(count) >= count // 2).float().repeat(sets).to(device)
    train, held = (first + torch.stack(rest, dim=1)).flatten(0, 1), (first + parts).flatten(0, 1)
    flat, train, held = (t.to(device) for t in (points.reshape(-1, d), train, held))
    weights = _train_classifiers(flat, labels, train, generator)
    right = (_logits(weights, flat[held]) > 0) == labels[held].bool()
    return right.double().mean(1).reshape(sets, folds).mean(1).reshape(a.shape[:-2]).cpu()


def _standardised(a: Tensor, b: Tensor, folds: int) -> Tensor:
    """Return samples a, then b, in deviations of a, with shape (B, 2 n, d)."""
    if a.ndim not in (2, 3) or a.shape != b.shape or not 2 <= folds <= a.shape[-2]:
        raise VspairError(
            f"a has shape {tuple(a.shape)}, b {tuple(b.shape)}: expected (n, d) or (B, n, d) "
            f"twice, with 2 folds or more ({folds} were given) and n at least as many. Take as "
            "many samples of one as there are of the other."
        )
    a, b = (t.detach().cpu().double().reshape(-1, *t.shape[-2:]) for t in (a, b))
    both = torch.cat([a, b], dim=1)
    if not bool(both.isfinite().all()):
        raise VspairError("a or b holds samples that are not finite: find out what made them.")
    std, mean = torch.std_mean(a, dim=1, keepdim=True)
    return ((both - mean) / torch.where(std > 0, std, 1.0)).float()


def _layers(d: int) -> list[tuple[int, int]]:
    """Return rows and columns of each layer's weights and biases, which follow each other."""
    sizes = d, 10 * d, 10 * d, 1
    return [shape for m, n in pairwise(sizes) for shape in ((m, n), (1, n))]


def _logits(weights: Tensor, points: Tensor) -> Tensor:
    """Return what each classifier (C, p) says of its points (C, m, d), with shape (C, m)."""
    shapes = _layers(points.shape[-1])
    parts = weights.split([m * n for m, n in shapes], dim=1)
    layers = [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]
    hidden = torch.baddbmm(layers[1], points, layers[0]).relu()
    hidden = torch.baddbmm(layers[3], hidden, layers[2]).relu()
    return torch.baddbmm(layers[5], hidden, layers[4]).squeeze(-1)


def _first_weights(count: int, d: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Return first weights (count, p), as Glorot and Bengio have them, and which decay (p,)."""
    bounds, decays = [], []
    for (m, n), (_, biases) in zip(_layers(d)[::2], _layers(d)[1::2], strict=True):
        # Before a sigmoid, their factor is 2 instead of 6.
        bound = math.sqrt((2 if n == 1 else 6) / (m + n))
        bounds += [bound] * (m * n + biases)
        decays += [1.0] * (m * n) + [0.0] * biases
    unit = 2 * torch.rand(count, len(bounds), generator=generator) - 1
    return unit * torch.tensor(bounds), torch.tensor(decays)


def _train_classifiers(
    points: Tensor, labels: Tensor, rows: Tensor, generator: Generator
) -> Tensor:
    """Train classifiers side by side until the last one stops; return their weights (C, p).

    Arguments:
        points: All samples, with shape (N, d).
        labels: 0 or 1 for each, with shape (N,).
        rows: The rows that each classifier learns from, with shape (C, m).
        generator: Draws first weights and batches, on the CPU, the same for all devices.
    """
    device, drawn = points.device, _first_weights(len(rows), points.shape[1], generator)
    weights, decays = (t.to(device) for t in drawn)
    final, left = weights.clone(), torch.arange(len(rows), device=device)
    # Weights, their two moments, and the least loss with how long ago it was.
    state = [weights, torch.zeros_like(weights), torch.zeros_like(weights)]
    best, steps = torch.full((len(rows),), math.inf, device=device), 0
    waited = torch.zeros(len(rows), device=device)
    for _ in range(_EPOCHS):
        order = torch.rand(rows.shape, generator=generator).argsort(1).to(device)
        shuffled = rows.gather(1, order)
        total = torch.zeros(len(rows), device=device)
        for batch in shuffled.split(_BATCH, dim=1):
            steps += 1
            loss, gradient = _loss(state[0], decays, points[batch], labels[batch])
            _adam(state, gradient, steps)
            total += loss * batch.shape[1] / rows.shape[1]
        waited = torch.where(total > best - _TOLERANCE, waited + 1, 0)
        best = torch.minimum(best, total)
        final[left] = state[0]
        going = waited <= _PATIENCE
        if not bool(going.all()):
            left, rows, best, waited = left[going], rows[going], best[going], waited[going]
            state = [part[going] for part in state]
        if not len(left):
            break
    return final


@torch.enable_grad()
def _loss(
    weights: Tensor, decays: Tensor, points: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each classifier with its decay, (C,), and its gradient."""
    moving = weights.detach().requires_grad_()
    error = F.binary_cross_entropy_with_logits(_logits(moving, points), labels, reduction="none")
    square = moving.square() @ decays
    loss = error.mean(1) + 0.5 * _DECAY / labels.shape[1] * square
    return loss.detach(), torch.autograd.grad(loss.sum(), moving)[0]


def _adam(state: list[Tensor], gradient: Tensor, steps: int) -> None:
    """Move weights by a step of Adam, in place, with its first and second moments."""
    weights, first, second = state
    first.lerp_(gradient, 0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    scale = (second / (1 - 0.999**steps)).sqrt_().add_(1e-8)
    weights.addcdiv_(first, scale, value=-_STEP / (1 - 0.9**steps))
