"""Computed tomography, section 4.3."""
