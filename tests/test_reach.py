"""How far factors reach: where y shows x as it is, they move nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

import vspair
from vspair import config as configs
from vspair.anchored import AnchoredModel
from vspair.anchors import Made
from vspair.codes import SpikeSlab
from vspair.config import AnchoredConfig, ModelConfig
from vspair.factors import leading_factors, split_variance
from vspair.networks.spatial import Domain

SHAPES: dict[Domain, tuple[int, ...]] = {"vector": (6,), "signal": (16,), "image": (8, 8)}


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=Generator().manual_seed(seed))


def model_of(domain: Domain, reach: bool = True) -> AnchoredModel:
    """Return a model whose factors reach as far as the first observed entry says."""
    made = Made("ridge", domain, 2, 1, 0, 0, 1, False, reach=reach)
    torch.manual_seed(0)
    model = AnchoredModel(
        ModelConfig(kind="anchored"), AnchoredConfig(kinds=4, width=4), made, SHAPES[domain], (2,)
    )
    model.x_normaliser.std.fill_(3.0)
    if reach:
        for parameter in model.code_reader.maps.parameters():  # type: ignore[union-attr]
            nn.init.normal_(parameter, 0, 0.5, generator=Generator().manual_seed(1))
    return model.eval()


@pytest.mark.parametrize("domain", SHAPES)
def test_samples_spread_as_far_as_factors_reach(domain: Domain) -> None:
    model, y = model_of(domain), randn(5, 2)
    post, z = model.posterior(y, noise=False), randn(5, model.n_factors, seed=2)
    assert post.reach is not None
    assert post.reach.std() > 0.01
    with torch.no_grad():
        moved = 3.0 * post.reach * (model.x_decoder(z) - model.centre(post.code))  # type: ignore[arg-type]
    torch.testing.assert_close(post.decode(z) - post.mean(), moved, rtol=1e-4, atol=1e-5)
    several = torch.stack((z, 2 * z), 1)
    torch.testing.assert_close(post.decode(several)[:, 0], post.decode(z))
    drawn = post.sample(3, generator=Generator().manual_seed(3))
    again = Generator().manual_seed(3)
    expected = torch.stack([post.decode(post.code.rsample(again)) for _ in range(3)])
    torch.testing.assert_close(drawn, expected.reshape(drawn.shape), rtol=1e-4, atol=1e-4)


def test_without_reach_nothing_is_multiplied() -> None:
    model = model_of("image", reach=False)
    assert model.code_reader.maps is None
    assert model.posterior(randn(2, 2)).reach is None
    assert bool((model.read_seen(randn(2, model.n_features, 8, 8))[1] == 1).all())


def test_factors_carry_what_they_move_within_reach() -> None:
    """Of a linear decoder, variance by entry is in closed form; an entry out of reach has none."""
    decoder, std = nn.Linear(3, 5, bias=False), torch.linspace(1, 2, 5)
    omega = torch.rand(4, 3, generator=Generator().manual_seed(4))
    code = SpikeSlab(randn(4, 3), randn(4, 3, seed=1), omega.log(), (1 - omega).log())
    reach = randn(4, 5, seed=2).abs()
    reach[:, 0] = 0
    with torch.no_grad():
        columns = (decoder.weight.T * std) * reach.unsqueeze(1)  # (B, 3, 5)
    split = split_variance(code, decoder, std, reach=reach)
    expected = (code.variance.unsqueeze(-1) * columns.square()).sum(1)
    torch.testing.assert_close(split.structural + split.parametric, expected)
    assert bool((split.total[:, 0] == 0).all())
    found = leading_factors(code, decoder, std, 3, reach=reach)
    effects = (code.variance.sqrt().unsqueeze(-1) * columns).gather(
        1, found.index.unsqueeze(-1).expand(-1, -1, 5)
    )
    torch.testing.assert_close(found.effect.abs(), effects.abs())
    mean = effects.square().mean(-1)
    torch.testing.assert_close(found.share, mean / mean.sum(1, keepdim=True))


def test_what_is_seen_is_not_doubted(tmp_path: Path) -> None:
    """A gap in y, at another place each time: factors alone cannot know where it is."""
    g = Generator().manual_seed(0)
    x = 3 + 0.1 * torch.randn(1200, 24, generator=g)
    start = torch.randint(0, 19, (1200, 1), generator=g)
    at = torch.arange(24)
    seen = (at < start) | (at >= start + 6)
    x = x + 2 * torch.randn(1200, 1, generator=g) * ~seen
    y, held, known = x * seen, slice(1000, None), {}
    for reach in (True, False):
        changes = {"anchored": {"reach": reach, "domain": "vector"}}
        model = vspair.fit(
            x[:1000], y[:1000], config=configs.override(configs.preset("anchored"), changes),
            epochs=30, progress=False, device="cpu", out=tmp_path / str(reach),
        )  # fmt: skip
        post = model.posterior(y[held], noise=False)
        std, there = post.std(50, generator=Generator().manual_seed(0)), seen[held]
        known[reach] = float(std[there].mean() / std[~there].mean())
    assert known[True] < 0.5 * known[False]
    model = vspair.load(tmp_path / "True")
    post = model.posterior(y[held])
    assert post.reach is not None
    torch.testing.assert_close(post.reach.square().mean(1), torch.ones(200))
