r"""The U-Net that the learned baselines share, and one plain loop that trains it.

Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation",
MICCAI 2015; residual blocks with a time as in Ho, Jain and Abbeel, "Denoising Diffusion
Probabilistic Models", NeurIPS 2020, and the time's scale and shift as in Dhariwal and Nichol,
"Diffusion Models Beat GANs on Image Synthesis", NeurIPS 2021.

The paper gives the widths (64, 128, 256, 512) and "about 32.3 million" parameters and leaves the
rest open. Here each width has two residual blocks on the way down and two on the way up, each of
the latter joined with what its counterpart made; two more lie at the bottom. Images are halved by
strided convolutions and doubled by repeated pixels and a convolution. There is no attention. With
the time this comes to 32,268,097 parameters, without it to 27,934,017.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from vspair.acceleration import Precision, precision
from vspair.data import fingerprint
from vspair.errors import VspairError
from vspair.networks import Grid, Upsample, exactly
from vspair.progress import Progress
from vspair.runs import (
    make_folder,
    pick_device,
    read_metrics,
    read_tensors,
    versions,
    write_tensors,
    write_text,
)

__all__ = ["WIDTHS", "Loss", "Plan", "Trainable", "UNet", "channels_of", "train"]

WIDTHS = (64, 128, 256, 512)
"""The paper's channels at each size of the image."""

_TIME_FEATURES, _TIME_WIDTH = 256, 512

Loss = Callable[[tuple[Tensor, ...], Generator], Tensor]
"""From a batch and a source of noise to a scalar."""


def _conv(i: int, o: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, kernel_size=3, stride=stride, padding=1)


def _zero(conv: nn.Conv2d) -> nn.Conv2d:
    """Return a convolution that adds nothing before it is trained."""
    for parameter in conv.parameters():
        nn.init.zeros_(parameter)
    return conv


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, channels), channels)


class _Residual(nn.Module):
    """Two convolutions beside the identity; the time scales and shifts between them."""

    def __init__(self, i: int, o: int, time: bool) -> None:
        super().__init__()
        self.first, self.second = _conv(i, o), _zero(_conv(o, o))
        self.first_norm, self.second_norm = _norm(i), _norm(o)
        self.past = nn.Conv2d(i, o, kernel_size=1) if i != o else nn.Identity()
        self.time = nn.Linear(_TIME_WIDTH, 2 * o) if time else None

    def forward(self, x: Tensor, time: Tensor | None) -> Tensor:
        h = self.second_norm(self.first(F.silu(self.first_norm(x))))
        if self.time is not None:
            scale, shift = self.time(time)[:, :, None, None].chunk(2, 1)
            h = h * (1 + scale) + shift
        return self.past(x) + self.second(F.silu(h))


class _Time(nn.Module):
    """Sines and cosines of a time in [0, 1], and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(_TIME_FEATURES, _TIME_WIDTH),
            nn.SiLU(),
            nn.Linear(_TIME_WIDTH, _TIME_WIDTH),
            nn.SiLU(),
        )

    def forward(self, t: Tensor) -> Tensor:
        half = _TIME_FEATURES // 2
        number = torch.arange(half, dtype=t.dtype, device=t.device)  # no copy, no waiting
        frequency = torch.exp(number * (-math.log(1e4) / half))
        angle = 1000 * t[:, None] * frequency
        return self.layers(torch.cat((angle.sin(), angle.cos()), 1))


class UNet(nn.Module):
    """Maps images to images of the same size, at each of several times if asked for.

    A side that the halvings do not divide is padded to the next multiple by repeating the border,
    half of it on each side, and the answer is cropped: every size works.

    Arguments:
        channels_in: The channels of the images that are read.
        channels_out: The channels of those that are returned.
        widths: The channels inside, the image halved between one and the next.
        time: Whether the answer depends on a time.

    Example:
        >>> UNet(1, 1, widths=(8, 16), time=True)(torch.zeros(3, 7, 9), torch.ones(3)).shape
        torch.Size([3, 7, 9])
    """

    def __init__(
        self,
        channels_in: int = 1,
        channels_out: int = 1,
        widths: Sequence[int] = WIDTHS,
        *,
        time: bool = False,
    ) -> None:
        super().__init__()
        if min((channels_in, channels_out, *widths), default=0) < 1 or not widths:
            raise VspairError(
                f"channels_in = {channels_in}, channels_out = {channels_out}, widths = "
                f"{tuple(widths)}: expected at least one width, and numbers above 0."
            )
        self.channels_in, self.channels_out, self.depth = (
            channels_in,
            channels_out,
            len(widths) - 1,
        )
        steps = list(pairwise(widths))

        def pair(i: int, join: int, o: int) -> nn.ModuleList:
            return nn.ModuleList((_Residual(i + join, o, time), _Residual(o + join, o, time)))

        self.time = _Time() if time else None
        self.stem = _conv(channels_in, widths[0])
        first = [pair(widths[0], 0, widths[0])]
        self.down_blocks = nn.ModuleList(first + [pair(i, 0, o) for i, o in steps])
        self.down = nn.ModuleList(_conv(i, i, stride=2) for i, _ in steps)
        self.middle = pair(widths[-1], 0, widths[-1])
        self.up = nn.ModuleList(nn.Sequential(Upsample(), _conv(o, i)) for i, o in reversed(steps))
        self.up_blocks = nn.ModuleList(pair(i, i, i) for i, _ in reversed(steps))
        self.last_norm = _norm(widths[0])
        self.last = _zero(_conv(widths[0], channels_out))

    def forward(self, x: Tensor, t: Tensor | None = None) -> Tensor:
        """Return images, with shape (B, channels_out, H, W).

        Arguments:
            x: Images, with shape (B, channels_in, H, W); with one channel in and out (B, H, W)
                will do, and is returned.
            t: Times in [0, 1], with shape (B,), where the network was made for them.
        """
        grid, answer = self._grids(x, t)
        time = None if self.time is None else self.time(t)
        h = self.stem(grid.pad(x))
        made: list[Tensor] = []
        for level, blocks in enumerate(self.down_blocks):
            h = self.down[level - 1](h) if level else h
            for block in blocks:  # type: ignore[attr-defined]
                h = block(h, time)
                made.append(h)
        del made[-2:]
        for block in self.middle:
            h = block(h, time)
        for up, blocks in zip(self.up, self.up_blocks, strict=True):
            h = up(h)
            for block in blocks:  # type: ignore[attr-defined]
                h = block(torch.cat((h, made.pop()), 1), time)
        return answer.crop(exactly(self.last, F.silu(self.last_norm(h))))

    def _grids(self, x: Tensor, t: Tensor | None) -> tuple[Grid, Grid]:
        """Return how what is read and what is returned sit on the grid that halves."""
        plain = x.ndim == 3 and self.channels_in == self.channels_out == 1
        if not plain and (x.ndim != 4 or x.shape[1] != self.channels_in):
            raise VspairError(
                f"x has shape {tuple(x.shape)}: expected images of shape (B, "
                f"{self.channels_in}, H, W)."
            )
        given = None if t is None else tuple(t.shape)
        wanted = None if self.time is None else (len(x),)
        if given != wanted:
            raise VspairError(f"t has shape {given}: this network expects {wanted}.")
        size = tuple(x.shape[-2:])
        channels = ((), ()) if plain else ((self.channels_in,), (self.channels_out,))
        return Grid((*channels[0], *size), self.depth), Grid((*channels[1], *size), self.depth)


def channels_of(shape: tuple[int, ...]) -> int:
    """Return the channels of images of shape (H, W) or (C, H, W)."""
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise VspairError(f"shape = {shape}: expected that of one image, (H, W) or (C, H, W).")
    return shape[0] if len(shape) == 3 else 1


# -- training -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """How a network is trained, with Adam.

    Arguments:
        epochs: How often each image is seen.
        batch_size: The images in a step. The paper does not give its own.
        learning_rate: Adam's step size.
        average: The decay of the exponential average of the weights that is kept in the end, as
            Song et al. do; 0 keeps the last weights. The paper does not speak of it. Step k uses
            at most (1 + k) / (10 + k), so that the average forgets where it started.
        precision: What the convolutions compute in.
        seed: Fixes the first weights, the orders and the noise.
    """

    epochs: int = 500
    batch_size: int = 32
    learning_rate: float = 1e-4
    average: float = 0.999
    precision: Precision = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, good, wish in (
            ("epochs", self.epochs >= 1, "1 or more"),
            ("batch_size", self.batch_size >= 1, "1 or more"),
            ("learning_rate", self.learning_rate > 0, "a number above 0"),
            ("average", 0 <= self.average < 1, "a number from 0 to below 1"),
            ("seed", 0 <= self.seed < 2**32, "a number from 0 to below 2^32"),
        ):
            if not good:
                raise VspairError(f"{name} = {getattr(self, name)}: expected {wish}.")


class Trainable(nn.Module):
    """A model that its folder can make again: weights, and the settings of its constructor.

    Arguments:
        settings: What the constructor was called with, as JSON can hold it.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings = json.loads(json.dumps(settings))
        self.epochs = 0  # that it has been trained for

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> Self:
        """Return the trained model of a folder.

        Arguments:
            folder: Where it was trained into.
            device: Where to put it: ``cpu``, ``cuda``, or ``auto``.
        """
        path = Path(folder) / "weights.safetensors"
        tensors, header = read_tensors(path)
        if header.get("model") != cls.__name__:
            raise VspairError(f"{path} holds a {header.get('model')}: expected a {cls.__name__}.")
        with torch.random.fork_rng(devices=[]):
            model = cls(**header["settings"])
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise VspairError(f"{path} does not fit its own settings: {error}") from None
        model.epochs = header["epoch"]
        return model.to(pick_device(device)).eval()


class _Training:
    """A training between two epochs: a folder holds all that is needed to go on."""

    def __init__(
        self,
        model: Trainable,
        loss: Loss,
        data: tuple[Tensor, ...],
        plan: Plan,
        folder: Path | None,
    ) -> None:
        self.model, self.loss, self.plan, self.folder = model, loss, plan, folder
        self.parameters: list[Tensor] = list(model.parameters())
        self.device = self.parameters[0].device
        if self.device.type == "cuda":
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.header = {
            "model": type(model).__name__,
            "settings": model.settings,
            "plan": {k: v for k, v in asdict(plan).items() if k != "epochs"},
            "data": fingerprint(data[0].cpu(), data[-1].cpu()),
        }
        self.data = tuple(t.to(self.device) for t in data)
        self.optimiser = torch.optim.Adam(self.parameters, lr=plan.learning_rate, fused=True)
        self.average = [p.detach().clone() for p in self.parameters]
        self.rows: list[dict[str, Any]] = []
        self.steps = math.ceil(len(data[0]) / plan.batch_size)

    def epoch(self) -> dict[str, Any]:
        """See each image once."""
        number = len(self.rows)
        seed = (self.plan.seed << 24) + number
        generator = Generator(self.device).manual_seed(seed)
        order = torch.randperm(len(self.data[0]), generator=Generator().manual_seed(seed))
        total = torch.zeros((), device=self.device)
        for i, batch in enumerate(order.to(self.device).split(self.plan.batch_size)):
            with precision(self.device, self.plan.precision):
                loss = self.loss(tuple(t[batch] for t in self.data), generator)
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            total += loss.detach() * len(batch)
            self._follow(number * self.steps + i)
        mean = float(total) / len(order)
        if not math.isfinite(mean):
            raise VspairError(
                f"The loss is {mean} in epoch {number + 1}: training has diverged. Lower the "
                "learning rate. The last checkpoint is older."
            )
        return {"epoch": number + 1, "loss": mean}

    @torch.no_grad()
    def _follow(self, k: int) -> None:
        """Move the average towards the weights of step k."""
        decay = min(self.plan.average, (1 + k) / (10 + k)) if self.plan.average else 0.0
        torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @torch.no_grad()
    def held(self, held: tuple[Tensor, ...]) -> float:
        """Return the loss of held-out data, with the same noise each time."""
        generator = Generator(self.device).manual_seed(self.plan.seed)
        parts = zip(*(t.to(self.device).split(self.plan.batch_size) for t in held), strict=True)
        return sum(float(self.loss(p, generator)) * len(p[0]) for p in parts) / len(held[0])

    def save(self) -> None:
        if self.folder is None:
            return
        tensors: dict[str, Tensor] = {}
        for i, (p, mean) in enumerate(zip(self.parameters, self.average, strict=True)):
            tensors |= {f"weight.{i}": p, f"average.{i}": mean}
            tensors |= {f"adam.{i}.{k}": v for k, v in self.optimiser.state[p].items()}
        header = self.header | {"epoch": len(self.rows)}
        write_tensors(self.folder / "checkpoint.safetensors", tensors, header)

    def resume(self) -> None:
        """Go on from the folder's checkpoint, where it has one."""
        path = (self.folder or Path()) / "checkpoint.safetensors"
        if self.folder is None or not path.exists():
            return
        tensors, header = read_tensors(path)
        other = [k for k, v in self.header.items() if header.get(k) != v]
        if other or header["epoch"] > self.plan.epochs:
            raise VspairError(
                f"{self.folder} holds another training: {', '.join(other) or 'epochs'} differ. "
                "Name another folder, or remove it."
            )
        state = {}
        for i, (p, mean) in enumerate(zip(self.parameters, self.average, strict=True)):
            p.data.copy_(tensors[f"weight.{i}"])
            mean.copy_(tensors[f"average.{i}"])
            state[i] = {"step": tensors[f"adam.{i}.step"]}
            for k in ("exp_avg", "exp_avg_sq"):
                # The optimiser reads weights and moments side by side, in one memory format.
                state[i][k] = torch.empty_like(p, device="cpu").copy_(tensors[f"adam.{i}.{k}"])
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": state})
        self.rows = read_metrics(self.folder / "metrics.jsonl")[: header["epoch"]]
        if len(self.rows) != header["epoch"]:
            raise VspairError(f"{self.folder} lacks lines of metrics.jsonl: train anew.")

    def finish(self) -> None:
        """Leave the average in the model, and write it."""
        self.save()
        self.model.epochs = len(self.rows)
        for mean, parameter in zip(self.average, self.parameters, strict=True):
            parameter.data.copy_(mean)
        self.model.eval().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        if self.folder is not None:
            header = self.header | {"epoch": len(self.rows)}
            write_tensors(self.folder / "weights.safetensors", self.model.state_dict(), header)
            write_text(self.folder / "versions.json", json.dumps(versions(), indent=2) + "\n")


def train(
    model: Trainable,
    loss: Loss,
    data: tuple[Tensor, ...],
    plan: Plan,
    *,
    folder: str | Path | None = None,
    held: tuple[Tensor, ...] | None = None,
    checkpoint_seconds: float = 300.0,
    deadline: float | None = None,
    show: bool = False,
) -> list[dict[str, Any]]:
    """Train a model, leave its averaged weights in it, and return one dictionary an epoch.

    Called again with a folder that it was stopped in, it goes on to the same bits on a CPU; with
    one that it finished in, it reads the weights.

    Arguments:
        model: The model, on the device to train on.
        loss: What to lessen.
        data: Tensors with the same first dimension N, of which batches are given to the loss.
        plan: Epochs, batches, step size, averaging and seed.
        folder: Where to write weights, metrics and checkpoints; nothing is written without it.
        held: Tensors as in data, whose loss is logged as ``held``.
        checkpoint_seconds: How long to train between two checkpoints, at least.
        deadline: Save and stop before an epoch that would likely end after this time of
            ``time.monotonic``; one is trained in any case.
        show: Whether to show a progress bar.
    """
    if not data or len({len(t) for t in data}) != 1 or not len(data[0]):
        raise VspairError(
            f"data has lengths {[len(t) for t in data]}: expected the same for each, above 0."
        )
    path = None if folder is None else Path(folder)
    if path is not None:
        make_folder(path)
    training = _Training(model.train(), loss, data, plan, path)
    training.resume()
    saved = time.monotonic()
    start = saved - (training.rows[-1]["seconds"] if training.rows else 0)
    with Progress(plan.epochs, show) as bar:
        while len(training.rows) < plan.epochs:
            began, row = time.monotonic(), training.epoch()
            row |= {} if held is None else {"held": training.held(held)}
            now = time.monotonic()
            training.rows.append(row | {"seconds": round(now - start, 3)})
            bar.advance(row["epoch"], row)
            if path is not None:
                lines = "".join(json.dumps(r) + "\n" for r in training.rows)
                write_text(path / "metrics.jsonl", lines)
            if now - saved >= checkpoint_seconds:
                training.save()
                saved = now
            if deadline is not None and time.monotonic() + now - began > deadline:
                break
    training.finish()
    return training.rows
