"""Networks with places: sizes, weights, and what is zero."""

import pytest
import torch
from torch import nn

from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.config import AnchoredConfig, ModelConfig
from vspair.networks.spatial import (
    Domain,
    Frame,
    PlaceDecoder,
    PlaceEncoder,
    Reader,
    _to_depth,
    _to_space,
)

FRAMES = [
    Frame((6,), "vector"),
    Frame((4, 5), "vector"),
    Frame((50,), "signal"),
    Frame((7, 7), "image"),
    Frame((28, 28), "image"),
    Frame((33, 18), "image"),
    Frame((3, 9, 7), "image"),
    Frame((2, 3), "image"),
]
frames = pytest.mark.parametrize("frame", FRAMES, ids=lambda f: f"{f.domain}-{f.shape}")


def _weights(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("shape", "domain", "size", "channels", "places"),
    [
        ((6,), "vector", (), 6, ()),
        ((50,), "signal", (50,), 1, (13,)),
        ((28, 28), "image", (28, 28), 1, (7, 7)),
        ((3, 33, 7), "image", (33, 7), 3, (9, 2)),
    ],
)
def test_how_data_lie_on_the_grid(
    shape: tuple[int, ...],
    domain: Domain,
    size: tuple[int, ...],
    channels: int,
    places: tuple[int, ...],
) -> None:
    frame = Frame(shape, domain)
    assert (frame.size, frame.channels, frame.places) == (size, channels, places)
    assert frame.maps(torch.zeros(2, *shape)).shape == (2, channels, *size)
    assert frame.maps(torch.zeros(2, 5, *shape)).shape == (2, 5 * channels, *size)


def test_padding_continues_the_border_and_is_cut_off_again() -> None:
    frame = Frame((7, 9), "image")
    maps = torch.randn(2, 3, 7, 9)
    padded = frame.pad(maps)
    assert padded.shape == (2, 3, 8, 12)
    assert torch.equal(padded[:, :, 7, :9], maps[:, :, 6])
    assert torch.equal(padded[:, :, :7, 9:], maps[:, :, :, 8:].expand(-1, -1, -1, 3))
    assert torch.equal(frame.crop(padded), maps)
    whole = torch.randn(2, 3, 8, 12)
    assert torch.equal(Frame((8, 12), "image").pad(whole), whole)


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 6, 10)], ids=str)
def test_depth_and_space_are_each_other_s_inverse(shape: tuple[int, ...]) -> None:
    maps = torch.randn(shape)
    deep = _to_depth(maps)
    sides = len(shape) - 2
    assert deep.shape == (2, 3 * 2**sides, *(n // 2 for n in shape[2:]))
    assert torch.equal(_to_space(deep), maps)
    # Neighbours become channels of one place: nothing is mixed between places.
    corner = maps[..., :2] if sides == 1 else maps[..., :2, :2]
    first = deep[..., 0] if sides == 1 else deep[..., 0, 0]
    assert torch.equal(first.flatten().sort().values, corner.flatten().sort().values)


@frames
def test_every_size_is_read_and_decoded(frame: Frame) -> None:
    kinds, seen = 5, 2 * frame.channels
    features = torch.randn(3, seen, *frame.size)
    maps, numbers = Reader(frame, seen, maps=1, numbers=7, width=8)(features)
    assert maps.shape == (3, frame.channels, *frame.size)
    assert numbers.shape == (3, 7, *frame.places)
    assert not maps.any()  # before anything is trained
    assert numbers.std() > 0
    assert PlaceEncoder(frame, seen, 7, width=8)(features).shape == (3, 7, *frame.places)
    decoder = PlaceDecoder(frame, kinds, width=8)
    z = torch.randn(3, kinds * torch.Size(frame.places).numel())
    assert decoder(z).shape == (3, *frame.shape)
    assert decoder(z).std() > 0


@frames
def test_without_factors_nothing_is_decoded(frame: Frame) -> None:
    decoder = PlaceDecoder(frame, 5, width=8)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter)
    size = 5 * torch.Size(frame.places).numel()
    nothing, something = (decoder(torch.full((2, size), v)).abs().max() for v in (0.0, 1.0))
    assert decoder._plain(torch.zeros(2, size)).abs().max() > 0.01 * something
    assert nothing < 1e-5 * something  # but for rounding


def test_only_what_is_asked_for_is_returned() -> None:
    for frame in (Frame((6,), "vector"), Frame((8, 8), "image")):
        features = torch.randn(2, 3, *frame.size)
        assert Reader(frame, 3, maps=1, width=4)(features)[1] is None
        assert Reader(frame, 3, numbers=2, width=4)(features)[0] is None


def test_the_number_of_weights_does_not_grow_with_the_image() -> None:
    def counts(frame: Frame) -> list[int]:
        made = (
            Reader(frame, 4, maps=1, numbers=6),
            PlaceEncoder(frame, 4, 6),
            PlaceDecoder(frame, 16),
        )
        return [_weights(module) for module in made]

    assert counts(Frame((7, 7), "image")) == counts(Frame((128, 96), "image"))
    assert counts(Frame((50,), "signal")) == counts(Frame((999,), "signal"))


def test_a_factor_moves_only_what_is_near_its_place() -> None:
    frame, kinds = Frame((64, 64), "image"), 2
    decoder = PlaceDecoder(frame, kinds, width=4)
    z = torch.zeros(1, kinds, 16, 16)
    z[0, 1, 3, 10] = 2.0
    moved = decoder(z.flatten(1))[0].abs() > 1e-6
    rows, columns = moved.nonzero().unbind(1)
    assert moved[14, 42]
    for found, middle in ((rows, 14), (columns, 42)):
        assert int((found - middle).abs().max()) <= 18


def test_factors_are_named_by_kind_and_middle() -> None:
    def model(shape: tuple[int, ...], domain: Domain) -> AnchoredModel:
        made = Made("ridge", domain, 2, 1, 0, 0, 1, False)
        return AnchoredModel(
            ModelConfig(kind="anchored"), AnchoredConfig(kinds=3), made, shape, (2,)
        )

    image = model((9, 14), "image")
    assert image.n_factors == 3 * 3 * 4
    assert image.factor_name(0) == "kind 0 at (2, 2)"
    assert image.factor_name(12 + 4 + 3) == "kind 1 at (6, 13)"  # of 14 columns
    assert image.factor_name(35) == "kind 2 at (8, 13)"
    assert model((50,), "signal").factor_name(13 + 1) == "kind 1 at (6)"
    assert model((4,), "vector").factor_name(2) == "factor 2"
    # The name is of what the decoder reads at this place.
    z = torch.zeros(1, 36)
    z[0, 19] = 1.0
    assert z.unflatten(1, (3, 3, 4))[0, 1, 1, 3] == 1
