"""Data sets that studies read, and slices that are made where there are none."""
