"""Faster steps that compute the same: compiled networks, bfloat16, and steps as CUDA graphs.

The small networks of the paper leave a GPU waiting for Python. A *captured* step is recorded once
as a CUDA graph and replayed: forward, backward, Adam and the running sums, with the generator's
noise and the steered rho inside. Networks can be compiled first, and may run in bfloat16; codes,
divergences, likelihoods, weights and Adam's moments stay in float32 (see `Family.read`).

Every path is tested against the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Generator, Tensor, nn

from vspair.model import InverseModel, PairedAutoencoder

__all__ = ["Captured", "Precision", "compiled", "eagerly", "networks", "precision", "products"]

Precision = Literal["float32", "bfloat16"]


def networks(model: InverseModel) -> list[nn.Module]:
    """Return the parts of a model that are worth compiling: all without randomness."""
    if not isinstance(model, PairedAutoencoder):
        return [model.x_decoder, *(m for n, m in model.named_modules() if n == "encoder.trunk")]
    encoders = [model.x_encoder, model.y_encoder]
    trunks = [getattr(encoder, "trunk", encoder) for encoder in encoders]
    return [*trunks, model.x_decoder, model.y_decoder]


@contextmanager
def compiled(*parts: nn.Module) -> Iterator[None]:
    """Compile some networks; on leaving, every call is plain again."""
    for part in parts:
        part.compile(dynamic=False)
    try:
        yield
    finally:
        for part in parts:
            part._compiled_call_impl = None


@contextmanager
def eagerly() -> Iterator[None]:
    """Run compiled networks as they are written, for batches of other sizes."""
    with torch.compiler.set_stance("force_eager"):
        yield


def precision(device: torch.device, name: Precision) -> AbstractContextManager[object]:
    """Return a context in which networks run in the named precision."""
    if name == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16)


@contextmanager
def products(device: torch.device, name: Precision) -> Iterator[None]:
    """Let the float32 products of a whole step that bfloat16 leaves be fast as well.

    A GPU rounds their factors to TF32, which has eight times the resolution of bfloat16. On a CPU
    oneDNN multiplies, on some 1.5 times as fast as MKL; where it would round to bfloat16, on CPUs
    with AMX, nothing changes.
    """
    on_cpu = device.type == "cpu"
    if name == "float32" or (on_cpu and torch.cpu._is_amx_tile_supported()):
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if on_cpu else "high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Captured:
    """Replays a training step as a CUDA graph; one graph for each kind of step and size of batch.

    Arguments:
        step: Does one step on a batch of indices, of the kind that the other arguments say, if
            there are several; it must not wait for the device.
        size: The size of a whole batch; for others, such as an epoch's last, compiled networks
            run as they are written.
        generator: Draws the step's noise.
        state: Returns every tensor that a step changes in place.
    """

    def __init__(
        self,
        step: Callable[..., None],
        size: int,
        generator: Generator,
        state: Callable[[], list[Tensor]],
    ) -> None:
        self.step, self.size, self.generator, self.state = step, size, generator, state
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        # Matrix products captured on one stream share a workspace, and graphs that share it must
        # not run side by side: each training is captured on the stream that it runs on.
        current = torch.cuda.current_stream(generator.device)
        default = torch.cuda.default_stream(generator.device)
        self.stream = torch.cuda.Stream(generator.device) if current == default else current

    def __call__(self, batch: Tensor, *kind: Hashable) -> None:
        """Do one step."""
        key = kind, len(batch)
        if key not in self.graphs:
            self.graphs[key] = self._capture(batch, kind)
        graph, indices = self.graphs[key]
        indices.copy_(batch)
        graph.replay()

    def _capture(
        self, batch: Tensor, kind: tuple[Hashable, ...]
    ) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Record a step and where it reads its batch, leaving weights, moments and noise alone."""
        indices, noise = batch.to(self.generator.device, copy=True), self.generator.get_state()
        before = [(t, t.detach().clone()) for t in self.state()]
        way = nullcontext() if len(batch) == self.size else eagerly()
        with way:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for _ in range(3):
                    self.step(indices, *kind)
            torch.cuda.current_stream().wait_stream(self.stream)
            self._restore(before, noise)
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, stream=self.stream):
                self.step(indices, *kind)
        self._restore(before, noise)
        return graph, indices

    def _restore(self, before: list[tuple[Tensor, Tensor]], noise: Tensor) -> None:
        """Put back what was there; what came into being meanwhile starts from zero."""
        known = {id(t) for t, _ in before}
        for tensor, old in before:
            tensor.data.copy_(old)
        for tensor in self.state():
            if id(tensor) not in known:
                tensor.data.zero_()
        self.generator.set_state(noise)
