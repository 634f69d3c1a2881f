"""The paper's networks: printed sizes, any shape, and gradients everywhere."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vspair.codes import Factorised, Family
from vspair.config import ModelConfig
from vspair.model import InverseModel, PairedAutoencoder, build
from vspair.networks import Decoder, Encoder, Grid, LatentMap, NetworkConfig, Upsample

Shape = tuple[int, ...]

CONV = NetworkConfig("conv", width=16, depth=2)
MNIST = ModelConfig(x_network=CONV, y_network=CONV)
GAUSSIAN = ModelConfig("vsPAIR", x_size=8, y_size=8)
PAIR = replace(MNIST, kind="PAIR", x_size=32, y_size=32)
VPAIR = replace(MNIST, kind="vPAIR", x_size=32, y_size=32)
SVAE = replace(MNIST, kind="sVAE", x_size=784)
VSPAIR = replace(MNIST, kind="vsPAIR", x_size=784, y_size=32)
HEAT_NETWORK = NetworkConfig("conv", width=16, depth=1)
HEAT = ModelConfig("vsPAIR", 512, 512, HEAT_NETWORK, HEAT_NETWORK)
CT_NETWORK = NetworkConfig("conv", width=16, depth=3)
CT = ModelConfig("vsPAIR", 4096, 1024, CT_NETWORK, CT_NETWORK)


def meta(config: ModelConfig, x_shape: Shape, y_shape: Shape) -> InverseModel:
    with torch.device("meta"):
        return build(config, x_shape, y_shape)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


# -- printed sizes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "x_shape", "y_shape", "parameters", "buffers"),
    [
        pytest.param(GAUSSIAN, (2,), (4,), 3_495, 0, id="Gaussian"),
        pytest.param(PAIR, (28, 28), (28, 28), 687_042, None, id="MNIST-PAIR"),
        pytest.param(VPAIR, (28, 28), (28, 28), 899_490, None, id="MNIST-vPAIR"),
        pytest.param(SVAE, (28, 28), (28, 28), 9_979_106, None, id="MNIST-sVAE"),
        pytest.param(VSPAIR, (28, 28), (28, 28), 13_067_043, None, id="MNIST-vsPAIR"),
        pytest.param(HEAT, (16, 16), (16, 16), 11_080_675, 11_081_065 - 11_080_675, id="heat"),
        pytest.param(CT, (88, 88), (248, 128), 549_706_083, 549_708_789 - 549_706_083, id="CT"),
    ],
)
def test_printed_parameter_counts(
    config: ModelConfig, x_shape: Shape, y_shape: Shape, parameters: int, buffers: int | None
) -> None:
    model = meta(config, x_shape, y_shape)
    assert model.n_parameters == count(model) == parameters
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    if buffers is not None:
        assert sum(b.numel() for m in norms for b in m.buffers()) == buffers


@pytest.mark.parametrize(
    ("config", "parameters"), [(PAIR, 1_056), (VPAIR, 12_736), (VSPAIR, 2_644_560)]
)
def test_printed_map_sizes(config: ModelConfig, parameters: int) -> None:
    model = meta(config, (28, 28), (28, 28))
    assert isinstance(model, PairedAutoencoder)
    assert count(model.inverse_map) == parameters


def test_conv_layers_are_those_of_the_table() -> None:
    model = meta(VSPAIR, (28, 28), (28, 28))
    assert isinstance(model, PairedAutoencoder)
    sizes = [
        [(m.in_channels, m.out_channels, m.bias is not None) for m in part.modules()
         if isinstance(m, nn.Conv2d)]
        for part in (model.x_encoder, model.x_decoder)
    ]  # fmt: skip
    blocks = [(16, 32, False), (32, 32, False), (32, 64, False), (64, 64, False)]
    assert sizes[0] == [(1, 16, True), *blocks]
    blocks = [(64, 64, False), (64, 32, False), (32, 32, False), (32, 16, False)]
    assert sizes[1] == [*blocks, (16, 1, True)]
    assert model.x_encoder.head.in_features == 3_136


@pytest.mark.parametrize(
    ("config", "shape", "encoder", "decoder"),
    [
        (HEAT, (16, 16), "Conv2d Conv2d BatchNorm2d SiLU Conv2d BatchNorm2d AvgPool2d Linear",
         "Linear Upsample Conv2d BatchNorm2d SiLU Conv2d Conv2d"),
        (GAUSSIAN, (2,), "Linear LayerNorm SiLU Linear Linear",
         "Linear LayerNorm SiLU Linear LayerNorm SiLU Linear"),
    ],
    ids=["conv", "mlp"],
)  # fmt: skip
def test_layers_come_in_the_printed_order(
    config: ModelConfig, shape: Shape, encoder: str, decoder: str
) -> None:
    model = meta(config, shape, shape)
    assert isinstance(model, PairedAutoencoder)

    def layers(module: nn.Module) -> str:
        return " ".join(type(m).__name__ for m in module.modules() if not list(m.children()))

    assert layers(model.x_encoder) == layers(model.y_encoder) == encoder
    assert layers(model.x_decoder) == layers(model.y_decoder) == decoder
    assert layers(model.inverse_map) == "Linear LayerNorm ReLU Linear LayerNorm ReLU Linear"


def test_a_linear_map_is_linear() -> None:
    family = Family("point", 4)
    layer = LatentMap(family, family, depth=0).double()
    a, b = torch.randn(2, 3, 4, dtype=torch.float64).unbind()

    def at(z: Tensor) -> Tensor:
        return layer(family.read(z)).mean

    torch.testing.assert_close(at(a + b) + at(torch.zeros_like(a)), at(a) + at(b))


# -- any shape --------------------------------------------------------------------------------

SHAPES = [
    ((28, 28), "auto", 3),
    ((16, 24), "auto", 3),
    ((17, 30), "auto", 2),
    ((3, 9, 11), "auto", 2),
    ((2, 8, 8), "auto", 1),
    ((1, 1), "auto", 1),
    ((1, 5), "auto", 3),
    ((5, 4), "mlp", 2),
    ((7,), "auto", 1),
    ((1,), "mlp", 3),
]
shapes = pytest.mark.parametrize(("shape", "kind", "depth"), SHAPES)


def networks(shape: Shape, kind: str, depth: int) -> tuple[Encoder, Decoder]:
    config = NetworkConfig(kind, width=4, depth=depth)  # type: ignore[arg-type]
    pair = Encoder(shape, Family("spikeslab", 3), config), Decoder(3, shape, config)
    for network in pair:
        network.double().train()(torch.randn(4, *(shape if network is pair[0] else (3,))).double())
        network.eval()  # with running statistics that are not 0 and 1
    return pair


def assert_reached(module: nn.Module) -> None:
    missed = [k for k, p in module.named_parameters() if p.grad is None or not p.grad.any()]
    assert not missed


@shapes
def test_every_pixel_matters(shape: Shape, kind: str, depth: int) -> None:
    encoder, _ = networks(shape, kind, depth)
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    code: Factorised = encoder(x)
    assert code.mean.shape == (2, 3)
    (code.features * torch.randn_like(code.features)).sum().backward()
    assert x.grad is not None
    assert (x.grad != 0).all()
    assert_reached(encoder)


@shapes
def test_decoder_returns_the_exact_shape(shape: Shape, kind: str, depth: int) -> None:
    _, decoder = networks(shape, kind, depth)
    z = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    x = decoder(z)
    assert x.shape == (2, *shape)
    (x * torch.randn_like(x)).sum().backward()
    assert z.grad is not None
    assert (z.grad != 0).all()
    assert_reached(decoder)
    assert (decoder(z + 0.1) != x).all()  # every pixel comes from the code


@shapes
def test_evaluation_treats_each_item_alone(shape: Shape, kind: str, depth: int) -> None:
    encoder, decoder = networks(shape, kind, depth)
    x, z = torch.randn(5, *shape).double(), torch.randn(5, 3).double()
    with torch.no_grad():
        whole, alone = encoder(x).features, encoder(x[2:3]).features
        torch.testing.assert_close(alone, whole[2:3])
        torch.testing.assert_close(decoder(z[2:3]), decoder(z)[2:3])
        assert torch.equal(encoder(x).features, whole)
        assert torch.equal(decoder(z), decoder(z))


@pytest.mark.parametrize(("shape", "_kind", "depth"), [s for s in SHAPES if len(s[0]) > 1])
def test_padding_is_the_least_there_is(shape: Shape, _kind: str, depth: int) -> None:
    grid = Grid(shape, depth)
    left, right, top, bottom = grid.padding
    for side, before, after in ((shape[-2], top, bottom), (shape[-1], left, right)):
        assert 0 <= after - before <= 1
        assert before + after == -side % 2**depth
    x = torch.randn(2, *shape)
    padded = grid.pad(x)
    assert padded.shape[1] == math.prod(shape[:-2])
    assert torch.equal(grid.crop(padded), x)
    assert torch.equal(padded[:, :, 0, 0], x.reshape(2, -1, *shape[-2:])[:, :, 0, 0])


def test_upsample_is_that_of_torch() -> None:
    ours = torch.randn(2, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    a, b = Upsample()(ours), nn.Upsample(scale_factor=2, mode="nearest")(theirs)
    assert torch.equal(a, b)
    weights = torch.randn_like(a)
    (a * weights).sum().backward()
    (b * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
