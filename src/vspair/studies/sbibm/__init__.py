"""Posterior samples against the reference posteriors of the benchmark of Lueckmann et al."""
