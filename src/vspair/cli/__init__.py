"""The command line. Each command is a thin shell around one Python call."""

from __future__ import annotations

import json
import math
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from vspair.anchored_fit import MINUTES
from vspair.cli.shared import Device, say, stoppable
from vspair.cli.studies import reproduce
from vspair.errors import VspairError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Learn to invert a measurement from example pairs, and say how sure the answer is and "
    "which few factors the doubt comes from.",
)
app.add_typer(reproduce, name="reproduce")

RunFolder = Annotated[Path, typer.Argument(help="A run folder that 'vspair fit' wrote.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress bar.")]
Samples = Annotated[int, typer.Option(min=1, help="Posterior samples for each observation.")]
FirstGuesses = Annotated[
    str | None, typer.Option(help="First guesses of x, if the run was trained with them.")
]
MOST = 2**31 - 1
Seed = Annotated[int, typer.Option(min=0, max=MOST, help="Fixes the samples.")]


def _table(values: dict[str, Any]) -> None:
    width = max(map(len, values))
    for key, value in values.items():
        shown = f"{value:.5g}" if isinstance(value, float) else value
        say(f"  {key:<{width}}  {shown}")


def _version(show: bool) -> None:
    if show:
        from vspair import __version__

        say(f"vspair {__version__}")
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
@stoppable("Stopped. Nothing is kept; 'vspair demo' starts anew.")
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
    from vspair.studies.demo.drawing import brief
    from vspair.studies.demo.study import demo as run

    say(brief(run(out, progress=not quiet)))
    say(f"Open {out / 'index.html'} in a browser.")


@app.command()
@stoppable("Stopped before anything new was saved.")
def fit(
    x: Annotated[str, typer.Option(help="Unknowns: file.npy, file.npz:name or file.h5:name.")],
    y: Annotated[str, typer.Option(help="Observations, pair by pair with x.")],
    out: Annotated[Path, typer.Option(help="A new folder for the run.")],
    active: Annotated[int, typer.Option(help="Factors in an answer; 0 chooses.")] = 0,
    anchor: Annotated[
        Literal["auto", "none", "ridge", "network"],
        typer.Option(
            help="What answers: ridge regression, networks that correct it, whichever is better "
            "(auto), or no anchor, so that factors draw x."
        ),
    ] = "auto",
    first: Annotated[
        str | None, typer.Option(help="First guesses of x, such as filtered back-projections.")
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="Which pairs belong together, such as patients: labels.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help=f"How long to train on two cores, about: {MINUTES:g}.")
    ] = None,
    preset: Annotated[
        Literal["anchored", "calibrated", "paper"] | None,
        typer.Option(help="The model, without --config: anchored where not given."),
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
    """Learn to invert from pairs (x, y), save the model as a run folder, and say what it is worth.

    Ctrl-C saves what was reached; --resume continues to the same weights that an unbroken run
    would have given.
    """
    from vspair import config as configs
    from vspair import fitting
    from vspair.anchored import AnchoredModel
    from vspair.data import load_array
    from vspair.training.interrupts import Interrupted
    from vspair.verdict import Verdict

    given: dict[str, Any] = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "seed": seed,
    }
    beside = {"--first": first, "--groups": groups}
    with stoppable(_how_to_resume(x, y, out, device, beside), Interrupted):
        model = fitting.fit(
            load_array(x),
            load_array(y),
            groups=None if groups is None else load_array(groups),
            anchor=anchor,
            first=None if first is None else load_array(first),
            minutes=minutes,
            active=active,
            preset=preset,
            config=None if config is None else configs.load(config),
            out=out,
            resume=resume,
            device=device,
            progress=not quiet,
            **{k: v for k, v in given.items() if v is not None},
        )
    if quiet and isinstance(model, AnchoredModel) and isinstance(model.verdict, Verdict):
        say("\n".join(model.verdict.lines))
    guesses = "" if first is None else " --first FIRST.npy"
    say(f"Saved {out}. Ask it with: vspair invert {out} Y.npy{guesses} --out posterior.npz")


def _how_to_resume(x: str, y: str, out: Path, device: str, beside: dict[str, str | None]) -> str:
    words = ["vspair", "fit", "--x", x, "--y", y, "--out", str(out), "--resume"]
    for name, value in beside.items():
        words += [] if value is None else [name, value]
    if device != "auto":
        words += ["--device", device]
    return f"Stopped; what was reached is saved. Continue with: {shlex.join(words)}"


@app.command()
@stoppable("Stopped. Nothing was written.")
def invert(
    run: RunFolder,
    y: Annotated[str, typer.Argument(help="Observations to invert.")],
    out: Annotated[Path, typer.Option(help="A new .npz file for the answer.")],
    samples: Samples = 50,
    level: Annotated[float, typer.Option(help="The probability inside the interval.")] = 0.9,
    noise: Annotated[
        bool | None,
        typer.Option(
            "--noise/--no-noise", help="Whether samples include the decoder's noise, or grain."
        ),
    ] = None,
    first: FirstGuesses = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Write mean, deviation, interval, samples and factors of x for each observation."""
    from vspair import evaluation, runs
    from vspair.data import load_array

    model = runs.load(run, device)
    answer = evaluation.invert(
        model, load_array(y), samples=samples, level=level, noise=noise, seed=seed, out=out,
        first=None if first is None else load_array(first),
    )  # fmt: skip
    count = answer["mean"].size // math.prod(model.x_shape)
    say(f"Inverted {count} observations in {float(answer['seconds']):.2f} s. Saved {out}.")


@app.command()
@stoppable("Stopped. Nothing was written.")
def evaluate(
    run: RunFolder,
    x: Annotated[str, typer.Option(help="The true unknowns.")],
    y: Annotated[str, typer.Option(help="Their observations.")],
    first: FirstGuesses = None,
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
        runs.load(run, device), load_array(x), load_array(y), samples=samples, seed=seed,
        first=None if first is None else load_array(first),
    )  # fmt: skip
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
@stoppable("Stopped. What is finished is kept; the same command continues.")
def sweep(
    x: Annotated[str, typer.Option(help="Unknowns: file.npy, file.npz:name or file.h5:name.")],
    y: Annotated[str, typer.Option(help="Observations, pair by pair with x.")],
    out: Annotated[Path, typer.Option(help="The sweep's folder; commands on one share its work.")],
    axes: Annotated[
        list[str],
        typer.Option("--set", help="KEY=1,2,16; in a search also KEY=1e-4..1e-2:log. Repeat it."),
    ],
    preset: Annotated[
        str | None,
        typer.Option(help="calibrated if not given, paper, or a shipped configuration."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with every setting.")] = None,
    search: Annotated[bool, typer.Option("--search", help="Let optuna choose points.")] = False,
    trials: Annotated[int | None, typer.Option(min=1, help="Points of a search: 40.")] = None,
    metric: Annotated[str, typer.Option(help="The score to look for the least of.")] = "mse_mean",
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each point.")] = 1,
    epochs: Annotated[int, typer.Option(min=0, help="Passes over the pairs; 0 as set.")] = 0,
    held_out: Annotated[float, typer.Option(help="The share of pairs to score on.")] = 0.2,
    samples: Samples = 50,
    storage: Annotated[
        str, typer.Option(help="URL of optuna's database, for several machines.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each.")] = 1,
    device: Device = "auto",
) -> None:
    """Train a grid or a search of settings, and write a table and a figure of held-out scores."""
    import torch

    from vspair import config as configs
    from vspair import sweeps
    from vspair.data import load_array

    if preset and config:
        raise VspairError(f"--preset {preset} beside --config {config}: leave out one of them.")
    if trials and not search:
        raise VspairError(
            f"--trials {trials} without --search: a grid trains all its points. Leave out "
            "--trials, or add --search."
        )
    base = configs.load(config) if config else preset or "calibrated"
    plan = sweeps.Sweep(
        out, tuple(map(sweeps.Axis.parse, axes)), base, epochs, seeds,
        (trials or 40) * search, metric, held_out, samples, storage,
    )  # fmt: skip
    command = shlex.join(["vspair", *sys.argv[1:]])
    if storage:  # it may hold a password
        command = command.replace(storage, "URL")
    torch.set_num_threads(threads)
    options: dict[str, Any] = {"jobs": jobs, "threads": threads, "device": device}
    say(sweeps.run(plan, load_array(x), load_array(y), command=command, say=say, **options))


@app.command()
def info(run: RunFolder) -> None:
    """Say what a run folder holds: model, training, versions."""
    from vspair import runs

    for title, values in runs.describe(run).items():
        say(title)
        _table(values)


def main() -> None:
    """Run the command line; a user's mistake ends in one line and status 2."""
    try:
        app()
    except (VspairError, OSError) as error:
        typer.secho(f"Error: {error}", fg=typer.colors.RED, err=True)
        sys.exit(2)
