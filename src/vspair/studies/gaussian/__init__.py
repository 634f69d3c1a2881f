"""The Gaussian problem, section 4.1."""
