"""The command line. Each command is a thin shell around one Python call."""

from __future__ import annotations

import json
import math
import sys
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


def _say(text: str) -> None:
    typer.echo(text)


def _table(values: dict[str, Any]) -> None:
    width = max(map(len, values))
    for key, value in values.items():
        shown = f"{value:.5g}" if isinstance(value, float) else value
        _say(f"  {key:<{width}}  {shown}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="A new folder for run, figures and page.")] = Path(
        "demo"
    ),
    quiet: Quiet = False,
) -> None:
    """Train a small model on an embedded problem and leave a page that explains the answer.

    The problem: a heat map has blurred for a while and was measured with noise; what did it
    look like before? Needs no data, and about two minutes on two CPU cores.
    """
    from vspair.studies.demo import demo as run

    _table(run(out, progress=not quiet))
    _say(f"Open {out / 'index.html'} in a browser.")


@app.command()
def fit(
    x: Annotated[str, typer.Option(help="Unknowns: file.npy, file.npz:name or file.h5:name.")],
    y: Annotated[str, typer.Option(help="Observations, pair by pair with x.")],
    out: Annotated[Path, typer.Option(help="A new folder for the run.")],
    active: Annotated[int, typer.Option(help="Factors to keep open; 0 lets them decide.")] = 0,
    preset: Annotated[
        Literal["calibrated", "paper"], typer.Option(help="The objective, without --config.")
    ] = "calibrated",
    config: Annotated[Path | None, typer.Option(help="A TOML file with every setting.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the pairs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Pairs in a step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's step size.")] = None,
    seed: Annotated[int | None, typer.Option(help="Fixes weights, split and noise.")] = None,
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

    given = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
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


@app.command()
def invert(
    run: RunFolder,
    y: Annotated[str, typer.Argument(help="Observations to invert.")],
    out: Annotated[Path, typer.Option(help="A new .npz file for the answer.")],
    samples: Annotated[int, typer.Option(help="Posterior samples for each observation.")] = 50,
    level: Annotated[float, typer.Option(help="The probability inside the interval.")] = 0.9,
    noise: Annotated[bool, typer.Option("--noise", help="Include the decoder's noise.")] = False,
    seed: Annotated[int, typer.Option(help="Fixes the samples.")] = 0,
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
def evaluate(
    run: RunFolder,
    x: Annotated[str, typer.Option(help="The true unknowns.")],
    y: Annotated[str, typer.Option(help="Their observations.")],
    samples: Annotated[int, typer.Option(help="Posterior samples for each observation.")] = 50,
    seed: Annotated[int, typer.Option(help="Fixes the samples.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also save the scores as JSON.")] = None,
    device: Device = "auto",
) -> None:
    """Score a run on test pairs, with the trivial floors beside it."""
    from vspair import evaluation, runs
    from vspair.data import load_array

    scores = evaluation.evaluate(
        runs.load(run, device), load_array(x), load_array(y), samples=samples, seed=seed
    )
    _table(scores)
    if out is not None:
        runs.write_text(out, json.dumps(scores, indent=2) + "\n")


@app.command()
def info(run: RunFolder) -> None:
    """Say what a run folder holds: model, training, versions."""
    from vspair import runs

    for title, values in runs.describe(run).items():
        _say(title)
        _table(values)


@reproduce.command()
def gaussian(
    out: Annotated[Path, typer.Option(help="Where to write tables and figures.")] = Path(
        "results/gaussian"
    ),
    seeds: Annotated[int, typer.Option(help="How many problems and trainings.")] = 10,
    jobs: Annotated[int, typer.Option(help="Trainings at a time.")] = 2,
    smoke: Annotated[bool, typer.Option("--smoke", help="Seconds instead of minutes.")] = False,
) -> None:
    """Section 4.1: a linear Gaussian problem whose posterior is known in closed form."""
    from vspair.studies.gaussian import reproduce as run

    _say(run(out, seeds=seeds, jobs=jobs, smoke=smoke))
    _say(f"Saved {out}.")


def main() -> None:
    """Run the command line; a user's mistake ends in one line and status 2."""
    try:
        app()
    except VspairError as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("Stopped. Continue a training with --resume.", err=True)
        sys.exit(130)
