"""Blind inpainting on MNIST, section 4.2 and appendix D.2.

Start with :mod:`.study`: its models, the paper's values, the two stages and the tables. What is
measured of an answer is in :mod:`.measures`, what figures show of it in :mod:`.drawing`. What the
paper leaves open was tried in :mod:`.conventions`, a sweep of the same study.
"""
