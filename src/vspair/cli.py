"""The command line. Each command is a thin shell around one Python call."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vspair.errors import VspairError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn to invert a measurement from example pairs, and say how sure the answer is and "
    "which few factors the doubt comes from.",
)
reproduce = typer.Typer(
    no_args_is_help=True, help="Make the paper's tables and figures again, beside its own numbers."
)
app.add_typer(reproduce, name="reproduce")

RunFolder = Annotated[Path, typer.Argument(help="A run folder that 'vspair fit' wrote.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")]
Samples = Annotated[int, typer.Option(min=1, help="Posterior samples for each observation.")]
Draw = Annotated[bool, typer.Option("--draw", help="Only draw the saved figures in --out again.")]
MOST = 2**31 - 1
Seed = Annotated[int, typer.Option(min=0, max=MOST, help="Fixes the samples.")]


def _say(text: str) -> None:
    typer.echo(text)


def _drew(paths: list[Path]) -> None:
    for path in paths:
        _say(f"Drew {path}.")


def _table(values: dict[str, Any]) -> None:
    width = max(map(len, values))
    for key, value in values.items():
        shown = f"{value:.5g}" if isinstance(value, float) else value
        _say(f"  {key:<{width}}  {shown}")


@contextmanager
def _stoppable(text: str, kind: type[KeyboardInterrupt] = KeyboardInterrupt) -> Iterator[None]:
    """Say what Ctrl-C leaves behind and exit with 130; typer would end without a word."""
    try:
        yield
    except kind:
        typer.echo(text, err=True)
        raise typer.Exit(130) from None


def _version(show: bool) -> None:
    if show:
        from vspair import __version__

        _say(f"vspair {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say the version and stop.", callback=_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
@_stoppable("Stopped. Nothing is kept; 'vspair demo' starts anew.")
def demo(
    out: Annotated[Path, typer.Option(help="A new folder for run, figures and page.")] = Path(
        "demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Train a small model on an embedded problem and leave a page that explains the answer.

    The problem: a heat map has blurred for a while and was measured with noise; what did it
    look like before? Needs no data, and less than two minutes on two CPU cores.
    """
    from vspair.report.demo import brief
    from vspair.studies.demo import demo as run

    _say(brief(run(out, progress=not quiet)))
    _say(f"Open {out / 'index.html'} in a browser.")


@app.command()
@_stoppable("Stopped before anything new was saved.")
def fit(
    x: Annotated[str, typer.Option(help="Unknowns: file.npy, file.npz:name or file.h5:name.")],
    y: Annotated[str, typer.Option(help="Observations, pair by pair with x.")],
    out: Annotated[Path, typer.Option(help="A new folder for the run.")],
    active: Annotated[
        int, typer.Option(help="Factors to keep open; 0 keeps all worth a price.")
    ] = 0,
    preset: Annotated[
        Literal["calibrated", "paper"] | None,
        typer.Option(help="The objective, without --config: calibrated where not given."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with every setting.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the pairs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs in a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's step size.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=MOST, help="Fixes weights, split and noise.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped run.")] = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Learn to invert from pairs (x, y) and save the model as a run folder.

    Ctrl-C saves what was reached; --resume continues to the same weights that an unbroken run
    would have given.
    """
    from vspair import config as configs
    from vspair import fitting
    from vspair.data import load_array
    from vspair.training import Interrupted

    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    with _stoppable(_how_to_resume(x, y, out, device), Interrupted):
        fitting.fit(
            load_array(x),
            load_array(y),
            active=active,
            preset=preset,
            config=None if config is None else configs.load(config),
            out=out,
            resume=resume,
            device=device,
            progress=not quiet,
            **{k: v for k, v in given.items() if v is not None},
        )
    _say(f"Saved {out}. Ask it with: vspair invert {out} Y.npy --out posterior.npz")


def _how_to_resume(x: str, y: str, out: Path, device: str) -> str:
    words = ["vspair", "fit", "--x", x, "--y", y, "--out", str(out), "--resume"]
    if device != "auto":
        words += ["--device", device]
    return f"Stopped; what was reached is saved. Continue with: {shlex.join(words)}"


@app.command()
@_stoppable("Stopped. Nothing was written.")
def invert(
    run: RunFolder,
    y: Annotated[str, typer.Argument(help="Observations to invert.")],
    out: Annotated[Path, typer.Option(help="A new .npz file for the answer.")],
    samples: Samples = 50,
    level: Annotated[float, typer.Option(help="The probability inside the interval.")] = 0.9,
    noise: Annotated[bool, typer.Option("--noise", help="Include the decoder's noise.")] = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Write mean, deviation, interval, samples and factors of x for each observation."""
    from vspair import evaluation, runs
    from vspair.data import load_array

    model = runs.load(run, device)
    answer = evaluation.invert(
        model, load_array(y), samples=samples, level=level, noise=noise, seed=seed, out=out
    )
    count = answer["mean"].size // math.prod(model.x_shape)
    _say(f"Inverted {count} observations in {float(answer['seconds']):.2f} s. Saved {out}.")


@app.command()
@_stoppable("Stopped. Nothing was written.")
def evaluate(
    run: RunFolder,
    x: Annotated[str, typer.Option(help="The true unknowns.")],
    y: Annotated[str, typer.Option(help="Their observations.")],
    samples: Samples = 50,
    seed: Seed = 0,
    out: Annotated[
        Path | None, typer.Option(help="Also save the scores, as a new JSON file.")
    ] = None,
    device: Device = "auto",
) -> None:
    """Score a run on test pairs, with the trivial floors beside it."""
    from vspair import evaluation, runs
    from vspair.data import load_array

    if out is not None:
        _expect_new(out)
    scores = evaluation.evaluate(
        runs.load(run, device), load_array(x), load_array(y), samples=samples, seed=seed
    )
    _table(scores)
    if out is not None:
        runs.write_text(out, json.dumps(scores, indent=2, allow_nan=False) + "\n")


def _expect_new(path: Path) -> None:
    """Refuse a file that exists or cannot be made, before any work is done for it."""
    if path.exists():
        raise VspairError(f"{path} exists already. Name another file or remove it.")
    if not path.parent.is_dir():
        raise VspairError(f"There is no folder {path.parent} to write {path.name} into.")


@app.command()
def info(run: RunFolder) -> None:
    """Say what a run folder holds: model, training, versions."""
    from vspair import runs

    for title, values in runs.describe(run).items():
        _say(title)
        _table(values)


@reproduce.command()
@_stoppable("Stopped. The next 'vspair reproduce' starts anew.")
def gaussian(
    out: Annotated[
        Path | None,
        typer.Option(
            help="Where to write tables and figures: results/gaussian, and with --smoke "
            "results/gaussian-smoke, where not given."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many problems and trainings.")] = 10,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 2,
    smoke: Annotated[bool, typer.Option("--smoke", help="Seconds instead of minutes.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.1: a linear Gaussian problem whose posterior is known in closed form."""
    from vspair.studies.gaussian import redraw
    from vspair.studies.gaussian import reproduce as run

    if out is None:
        out = Path("results/gaussian-smoke" if smoke else "results/gaussian")
    if draw:
        _drew(redraw(out))
        return
    _say(run(out, seeds=seeds, jobs=jobs, smoke=smoke))
    _say(f"Saved {out}.")


@reproduce.command()
@_stoppable("Stopped. The same command continues from the last checkpoints.")
def mnist(
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder of the MNIST files; VSPAIR_DATA if not given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="For tables and figures.")] = Path("results/mnist"),
    runs: Annotated[Path, typer.Option(help="Where to keep the trainings.")] = Path("runs/mnist"),
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of both vsPAIR presets.")] = 1,
    epochs: Annotated[int, typer.Option(min=0, help="Fewer than the paper's 100.")] = 0,
    test: Annotated[int, typer.Option(min=3, help="Test images; fewer suit a CPU.")] = 6000,
    minutes: Annotated[float, typer.Option(min=0, help="Stop in time; 0 does not stop.")] = 0.0,
    device: Device = "auto",
    readings: Annotated[
        bool, typer.Option("--readings", help="Compare readings of what the paper leaves open.")
    ] = False,
    perturbations: Annotated[
        bool, typer.Option("--perturbations", help="Compare perturbations of trained models.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Made digits, one epoch.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.2: blind inpainting with PAIR, vPAIR, sVAE and both presets of vsPAIR."""
    from vspair.problems.inpainting import mnist_pairs, toy_digits
    from vspair.problems.mnist import load_mnist
    from vspair.studies.mnist import NAMES, reproduce
    from vspair.studies.mnist_figures import redraw
    from vspair.studies.mnist_perturbations import compare as perturb
    from vspair.studies.mnist_readings import compare, some_tests

    if draw:
        _drew(redraw(out))
        return
    if smoke:
        data, epochs = mnist_pairs(toy_digits(96, seed=0), seed=0, train=80), 1
    else:
        data = some_tests(mnist_pairs(load_mnist(data_dir).train_images, seed=0), test)
    if perturbations:
        _say(perturb(data, out, folder=runs, device=device))
        return
    if readings:
        text = compare(data, out, folder=runs, device=device, epochs=epochs or 14, minutes=minutes)
        _say(text or "Stopped in time. The same command continues.")
        return
    counts = {name: seeds if NAMES[name][0] == "vsPAIR" else 1 for name in NAMES}
    command = f"vspair reproduce mnist --seeds {seeds}"
    command += (f" --epochs {epochs}" if epochs and not smoke else "") + " --smoke" * smoke
    command += f" --test {test}" if test < 6000 and not smoke else ""
    text = reproduce(
        data, out, folder=runs, seeds=counts, device=device, epochs=epochs, minutes=minutes,
        command=command,
    )  # fmt: skip
    _say(text or "Stopped in time. The same command continues.")


@reproduce.command()
@_stoppable("Stopped. The same command continues from the last checkpoints.")
def heat(
    out: Annotated[
        Path | None, typer.Option(help="For tables and figures: results/heat if not given.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Where to keep the trainings: runs/heat if not given.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds without noise; with noise one.")] = 3,
    epochs: Annotated[int, typer.Option(min=0, help="Fewer than the paper's 1,250.")] = 0,
    minutes: Annotated[float, typer.Option(min=0, help="Stop in time; 0 does not stop.")] = 0.0,
    device: Device = "auto",
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny networks, a few pairs.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.4: what a heat map was before, with floors that are given the equation."""
    from vspair.studies.heat import SMOKE, Scale
    from vspair.studies.heat import reproduce as run
    from vspair.studies.heat_figures import redraw

    name = "heat-smoke" if smoke else "heat"
    out, runs = out or Path("results", name), runs or Path("runs", name)
    if draw:
        _drew(redraw(out))
        return
    command = f"vspair reproduce heat --seeds {seeds}"
    command += (f" --epochs {epochs}" if epochs and not smoke else "") + " --smoke" * smoke
    scale = SMOKE if smoke else Scale(epochs=epochs)
    text = run(
        out, folder=runs, seeds=seeds, scale=scale, device=device, minutes=minutes, command=command
    )
    _say(text or "Stopped in time. The same command continues.")


def main() -> None:
    """Run the command line; a user's mistake ends in one line and status 2."""
    try:
        app()
    except (VspairError, OSError) as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
