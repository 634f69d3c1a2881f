"""The heat equation, section 4.4."""
