"""What the training loop costs beside a hand-written one, on the Gaussian model of section 4.1.

Both train the same network by the same objective (eq. 14 as printed) on the same pairs,
in turn, from fresh weights to the end, on one CPU thread, by CPU time. Each pair of trainings
gives a ratio; a busy machine spreads the ratios, so see their quartiles too. Run it with

    python benchmarks/loop.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vspair import config as configs
from vspair.fitting import fit
from vspair.problems.gaussian import GaussianProblem


def mlp(i: int, o: int, act: type[nn.Module], last: bool) -> nn.Sequential:
    """Return the hand-written version's network."""
    layers = [nn.Linear(i, 16), nn.LayerNorm(16), act(), nn.Linear(16, 16)]
    if last:
        layers += [nn.LayerNorm(16), act(), nn.Linear(16, o)]
    return nn.Sequential(*layers)


class ByHand:
    """A loop as one would write it for this one model."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.ex, self.hx = mlp(2, 16, nn.SiLU, False), nn.Linear(16, 24)
        self.ey, self.hy = mlp(4, 16, nn.SiLU, False), nn.Linear(16, 16)
        self.dx, self.dy = mlp(8, 2, nn.SiLU, True), mlp(8, 4, nn.SiLU, True)
        self.m, self.rho = mlp(16, 24, nn.ReLU, True), nn.Parameter(torch.zeros(()))
        parts = (self.ex, self.hx, self.ey, self.hy, self.dx, self.dy, self.m)
        parameters = [self.rho, *(p for part in parts for p in part.parameters())]
        self.optimiser = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return eq. (14)."""
        mu, logvar, gate = self.hx(self.ex(x)).chunk(3, -1)
        omega = torch.exp(-F.relu(-gate))
        soft = torch.sigmoid(50 * (torch.rand_like(mu) - 1 + omega))
        switch = (soft > 0.5).float() + soft - soft.detach()
        z = switch * (mu + torch.exp(0.5 * logvar) * torch.randn_like(mu))
        fit = 0.5 * (x - self.dx(z)).square().sum(-1).mean()
        off = (1 - omega).clamp(min=1e-6)
        kl = omega * 0.5 * (logvar.exp() + mu.square() - 1 - logvar)
        kl = kl + off * (off.log() - F.logsigmoid(-self.rho))
        kl = (kl + omega * (omega.log() - F.logsigmoid(self.rho))).sum(-1).mean()
        mu_y, logvar_y = self.hy(self.ey(y)).chunk(2, -1)
        z_y = mu_y + torch.exp(0.5 * logvar_y) * torch.randn_like(mu_y)
        fit_y = 0.5 * (y - self.dy(z_y)).square().sum(-1).mean()
        kl_y = 0.5 * (logvar_y.exp() + mu_y.square() - 1 - logvar_y).sum(-1).mean()
        a, b, g = self.m(torch.cat((mu_y, logvar_y), -1)).chunk(3, -1)
        mapped = torch.cat((a, b, torch.exp(-F.relu(-g))), -1)
        match = (mapped - torch.cat((mu, logvar, omega), -1)).square().sum(-1).mean()
        beta = -2 * F.logsigmoid(-self.rho)
        return fit + 0.05 * kl + 0.1 * (fit_y + kl_y) + match + beta

    def train(self, epochs: int) -> None:
        """Pass over the pairs so many times, and read the mean losses."""
        for _ in range(epochs):
            total = torch.zeros(())
            for batch in torch.randperm(len(self.x)).split(64):
                loss = self.loss(self.x[batch], self.y[batch])
                self.optimiser.zero_grad()
                loss.backward()
                self.optimiser.step()
                total += loss.detach()
            float(total)


def main() -> None:
    """Print milliseconds a step of both loops, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2, help="in each training")
    parser.add_argument("--repeats", type=int, default=25, help="trainings of each loop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = GaussianProblem.random(0).pairs(1024, 10, seed=0)
    changes = {"training": {"epochs": options.epochs}}
    config = configs.override(configs.shipped("gaussian-paper"), changes)
    times: dict[str, list[float]] = {"by hand": [], "vspair": []}
    for _ in range(options.repeats):
        start = time.process_time()
        ByHand(x, y).train(options.epochs)
        middle = time.process_time()
        fit(x, y, config=config, progress=False)
        times["by hand"].append(middle - start)
        times["vspair"].append(time.process_time() - middle)
    steps = options.epochs * len(x) / 64
    for name, seconds in times.items():
        print(f"{name:<8} {1e3 * statistics.median(seconds) / steps:.3f} ms a step")
    pairs = zip(times["vspair"], times["by hand"], strict=True)
    low, ratio, high = statistics.quantiles((a / b for a, b in pairs), n=4)
    print(f"ratio    {ratio:.3f}, quartiles {low:.3f} and {high:.3f} (at most 1.15)")


if __name__ == "__main__":
    main()
