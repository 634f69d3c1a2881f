"""Inverse problems: pairs, and the exact answer or a floor to compare with."""
