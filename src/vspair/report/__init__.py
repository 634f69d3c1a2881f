"""Figures and self-contained HTML pages from numbers that others have computed."""
