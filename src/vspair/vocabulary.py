"""The one vocabulary of numbers: every metric of every table, with its unit and its formula.

Here x is the truth of one observation, X, X' are samples of its posterior, m and s their mean and
standard deviation entry by entry, d the decoder, and z a latent sample with gates of probability
omega. "Mean" without more is over entries and observations. Squared errors have the squared unit
of the data. A name with ``_with_noise`` is of samples that include the decoder's noise.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["VOCABULARY", "Metric", "look_up", "table"]


class Metric(NamedTuple):
    """What a number is: its unit (empty for pure numbers), and how it is computed."""

    unit: str
    formula: str


_GENERAL = {
    "mse_mean": Metric("data²", "mean of (m - x)²; of a point method, of its estimate"),
    "mse_sample": Metric(
        "data²", "mean of (X - x)², over samples too (published of MNIST: of one sample)"
    ),
    "mse_code": Metric("data²", "mean of (d(E z) - x)²: the decoded mean code"),
    "mse_mean_first": Metric("data²", "mse_mean of seed 0 alone"),
    "relative_mse_mean": Metric("", "mse_mean over the variance of the truths"),
    "relative_mse_sample": Metric("", "mse_sample over the variance of the truths"),
    "crps": Metric("data", "mean of E|X - x| - E|X - X'| / 2, the fair estimator"),
    "energy_score": Metric("data", "E||X - x|| - E||X - X'|| / 2 of whole unknowns"),
    "coverage_90": Metric("", "share of entries of x inside the central 90 % interval"),
    "variance": Metric("data²", "mean of s²"),
    "variance_50": Metric("data²", "mean of s² of 50 samples"),
    "deviation": Metric("data", "mean of s"),
    "beyond_2_std": Metric("", "share of entries with |m - x| > 2 s"),
    "excess_2_std": Metric("data", "mean of max(|m - x| - 2 s, 0)"),
    "beyond_4_std": Metric("", "share of entries with |m - x| > 4 s"),
    "psnr": Metric("dB", "10 log10(range(x)² / mse_mean), mean over images"),
    "ssim": Metric("", "structural similarity of m and x, windows of 7x7"),
    "ssim_sample": Metric("", "structural similarity of one sample and x"),
    "uncertainty_error_r": Metric(
        "", "Pearson r over images of variance and mse_mean (MNIST: over 500 of them)"
    ),
    "uncertainty_error_r_sample": Metric("", "Pearson r over images of variance and mse_sample"),
    "floor_mean": Metric("data²", "mse_mean of answering with the mean of the truths"),
    "floor_y": Metric("data²", "mse_mean of answering with y itself"),
    "mse_over_best_simple": Metric(
        "", "mse_mean over the least of ridge and a plain network on the same pairs"
    ),
    "crps_over_best_simple": Metric("", "the same of crps, theirs of Gaussian residuals"),
    "mse_over_full": Metric("", "mse_mean over that of the model with all its parts, same seed"),
    "crps_over_full": Metric("", "the same of crps"),
    "energy_over_full": Metric("", "the same of energy_score"),
    "field_variance": Metric("data²", "variance of the truths"),
    "spanned_share": Metric(
        "", "share of ||x - m||² that a method's leading directions span, mean over observations"
    ),
    "pca_share": Metric(
        "", "the same of the leading principal directions of other pairs' residuals"
    ),
    "explained": Metric(
        "",
        "share of the sum of ||x - m||² that the residual's own code explains by the factors that "
        "the answer has, times the one number that explains most",
    ),
    "spanned_all": Metric(
        "", "spanned_share of what the present factors move, all of them, in straight lines"
    ),
    "spanned_5": Metric("", "the same of the (up to) five factors that carry most variance"),
    "spanned_pca": Metric(
        "", "pca_share of as many directions, for each observation, as spanned_all has"
    ),
    "spanned_pca_5": Metric("", "pca_share of five directions"),
    "spanned_nppc_5": Metric(
        "", "spanned_share of five neural posterior principal components about the same anchor"
    ),
    "converged": Metric("", "share of observations on which an iteration met its tolerance"),
    "slices": Metric("", "number of test slices that a number is over"),
}

_CODES = {
    "active": Metric("factors", "number of factors with omega > 1/2, on average over modes"),
    "ever_active": Metric("factors", "number of factors with omega > 1/2 for some observation"),
    "active_share": Metric("", "nnz over the number of factors"),
    "present": Metric("factors", "sum of omega: the expected number of factors, over modes"),
    "hedged": Metric("factors", "the part of present from gates with 0.05 < omega < 0.5"),
    "variance_factors": Metric("data²", "variance less that of the grain"),
    "share_in_factors": Metric("", "variance_factors over variance, each a mean over all"),
    "nnz": Metric("factors", "number of non-zeros of one latent sample"),
    "nnz_std": Metric("factors", "standard deviation of nnz over observations"),
    "nnz_encoder": Metric("factors", "expected nnz of the code of x itself"),
    "sparsity": Metric("", "1 - nnz over the number of factors"),
    "near_one": Metric("factors", "number of factors whose omega is nearer to 1 than to rho"),
    "undecided": Metric("", "share of gates with omega between 0.1 and 0.9"),
    "omega_mean": Metric("", "mean of omega"),
    "rho": Metric("", "prior probability that a factor is present"),
    "always_active": Metric("factors", "number of factors that are non-zero in all of 30 samples"),
    "always_active_min": Metric("factors", "the least always_active of an image"),
    "always_active_max": Metric("factors", "the greatest always_active of an image"),
    "std_mu_over_y": Metric("", "standard deviation of mu over observations, mean over factors"),
    "std_sigma_over_y": Metric("", "the same of sigma"),
    "std_omega_over_y": Metric("", "the same of omega"),
    "decoder_noise": Metric("data", "standard deviation of the decoder's noise"),
    "decoder_noise_normalised": Metric("", "the same in the unit that networks see"),
    "mse_autoencoder": Metric("data²", "mean of (d(E z) - x)², z from the code of x itself"),
    "mse_autoencoder_sample": Metric("data²", "mean of (d(z) - x)², z sampled from it"),
    "mse_training_mode": Metric("data²", "mse_sample with batch norm as in training"),
}

_REGIONS = {
    "variance_ratio": Metric("", "median over images of s² inside / outside the lost region"),
    "localization_median": Metric("", "median ratio of the best localised factor"),
    "localization_mean": Metric("", "mean ratio of the best localised factor"),
    "localization_corrupted_mse": Metric("data²", "its mean squared change inside the region"),
    "localization_without": Metric("images", "images without an always active factor"),
    "variance_inside": Metric(
        "", "share of s² inside a region, such as the disc of the heat source"
    ),
    "error_inside": Metric("", "share of (m - x)² inside it"),
    "area_inside": Metric("", "share of the area inside it"),
}

_EXACT = {
    "mean_error": Metric("", "||m - exact mean|| over the root of the exact trace"),
    "kl_exact": Metric("nats", "KL(N(m, Cov X) || exact posterior), median over observations"),
    "w2_exact": Metric("data", "2-Wasserstein distance of the same two Gaussians"),
    "energy_exact": Metric("data", "energy distance of 500 samples to 500 exact ones"),
    "c2st": Metric(
        "",
        "share of samples and reference samples that a classifier tells apart, median over "
        "observations; 0.5 is perfect",
    ),
    "c2st_mean": Metric("", "the same, mean over observations"),
    "trace_ratio": Metric("", "trace of Cov X over that of the exact covariance"),
    "alignment": Metric("", "mean |cosine| of active directions with the nearest eigenvector"),
    "theorem_mean": Metric("", "||E[Z | y] - theorem 1's|| over the norm of the latter"),
    "theorem_variances": Metric("", "mean relative error of the variances of Z given y to it"),
    "theorem_covariance": Metric("", "||Cov(Z | y) - theorem 1's|| over the norm of the latter"),
}

_COSTS = {
    "parameters": Metric("", "number of trainable parameters"),
    "epochs": Metric("", "passes over the training pairs"),
    "epochs_planned": Metric("", "passes that were planned"),
    "best_epoch": Metric("", "the epoch whose weights answer"),
    "seconds": Metric("s", "time of a training"),
    "seconds_per_image": Metric("s", "time of one estimate for one observation"),
    "seconds_all_samples": Metric("s", "time of all samples for one observation"),
    "seconds_per_sample": Metric("s", "time of one sample among many"),
    "training_seconds": Metric("s", "time of the training"),
}

VOCABULARY: dict[str, Metric] = _GENERAL | _CODES | _REGIONS | _EXACT | _COSTS
"""Every metric by its name."""

_PARTS = ("_with_noise", "_train", "_validation", "_test", "_stable", "_any")
"""What may stand behind a name: samples with noise, a part of the data, a choice of factors."""


def look_up(name: str) -> Metric:
    """Return what a metric is; names may carry an ending, and coverage any level.

    Example:
        >>> look_up("crps_with_noise").unit, look_up("coverage_50").formula
        ('data', 'share of entries of x inside the central 50 % interval')
    """
    plain = name
    for ending in _PARTS:
        plain = plain.removesuffix(ending)
    if plain not in VOCABULARY and plain.startswith("coverage_"):
        unit, formula = VOCABULARY["coverage_90"]
        return Metric(unit, formula.replace("90", plain.removeprefix("coverage_")))
    return VOCABULARY[plain]


def table() -> str:
    """Return the vocabulary as a Markdown table, for the documentation."""
    lines = ["| metric | unit | formula |", "|---|---|---|"]
    lines += [
        f"| `{k}` | {m.unit} | {m.formula.replace('|', '&#124;')} |" for k, m in VOCABULARY.items()
    ]
    return "\n".join(lines)
