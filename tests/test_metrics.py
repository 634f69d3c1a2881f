import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vspair.errors import VspairError
from vspair.evaluation import excess
from vspair.metrics import (
    c2st,
    central_interval,
    coverage,
    crps,
    energy_score,
    gaussian_kl,
    gaussian_w2,
    pca_share,
    pearson,
    psnr,
    share_inside,
    spanned_share,
    spearman,
    ssim,
)


def _spd(n: int, batch: int) -> Tensor:
    root = torch.randn(batch, n, n, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(n, dtype=torch.float64)


def test_gaussian_kl_equals_torch() -> None:
    mean, other = torch.randn(2, 5, 3, dtype=torch.float64)
    cov, cov_p = _spd(3, 5), _spd(3, 5)
    normal = torch.distributions.MultivariateNormal
    exact = torch.distributions.kl_divergence(normal(mean, cov), normal(other, cov_p))
    assert torch.allclose(gaussian_kl(mean, cov, other, cov_p), exact)


def test_gaussian_w2_of_commuting_covariances() -> None:
    a, b = torch.rand(2, 4, 3, dtype=torch.float64) + 0.1
    shift = torch.randn(4, 3, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64)).Q
    cov, cov_p = (turn @ torch.diag_embed(v) @ turn.T for v in (a, b))
    exact = (shift.square().sum(-1) + (a.sqrt() - b.sqrt()).square().sum(-1)).sqrt()
    assert torch.allclose(gaussian_w2(shift, cov, torch.zeros_like(shift), cov_p), exact)


def test_gaussian_w2_is_symmetric_and_zero_for_equals() -> None:
    mean, cov, cov_p = torch.zeros(4, 3, dtype=torch.float64), _spd(3, 4), _spd(3, 4)
    there, back = gaussian_w2(mean, cov, mean, cov_p), gaussian_w2(mean, cov_p, mean, cov)
    assert torch.allclose(there, back)
    assert gaussian_w2(mean, cov, mean, cov).max() < 1e-6


def test_crps_is_unbiased_for_a_normal() -> None:
    samples = torch.randn(5, 40000, 1, dtype=torch.float64)
    exact = math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi)  # CRPS of N(0, 1) at 0
    value = crps(samples, torch.zeros(40000, 1, dtype=torch.float64)).mean()
    assert abs(float(value) - exact) < 0.01


def test_crps_equals_the_energy_score_in_one_dimension() -> None:
    samples, x = torch.randn(7, 9, 1, dtype=torch.float64), torch.randn(9, 1, dtype=torch.float64)
    assert torch.allclose(crps(samples, x)[:, 0], energy_score(samples, x))


def test_scores_of_one_sample_are_errors() -> None:
    sample, x = torch.randn(1, 4, 3), torch.randn(4, 3)
    assert torch.equal(crps(sample, x), (sample[0] - x).abs())
    assert torch.allclose(energy_score(sample, x), (sample[0] - x).norm(dim=-1))


def test_energy_score_prefers_the_truth() -> None:
    x = torch.randn(4000, 2)
    honest, narrow, wide = (w * torch.randn(8, 4000, 2) for w in (1.0, 0.3, 3.0))
    best = energy_score(honest, x).mean()
    assert best < energy_score(narrow, x).mean()
    assert best < energy_score(wide, x).mean()


def test_coverage_counts_entries() -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert float(coverage(torch.full((1, 4), 0.5), torch.full((1, 4), 2.0), x)) == 0.5


@pytest.mark.parametrize("n", [20, 50])
def test_central_interval_covers_what_it_promises(n: int) -> None:
    low, high = central_interval(torch.randn(n, 20000, dtype=torch.float64), 0.9)
    inside = torch.special.ndtr(high) - torch.special.ndtr(low)
    assert abs(float(inside.mean()) - 0.9) < 0.01


@pytest.mark.parametrize("n", [1, 2, 7, 19, 50])
@pytest.mark.parametrize("level", [0.1, 0.5, 0.9, 0.99])
def test_central_interval_equals_numpy(n: int, level: float) -> None:
    samples = torch.randn(n, 3, 2, dtype=torch.float64)
    tails = [(1 - level) / 2, (1 + level) / 2]
    expected = np.quantile(samples.numpy(), tails, axis=0, method="weibull")
    assert np.allclose(torch.stack(central_interval(samples, level)).numpy(), expected)


def test_central_interval_keeps_the_dtype() -> None:
    low, high = central_interval(torch.randn(9, 2), 0.5)
    assert low.dtype == high.dtype == torch.float32


@pytest.mark.parametrize("level", [0.0, 1.0, 90, float("nan")])
def test_central_interval_refuses_a_level_that_is_no_probability(level: float) -> None:
    with pytest.raises(VspairError, match="level ="):
        central_interval(torch.randn(9, 2), level)


def test_pearson_equals_torch() -> None:
    a, b = torch.randn(2, 50, dtype=torch.float64)
    assert torch.allclose(pearson(a, b), torch.corrcoef(torch.stack((a, b)))[0, 1])


def test_psnr_by_hand() -> None:
    x = torch.rand(3, 5, 4)
    estimate = x + torch.tensor([0.1, 0.2, 0.5]).reshape(3, 1, 1)
    spans = x.flatten(1).amax(1) - x.flatten(1).amin(1)
    expected = [20 * math.log10(float(s) / e) for s, e in zip(spans, (0.1, 0.2, 0.5), strict=True)]
    assert psnr(estimate, x).tolist() == pytest.approx(expected, rel=1e-5)
    assert psnr(estimate, x, span=1.0).tolist() == pytest.approx([20.0, 13.9794, 6.0206], rel=1e-5)


def naive_ssim(a: Tensor, b: Tensor, span: float, window: int) -> float:
    """Wang's formula, window by window, in float64."""
    one, two, values = (0.01 * span) ** 2, (0.03 * span) ** 2, []
    for i in range(a.shape[0] - window + 1):
        for j in range(a.shape[1] - window + 1):
            p, q = (t[i : i + window, j : j + window].double().flatten() for t in (a, b))
            cov = torch.cov(torch.stack((p, q)))
            top = (2 * p.mean() * q.mean() + one) * (2 * cov[0, 1] + two)
            bottom = p.mean() ** 2 + q.mean() ** 2 + one
            values.append(float(top / (bottom * (cov[0, 0] + cov[1, 1] + two))))
    return sum(values) / len(values)


@pytest.mark.parametrize("offset", [0.0, 100.0])
@pytest.mark.parametrize("window", [3, 7])
def test_ssim_equals_windows_one_by_one(window: int, offset: float) -> None:
    x = torch.rand(2, 12, 9, dtype=torch.float64) + offset
    estimate = x + 0.3 * torch.randn(2, 12, 9, dtype=torch.float64)
    spans = x.flatten(1).amax(1) - x.flatten(1).amin(1)
    for span in (None, 2.0):
        expected = [
            naive_ssim(estimate[i], x[i], span or float(spans[i]), window) for i in range(2)
        ]
        assert ssim(estimate, x, span, window).tolist() == pytest.approx(expected, rel=1e-9)


def test_ssim_of_the_truth_is_one_and_falls_with_noise() -> None:
    x = torch.rand(4, 20, 20)
    assert ssim(x, x).tolist() == pytest.approx([1.0] * 4)
    noise = torch.randn(4, 20, 20)
    near, far = (ssim(x + s * noise, x) for s in (0.05, 0.5))
    assert bool((far < near).all())
    assert bool((near < 1).all())


@pytest.mark.parametrize("shape", [(2, 6, 20), (2, 3, 8, 8), (1, 8, 8)])
def test_ssim_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    x = torch.rand(2, 6, 20) if shape == (2, 6, 20) else torch.rand(2, 8, 8)
    with pytest.raises(VspairError, match="expected images"):
        ssim(torch.rand(shape), x)


def test_the_share_inside_a_region_by_hand() -> None:
    values = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 5.0], [5.0, 0.0]]])
    region = torch.tensor([[[True, False], [False, True]], [[False, True], [False, False]]])
    assert share_inside(values, region).tolist() == [0.5, 0.5]


def test_excess_by_hand() -> None:
    estimate, std, x = torch.tensor([[0.0, 1.0, -3.0]]), torch.ones(1, 3), torch.zeros(1, 3)
    assert excess(estimate, std, x).tolist() == [[0, 0, 1]]
    assert excess(estimate, std, x, deviations=0.5).tolist() == [[0, 0.5, 2.5]]


def test_spearman_with_ties_is_that_of_the_mean_ranks() -> None:
    """Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: r = 4.5 / sqrt(4.5 * 5)."""
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert spearman([1, 2, 3], [9, 4, 1]) == pytest.approx(-1)


def test_the_spanned_share_is_that_of_least_squares() -> None:
    e = torch.randn(5, 2, 4)
    own = torch.linalg.qr(torch.randn(5, 8, 3)).Q.mT
    found = spanned_share(e, own.reshape(5, 3, 2, 4))
    for i in range(5):
        basis = own[i].T.double()
        left = e[i].flatten().double()
        left = left - basis @ torch.linalg.lstsq(basis, left).solution
        expected = 1 - float(left.square().sum()) / float(e[i].square().sum())
        assert float(found[i]) == pytest.approx(expected, abs=1e-6)
    shared = spanned_share(e, own[0].reshape(3, 2, 4))
    assert float(shared[0]) == pytest.approx(float(found[0]))
    assert shared.shape == (5,)
    assert spanned_share(torch.zeros(1, 8), own[0]).tolist() == [0]
    with pytest.raises(VspairError, match=r"residuals has shape \(5, 2, 4\)"):
        spanned_share(e, own[:2].reshape(2, 3, 2, 4))
    with pytest.raises(VspairError, match=r"directions \(3, 8\)"):
        spanned_share(e[:, 0], own[0])


@pytest.mark.parametrize("n", [6, 40])
def test_the_pca_share_is_that_of_singular_vectors(n: int) -> None:
    """With more residuals than entries, and with fewer; uncentred, so a common shift counts."""
    train, test = torch.randn(n, 3, 4) + 1, torch.randn(7, 3, 4)
    for k in (1, 2, 6):
        vectors = torch.linalg.svd(train.flatten(1).double()).Vh[:k]
        along = test.flatten(1).double() @ vectors.T
        expected = along.square().sum(1) / test.flatten(1).double().square().sum(1)
        torch.testing.assert_close(pca_share(train, test, k), expected, rtol=1e-6, atol=1e-8)


def test_the_pca_share_of_a_gaussian_is_that_of_its_leading_variances() -> None:
    std = torch.tensor([3.0, 2.0, 0.5, 0.1])
    basis = torch.linalg.qr(torch.randn(4, 4)).Q
    train, test = ((torch.randn(4000, 4) * std) @ basis.T for _ in range(2))
    total = test.double().square().sum(1)
    spanned = (pca_share(train, test, 2) * total).sum() / total.sum()
    assert float(spanned) == pytest.approx(13 / 13.26, abs=0.003)


@pytest.mark.parametrize("k", [0, 5])
def test_the_pca_share_needs_as_many_residuals_as_directions(k: int) -> None:
    with pytest.raises(VspairError, match=rf"k = {k}: expected .* k from 1 to 4"):
        pca_share(torch.randn(4, 6), torch.randn(3, 6), k)
    with pytest.raises(VspairError, match="residuals of one shape"):
        pca_share(torch.randn(4, 6), torch.randn(3, 5), 2)


# -- the classifier two-sample test ----------------------------------------------------------


def test_a_classifier_tells_normals_apart_as_often_as_the_best_one() -> None:
    """The best classifier of N(0, 1) and N(delta, 1) is right with chance Phi(delta / 2)."""
    shifts = torch.tensor([0.0, 0.5, 1.0, 2.0])[:, None, None]
    a, b = torch.randn(2, 4, 3000, 1)
    best = torch.special.ndtr(shifts.flatten().double() / 2)
    found = c2st(5 + 3 * a, 5 + 3 * (b + shifts))
    assert found.tolist() == pytest.approx(best.tolist(), abs=0.025)


def test_a_classifier_sees_what_marginals_do_not() -> None:
    """Of two normals with correlation r and -r, the sign of the product tells all there is."""
    r, (a, b) = 0.8, torch.randn(2, 2000, 2)
    root = torch.tensor([[1.0, 0.0], [r, math.sqrt(1 - r * r)]])
    best = 0.5 + math.asin(r) / math.pi
    found = c2st(a @ root.T, (b @ root.T) * torch.tensor([1.0, -1.0]))
    assert found.shape == ()
    assert float(found) == pytest.approx(best, abs=0.025)


def test_comparisons_side_by_side_are_as_those_alone() -> None:
    a, b = torch.randn(2, 3, 600, 2)
    b[1] += 5
    b[2] *= 3
    together = c2st(a, b)
    alone = [float(c2st(*each)) for each in zip(a, b, strict=True)]
    assert together.tolist() == pytest.approx(alone, abs=0.06)
    assert together[1] > 0.99
    assert together[2] > 0.65
    assert torch.equal(c2st(a, b), together)


def test_a_classifier_is_judged_by_what_it_has_not_seen() -> None:
    """In ten dimensions a few samples are learned by heart, which says nothing of others."""
    a, b = torch.randn(2, 6, 62, 10)  # 124 samples, which five folds do not divide
    assert float(c2st(a, b).mean()) == pytest.approx(0.5, abs=0.08)


def test_an_estimate_without_spread_is_told_from_samples() -> None:
    assert c2st(torch.randn(300, 2), torch.zeros(300, 2)) > 0.95
    assert c2st(torch.zeros(300, 2), torch.zeros(300, 2)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (torch.zeros(9, 2), torch.zeros(8, 2), r"a has shape \(9, 2\), b \(8, 2\)"),
        (torch.zeros(9), torch.zeros(9), r"a has shape \(9,\)"),
        (torch.zeros(4, 2), torch.zeros(4, 2), "5 were given"),
        (torch.zeros(9, 2), torch.full((9, 2), math.nan), "not finite"),
    ],
)
def test_c2st_refuses_what_cannot_be_compared(a: Tensor, b: Tensor, words: str) -> None:
    with pytest.raises(VspairError, match=words):
        c2st(a, b)
