"""Images and their mirror images: eight symmetries of a square, four of any other rectangle."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

__all__ = ["mirror", "symmetry"]


def symmetry(image: Tensor, which: int) -> Tensor:
    """Return images mirrored in one of eight ways, of which the first leaves them as they are.

    Arguments:
        image: With shape (..., H, W).
        which: From 0 to 7: left and right change places where it is odd, up and down where its
            second bit is set, rows and columns where its third is.

    Example:
        >>> symmetry(torch.tensor([[1, 2], [3, 4]]), 1).tolist()
        [[2, 1], [4, 3]]
    """
    sides = [-1] * (which & 1) + [-2] * (which >> 1 & 1)
    image = image.flip(sides) if sides else image
    return image.transpose(-1, -2) if which & 4 else image


def mirror(images: Sequence[Tensor], generator: Generator) -> list[Tensor]:
    """Return images that belong together, all mirrored in the same way, by chance.

    Arguments:
        images: Each with shape (..., H, W), the same H and W for all.
        generator: Chooses the way; rows and columns change places in squares alone.
    """
    height, width = images[0].shape[-2:]
    ways = 8 if height == width else 4
    which = torch.randint(ways, (), generator=generator, device=generator.device)
    return [symmetry(each, int(which)) for each in images]
