"""The commands that make the paper's studies again: ``vspair reproduce``."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vspair.cli.shared import Device, say, stoppable
from vspair.errors import VspairError

if TYPE_CHECKING:
    from vspair.studies.study import Study

__all__ = ["reproduce"]

reproduce = typer.Typer(
    no_args_is_help=True, help="Make the paper's tables and figures again, beside its own numbers."
)

Draw = Annotated[bool, typer.Option("--draw", help="Only draw the saved figures in --out again.")]
Minutes = Annotated[float, typer.Option(min=0, help="Stop in time; 0 does not stop.")]
Compile = Annotated[bool, typer.Option("--compile", help="Faster steps on a GPU.")]
Slices = Annotated[
    Path | None, typer.Option(help="Of real slices; VSPAIR_DATA, or phantoms, if not given.")
]
Results = Annotated[
    Path | None,
    typer.Option(
        help="For tables and figures: results/STUDY if not given; results/STUDY-part for less "
        "than the whole study, of CT results/STUDY-phantoms without real slices, and with --half "
        "results/ct-quarter or results/ct-sweeps-half."
    ),
]
Runs = Annotated[
    Path | None, typer.Option(help="Where to keep the trainings: below runs/, if not given.")
]


def results_and_runs(name: str, out: Path | None, runs: Path | None) -> tuple[Path, Path]:
    """Return the folders of a study's results and trainings, by its name where not given."""
    return out or Path("results", name), runs or Path("runs", name)


def run_study(
    study: Study[Any, Any],
    scale: Any,
    name: str,
    out: Path | None,
    runs: Path | None,
    draw: bool,
    **options: Any,
) -> None:
    """Run a study, or draw its saved figures again, and say what came of it.

    Arguments:
        study: The study.
        scale: How much to do.
        name: What its folders are called where none are given, so that no smaller run replaces
            the results of a whole one.
        out: The folder of the results.
        runs: The folder of the trainings.
        draw: Whether only to draw.
        options: Further arguments of :meth:`Study.reproduce`.
    """
    out, runs = results_and_runs(name, out, runs)
    if draw:
        for path in study.redraw(out):
            say(f"Drew {path}.")
        return
    text = study.reproduce(scale, out=out, folder=runs, **options)
    say(text or "Stopped in time. The same command continues.")


def refuse_scale_beside_smoke(smoke: bool, given: dict[str, Any], plain: Any) -> None:
    """Refuse a scale beside ``--smoke``, which has its own."""
    changed = [f"--{k.replace('_', '-')}" for k, v in given.items() if v != getattr(plain, k)]
    if smoke and changed:
        raise VspairError(f"--smoke has a scale of its own: leave out {', '.join(changed)}.")


def ct_name(name: str, real: bool, smoke: bool, part: bool = False) -> str:
    """Return what the folders of a CT study are called, so that none replaces a whole study's."""
    if smoke:
        return f"{name}-smoke" + "-real" * real
    return name + "-phantoms" * (not real) + "-part" * part


def of_real_slices(data_dir: Path | None, runs: Path | None, only: str) -> bool:
    """Return whether a CT study is of real slices; of a report, its records know it best."""
    if only == "report" and runs is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):  # the report says what is damaged
            return not json.loads((runs / "records.json").read_bytes())["data"]["phantoms"]
    return data_dir is not None or bool(os.environ.get("VSPAIR_DATA"))


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def gaussian(
    out: Results = None,
    runs: Runs = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many problems and trainings: 10.")
    ] = None,
    only: Annotated[
        str, typer.Option(help="Some of models,conventions,theorem,report with commas between.")
    ] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 2,
    minutes: Minutes = 0.0,
    smoke: Annotated[bool, typer.Option("--smoke", help="Seconds instead of minutes.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.1: a linear Gaussian problem whose posterior is known in closed form."""
    from vspair.studies.gaussian.study import SMOKE, STUDY, Scale

    scale = SMOKE if smoke else Scale()
    scale = scale if seeds is None else replace(scale, seeds=seeds)
    how: dict[str, Any] = {"only": only, "jobs": jobs, "minutes": minutes, "device": "cpu"}
    run_study(STUDY, scale, "gaussian" + "-smoke" * smoke, out, runs, draw, show=True, **how)


Digits = Annotated[
    Path | None, typer.Option(help="The folder of the MNIST files; VSPAIR_DATA if not given.")
]


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def mnist(
    data_dir: Digits = None,
    out: Results = None,
    runs: Runs = None,
    only: Annotated[str, typer.Option(help="Some of train,answers,anchored,report.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of vsPAIR (paper) and (anchored).")] = 1,
    epochs: Annotated[int, typer.Option(min=0, help="Fewer than the paper's 100.")] = 0,
    test: Annotated[int, typer.Option(min=3, help="Test images; fewer suit a CPU.")] = 6000,
    unit: Annotated[bool, typer.Option("--unit", help="Pixels on [0, 1], not [-1, 1].")] = False,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    smoke: Annotated[bool, typer.Option("--smoke", help="Made digits, tiny networks.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.2: blind inpainting with PAIR, vPAIR, sVAE and all presets of vsPAIR."""
    from vspair.studies.mnist.study import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"epochs": epochs, "seeds": seeds, "test": test}
    refuse_scale_beside_smoke(smoke, given, Scale())
    scale = replace(SMOKE, unit=unit) if smoke else Scale(**given, unit=unit)
    part = not smoke and (epochs > 0 or test < 6000)
    name = "mnist" + "-unit" * unit + "-smoke" * smoke + "-part" * part
    how: dict[str, Any] = {"device": device, "minutes": minutes, "fast": True, "show": True}
    run_study(STUDY, scale, name, out, runs, draw, data_dir=data_dir, only=only, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def mnist_conventions(
    data_dir: Digits = None,
    out: Results = None,
    runs: Runs = None,
    only: Annotated[str, typer.Option(help="Some of train,answers,report.")] = "",
    name: Annotated[
        list[str] | None, typer.Option(help="A convention; more than once for more; all if none.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Of each training.")] = 14,
    unit: Annotated[bool, typer.Option("--unit", help="Pixels on [0, 1], not [-1, 1].")] = False,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    smoke: Annotated[bool, typer.Option("--smoke", help="Made digits, tiny networks.")] = False,
) -> None:
    """Section 4.2: what the paper leaves open, tried, to see what gives its tables."""
    from vspair.studies.mnist.conventions import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"epochs": epochs}
    refuse_scale_beside_smoke(smoke, given, Scale())
    scale = replace(SMOKE if smoke else Scale(**given), unit=unit)
    scale = replace(scale, names=tuple(name)) if name else scale
    folder = "mnist-conventions" + "-unit" * unit + "-smoke" * smoke
    how: dict[str, Any] = {"device": device, "minutes": minutes, "fast": True, "show": True}
    run_study(STUDY, scale, folder, out, runs, False, data_dir=data_dir, only=only, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def heat(
    out: Results = None,
    runs: Runs = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds without noise; with noise one.")] = 3,
    only: Annotated[
        str, typer.Option(help="Some of train,answers,anchored,report with commas between them.")
    ] = "",
    preset: Annotated[
        Literal["", "paper", "calibrated"], typer.Option(help="One preset alone, without noise.")
    ] = "",
    epochs: Annotated[int, typer.Option(min=0, help="Fewer than the paper's 1,250.")] = 0,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    fast: Annotated[bool, typer.Option("--fast", help="Networks in bfloat16.")] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny networks, a few pairs.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.4: what a heat map was before, with floors that are given the equation."""
    from vspair.studies.heat.study import SMOKE, STUDY, Scale

    refuse_scale_beside_smoke(smoke, {"epochs": epochs}, Scale())
    scale = replace(SMOKE if smoke else Scale(epochs=epochs), seeds=seeds, preset=preset)
    scale = replace(scale, precision="bfloat16" if fast else "float32")
    part = not smoke and (epochs > 0 or bool(preset))
    name = "heat" + "-smoke" * smoke + "-part" * part
    how: dict[str, Any] = {"only": only, "minutes": minutes, "device": device, "show": True}
    run_study(STUDY, scale, name, out, runs, draw, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def ct(
    data_dir: Slices = None,
    out: Results = None,
    runs: Runs = None,
    only: Annotated[
        str,
        typer.Option(
            help="Some of paper,calibrated,regression,prior,answers,dps,simple,anchored,"
            "anchored_fbp,ridge,fbp_unet,seconds,report with commas between them."
        ),
    ] = "",
    epochs: Annotated[int, typer.Option(min=0, help="Of vsPAIR; 0 as configured.")] = 0,
    regression_epochs: Annotated[int, typer.Option(min=1, help="Of the regression.")] = 100,
    prior_epochs: Annotated[int, typer.Option(min=1, help="Of DPS's prior.")] = 500,
    copies: Annotated[
        int, typer.Option(min=1, help="How often slices are there, moved; paper's once.")
    ] = 8,
    dps_images: Annotated[int, typer.Option(min=1, help="Test slices for DPS.")] = 16,
    zeta: Annotated[float, typer.Option(min=0, help="DPS's step size.")] = 0.1,
    half: Annotated[
        bool, typer.Option("--half", help="Half the resolution and a quarter of the angles.")
    ] = False,
    anchored_minutes: Annotated[
        float | None, typer.Option(min=0, help="Of fit's trainings: 60, with --half 15.")
    ] = None,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    compile: Compile = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny networks, a few slices.")] = False,
    draw: Draw = False,
) -> None:
    """Section 4.3: computed tomography, with every baseline on the same sinograms."""
    from vspair.studies.ct.study import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"epochs": epochs, "prior_epochs": prior_epochs, "copies": copies}
    given |= {"regression_epochs": regression_epochs, "dps_images": dps_images, "zeta": zeta}
    refuse_scale_beside_smoke(smoke, given, Scale())
    real = (draw and not smoke) or of_real_slices(data_dir, runs, only)
    name = ct_name("ct" + "-quarter" * half, real, smoke, epochs > 0)
    scale = SMOKE if smoke else Scale(**given, anchored_minutes=15.0 if half else 60.0)
    scale = replace(scale, half=half)
    if anchored_minutes is not None:
        scale = replace(scale, anchored_minutes=anchored_minutes)
    how: dict[str, Any] = {"data_dir": data_dir, "only": only, "device": device, "show": True}
    how |= {"minutes": minutes, "compile": compile}
    run_study(STUDY, scale, name, out, runs, draw, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues from the last checkpoints.")
def ct_sweeps(
    data_dir: Slices = None,
    out: Results = None,
    runs: Runs = None,
    only: Annotated[
        str, typer.Option(help="Some of simple,prior,gamma,report with commas between them.")
    ] = "",
    epochs: Annotated[
        int, typer.Option(min=0, help="Of each training; 0 for the paper's 500.")
    ] = 0,
    half: Annotated[bool, typer.Option("--half", help="Half the resolution, faster.")] = False,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    compile: Compile = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="Tiny networks, a few slices.")] = False,
    draw: Draw = False,
) -> None:
    """Appendix B: what alpha0, beta0 and gamma_x do to computed tomography."""
    from vspair.studies.ct.data import SMOKE, Scale
    from vspair.studies.ct_sweeps.study import PAPER_EPOCHS, STUDY

    refuse_scale_beside_smoke(smoke, {"epochs": epochs}, Scale())
    real = (draw and not smoke) or of_real_slices(data_dir, runs, only)
    part = epochs not in (0, PAPER_EPOCHS)
    name = ct_name("ct-sweeps" + "-half" * half, real, smoke, part)
    scale = replace(SMOKE, half=half) if smoke else Scale(epochs=epochs, copies=1, half=half)
    how: dict[str, Any] = {"data_dir": data_dir, "only": only, "device": device, "show": True}
    how |= {"minutes": minutes, "compile": compile}
    run_study(STUDY, scale, name, out, runs, draw, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues after the last answer that was kept.")
def own(
    out: Results = None,
    runs: Runs = None,
    sets: Annotated[
        str, typer.Option(help="Some sets with commas between them; all if not given.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each set.")] = 3,
    only: Annotated[str, typer.Option(help="Some of answers,report.")] = "",
    jobs: Annotated[
        int, typer.Option(min=1, help="Cases at a time, each on a core of its own.")
    ] = 2,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few made pairs; needs no package.")
    ] = False,
    draw: Draw = False,
) -> None:
    """Real pairs that Python packages carry: the defaults beside simple methods."""
    from vspair.studies.own.study import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"sets": sets, "seeds": seeds}
    refuse_scale_beside_smoke(smoke, given, Scale())
    scale = SMOKE if smoke else Scale(**given)
    name = "own" + "-smoke" * smoke + "-part" * bool(sets)
    how: dict[str, Any] = {"only": only, "jobs": jobs, "minutes": minutes, "device": device}
    run_study(STUDY, scale, name, out, runs, draw, show=True, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues after the last answer that was kept.")
def problems(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="The folder of MNIST and the slices; VSPAIR_DATA if not given."),
    ] = None,
    out: Results = None,
    runs: Runs = None,
    sets: Annotated[
        str, typer.Option(help="Some problems with commas between them; all if not given.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each problem.")] = 1,
    only: Annotated[str, typer.Option(help="Some of answers,report.")] = "",
    jobs: Annotated[
        int, typer.Option(min=1, help="Cases at a time, each on a core of its own.")
    ] = 2,
    minutes: Minutes = 0.0,
    device: Device = "auto",
    smoke: Annotated[
        bool, typer.Option("--smoke", help="One problem for a second; needs no data.")
    ] = False,
    draw: Draw = False,
) -> None:
    """The paper's problems by the defaults of fit, beside simple methods."""
    from vspair.studies.problems.study import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"sets": sets, "seeds": seeds}
    refuse_scale_beside_smoke(smoke, given, Scale())
    scale = SMOKE if smoke else Scale(**given)
    name = "problems" + "-smoke" * smoke + "-part" * bool(sets)
    how: dict[str, Any] = {"only": only, "jobs": jobs, "minutes": minutes, "device": device}
    run_study(STUDY, scale, name, out, runs, draw, data_dir=data_dir, show=True, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues after the last answer that was kept.")
def ablations(
    out: Results = None,
    runs: Runs = None,
    sets: Annotated[
        str, typer.Option(help="Sets of own pairs with commas between them; four if not given.")
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each set.")] = 3,
    minutes_each: Annotated[
        float, typer.Option(help="Of a training of the full model, on two cores, about.")
    ] = 1.0,
    only: Annotated[str, typer.Option(help="Some of answers,report.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time.")] = 2,
    minutes: Minutes = 0.0,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="A few made pairs; needs no package.")
    ] = False,
    draw: Draw = False,
) -> None:
    """What each part of the anchored model is worth: each off in turn, on real pairs."""
    from vspair.studies.ablations.study import SMOKE, STUDY, Scale

    given: dict[str, Any] = {"seeds": seeds, "minutes_each": minutes_each}
    given |= {"sets": sets} if sets else {}
    refuse_scale_beside_smoke(smoke, given, Scale())
    scale = SMOKE if smoke else Scale(**given)
    name = "ablations" + "-smoke" * smoke + "-part" * (not smoke and scale.is_part)
    how: dict[str, Any] = {"only": only, "jobs": jobs, "minutes": minutes, "device": "cpu"}
    run_study(STUDY, scale, name, out, runs, draw, show=True, **how)


@reproduce.command()
@stoppable("Stopped. The same command continues with what is not done yet.")
def sbibm(
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="The wheel of sbibm, or its folder; VSPAIR_DATA, or made observations, if not "
            "given."
        ),
    ] = None,
    out: Results = None,
    runs: Runs = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="How many sets of pairs and trainings: 3.")
    ] = None,
    task: Annotated[
        str, typer.Option(help="One of two_moons,gaussian_mixture,linear_uniform,slcp alone.")
    ] = "",
    only: Annotated[
        str, typer.Option(help="Some of train,answers,report with commas between them.")
    ] = "",
    methods: Annotated[
        str,
        typer.Option(
            help="Some of anchored,flow,npe with commas between them; anchored,flow, and npe "
            "where sbi is installed, if not given."
        ),
    ] = "",
    inside: Annotated[
        bool, typer.Option("--inside", help="Draw anew what leaves the prior's box, as sbi does.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(min=1, help="Cases at a time, each on a core of its own.")
    ] = 2,
    minutes: Minutes = 0.0,
    device: Annotated[
        str, typer.Option(help="Where samples are compared; trainings are on the CPU.")
    ] = "cpu",
    smoke: Annotated[bool, typer.Option("--smoke", help="Few pairs, brief trainings.")] = False,
    draw: Draw = False,
) -> None:
    """Beyond the paper: samples against reference posteriors of simulation-based inference."""
    from vspair.studies.sbibm.study import SMOKE, STUDY, Scale

    scale = replace(SMOKE if smoke else Scale(), task=task, inside=inside)
    scale = scale if seeds is None else replace(scale, seeds=seeds)
    scale = replace(scale, methods=methods) if methods else scale
    read = (draw and not smoke) or data_dir is not None or bool(os.environ.get("VSPAIR_DATA"))
    name = "sbibm" + "-made" * (not read) + "-inside" * inside + "-smoke" * smoke
    name += f"-{task}" * bool(task) + "-part" * bool(methods)
    how: dict[str, Any] = {"only": only, "jobs": jobs, "minutes": minutes, "device": device}
    run_study(STUDY, scale, name, out, runs, draw, data_dir=data_dir, show=True, **how)
