"""Frozen configurations and their strict reading from TOML.

A run is described by one :class:`Config` of four sections. Keys that do not exist, values of
the wrong type and numbers out of range are errors that name the nearest right one.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from vspair.codes import GateName
from vspair.errors import VspairError
from vspair.networks import NetworkConfig

__all__ = [
    "AnchoredConfig",
    "Config",
    "ModelConfig",
    "ObjectiveConfig",
    "TrainingConfig",
    "from_dict",
    "load",
    "override",
    "preset",
    "shipped",
    "to_toml",
]

ModelName = Literal["PAIR", "vPAIR", "sVAE", "vsPAIR", "anchored"]
PresetName = Literal["anchored", "calibrated", "paper"]
Normalisation = Literal["auto", "none", "scalar", "feature"]
C = TypeVar("C")


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how large.

    Arguments:
        kind: The model: PAIR, vPAIR, sVAE, vsPAIR, or ``anchored``, which has sizes of its own in
            :class:`AnchoredConfig`.
        x_size: The number of latent dimensions of the unknown.
        y_size: The number of latent dimensions of the observation (unused by sVAE).
        x_network: The encoder and decoder of the unknown.
        y_network: The encoder and decoder of the observation.
        map_hidden: The latent map's hidden width; 0 stands for x_size + y_size.
        map_depth: The latent map's hidden layers; PAIR's map is linear whatever stands here.
        forward_map: Whether to learn a surrogate forward map from x codes to y codes too.
        gate: How gate probabilities are read: ``sigmoid`` or the paper's ``exponential``.
        temperature: The steepness c of the relaxed gate.
        logvar_range: The bounds that log-variances are clamped to.
        normalise: How x and y are scaled before the networks see them: by one mean and
            deviation (``scalar``), by one for each entry (``feature``), not at all (``none``);
            ``auto`` is ``feature`` for vectors and ``scalar`` for images.
    """

    kind: ModelName = "vsPAIR"
    x_size: int = 64
    y_size: int = 32
    x_network: NetworkConfig = field(default_factory=NetworkConfig)
    y_network: NetworkConfig = field(default_factory=NetworkConfig)
    map_hidden: int = 0
    map_depth: int = 2
    forward_map: bool = False
    gate: GateName = "sigmoid"
    temperature: float = 50.0
    logvar_range: tuple[float, float] = (-12.0, 4.0)
    normalise: Normalisation = "auto"


@dataclass(frozen=True)
class ObjectiveConfig:
    """The weights of the loss, eq. (14), and the conventions that the paper leaves open.

    Arguments:
        lambda_x: Weight of the x ELBO (the paper's lambda_1).
        lambda_y: Weight of the y ELBO (lambda_2).
        lambda_map: Weight of the latent map's loss (lambda_3).
        lambda_forward: Weight of the surrogate forward map's loss.
        lambda_rho: Weight of the Beta prior on rho.
        lambda_binary: Weight of the penalty on undecided gates (lambda_b).
        alpha0: First parameter of the Beta prior on rho.
        beta0: Second parameter of the Beta prior on rho.
        gamma_x: Weight of the KL to the prior inside the x ELBO.
        gamma_y: Weight of the KL to the prior inside the y ELBO.
        half: Whether squared errors carry the factor 1/2 of eq. (5).
        map: What the map is fitted by: the code's ``parameters``, ``samples``, ``kl``, or the
            ``decoded`` error in x.
        sigma: The form of sigma that ``parameters`` compares.
        target: Whether the map's loss also moves the x encoder (``joint``) or not.
        reduction: Whether ``parameters`` and ``samples`` add or average over dimensions.
        gate_prior: What an open gate costs beside the map's KL: its ``kl`` to the prior, or
            only the ``price`` log((1 - rho) / rho) of being open.
        rho: How rho is set: by ``gradient`` or its ``closed`` form (with ``kl``); ``fixed`` by
            the price, or moved by ``dual`` ascent until ``active`` factors are open.
        active: The number of open factors that dual ascent steers to; 0 where unused.
        dual_rate: The largest change of the log-price in one step of dual ascent; 0 lets it
            move by 20 over the whole training.
        price: The price of an open gate in nats, ``fixed`` or at the start of dual ascent.
        width: The decoder's standard deviation s: fixed at ``unit``, ``learned`` by gradient,
            ``annealed`` from width_start to width_end, or ``closed``: the root of the mean
            squared error, which maximises the bound, followed step by step.
        width_start: The width at the first step.
        width_end: The width at the end of annealing.
        anneal: The share of the training after which annealing ends.
    """

    lambda_x: float = 1.0
    lambda_y: float = 1.0
    lambda_map: float = 1.0
    lambda_forward: float = 1.0
    lambda_rho: float = 1.0
    lambda_binary: float = 0.0
    alpha0: float = 1.0
    beta0: float = 1.0
    gamma_x: float = 1.0
    gamma_y: float = 1.0
    half: bool = True
    map: Literal["parameters", "samples", "kl", "decoded"] = "parameters"
    sigma: Literal["logvar", "sigma", "variance"] = "logvar"
    target: Literal["joint", "detached"] = "joint"
    reduction: Literal["sum", "mean"] = "sum"
    gate_prior: Literal["kl", "price"] = "kl"
    rho: Literal["gradient", "closed", "fixed", "dual"] = "gradient"
    active: int = 0
    dual_rate: float = 0.0
    price: float = 0.02
    width: Literal["unit", "learned", "annealed", "closed"] = "unit"
    width_start: float = 1.0
    width_end: float = 0.1
    anneal: float = 0.6


@dataclass(frozen=True)
class TrainingConfig:
    """How the model is trained.

    Arguments:
        epochs: Passes over the training pairs, both stages together; of the anchored model, those
            of each stage, which ``fit`` plans where nobody has named them.
        batch_size: Pairs in a step.
        learning_rate: Adam's step size.
        schedule: Whether the step size stays ``constant`` or decays as a ``cosine``.
        seed: Fixes initial weights, split, order and noise.
        stages: ``joint`` training, or ``two-stage``: first the autoencoders, then the map.
        first_stage: The share of the epochs for the autoencoders in two-stage training; 0
            trains the map alone.
        validation: The share of the pairs that is held out.
        keep: Whether the run's weights are the ``best`` on the held-out pairs or the ``last``.
        validate_every: Epochs from one look at the held-out pairs to the next.
        patience: Stop after this many such looks without improvement; 0 never stops early.
        clip: The largest norm of the gradient; 0 leaves it alone.
        weight_decay: AdamW's decay of the weights; 0 is plain Adam.
        augment: ``shift`` moves each pair of images around by a random number of pixels in every
            step, which suits periodic problems that treat every place alike.
        norms: The averages of batch norm in evaluation: those kept while ``training``, or
            measured anew at the end along the path of an ``answer`` (see
            :mod:`vspair.training.batch_norms`).
        checkpoint_seconds: The least time between two checkpoints.
        capture: Whether to replay steps as CUDA graphs, on a GPU.
        compile: Whether to compile the networks: a minute at the start, faster steps after.
        precision: ``float32``, or ``bfloat16`` inside the networks.
    """

    epochs: int = 100
    batch_size: int = 64
    learning_rate: float = 1e-3
    schedule: Literal["constant", "cosine"] = "constant"
    seed: int = 0
    stages: Literal["joint", "two-stage"] = "joint"
    first_stage: float = 0.6
    validation: float = 0.1
    keep: Literal["best", "last"] = "last"
    validate_every: int = 1
    patience: int = 0
    clip: float = 0.0
    weight_decay: float = 0.0
    augment: Literal["none", "shift"] = "none"
    norms: Literal["training", "answer"] = "training"
    checkpoint_seconds: float = 10.0
    capture: bool = False
    compile: bool = False
    precision: Literal["float32", "bfloat16"] = "float32"


@dataclass(frozen=True)
class AnchoredConfig:
    """The anchored model and its stages (see :mod:`vspair.anchored`).

    Arguments:
        anchor: What answers: ``none``, ``ridge``, a ``network`` behind it, or what is best on
            pairs out of fold and held out (``auto``).
        domain: Whether x is a ``vector``, a ``signal`` or an ``image``; ``auto`` tells by its
            shape, and signals by how neighbours agree.
        folds: How many parts of the pairs are answered by what was fitted to the others; 0 chooses
            5, or 3 where that leaves networks too little time.
        width: The channels of the networks that read y.
        kinds: The kinds of factors at each place; of vectors, all factors. ``fit`` plans it where
            nobody has named it.
        modes: How many weighted codes a y has; 0 chooses 24 for vectors of 16 entries or fewer, 8
            for others and 1 elsewhere.
        active: How many factors answers have on average; 0 chooses by the knee of what they
            explain of residuals, or takes one for each entry of a vector that has few.
        beta: The weight of the KL on the side of the residual's code; 0 chooses 1 where every
            factor is in every answer, as in vectors of few entries, and 0.5 elsewhere.
        reach: Whether how much factors move each entry is read of y, or is the same for all y.
        grain: Whether the width of the grain is ``predicted`` for each entry or ``constant``.
        grain_loss: What a predicted grain is learned by: the fair ``crps`` of two draws, or the
            Gaussian ``likelihood`` of what the residual's own code leaves, ruled by outliers.
        spatial: Whether factors have places; dense codes for images where not.
        out_of_fold: Whether code and grain learn from residuals of pairs that their anchor has
            not seen. Only to show what happens where not.
        budget: Whether the number of factors is solved for in each batch.
        mirrors: Whether images may be mirrored in training, where that lessens the error on the
            first fold; with many pairs it is not tried.
        code_epochs: Passes of the code's training over the pairs; 0 for those of all stages.
    """

    anchor: Literal["auto", "none", "ridge", "network"] = "auto"
    domain: Literal["auto", "vector", "signal", "image"] = "auto"
    folds: int = 0
    width: int = 32
    kinds: int = 16
    modes: int = 0
    active: int = 0
    beta: float = 0.0
    grain: Literal["predicted", "constant"] = "predicted"
    reach: bool = True
    grain_loss: Literal["crps", "likelihood"] = "crps"
    spatial: bool = True
    out_of_fold: bool = True
    budget: bool = True
    mirrors: bool = True
    code_epochs: int = 0


@dataclass(frozen=True)
class Config:
    """All that describes a run beside its data.

    It remembers which keys a file or :func:`override` has set: what ``fit`` plans by the pairs, it
    plans only where nobody has named it.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    anchored: AnchoredConfig = field(default_factory=AnchoredConfig)

    @property
    def named(self) -> frozenset[str]:
        """The dotted keys that were set on top of a preset, such as ``training.epochs``."""
        return self.__dict__.get("_named", frozenset())

    def names(self, key: str) -> bool:
        """Return whether a key was set: by its name, or to something else than its default."""
        section, _, name = key.partition(".")
        usual = getattr(getattr(Config(), section), name)
        return key in self.named or getattr(getattr(self, section), name) != usual


_POSITIVE = {
    "x_size", "y_size", "depth", "width", "temperature", "epochs", "batch_size", "learning_rate",
    "alpha0", "beta0", "price", "width_start", "width_end", "validate_every", "kinds",
}  # fmt: skip
_SHARE = {"validation", "first_stage", "anneal"}


def _check_range(key: str, value: Any) -> None:
    name = key.rpartition(".")[2]
    if name == "logvar_range" and not -math.inf < value[0] < value[1] < math.inf:
        raise VspairError(f"{key} = {list(value)}: expected a lower and an upper bound.")
    if isinstance(value, tuple):
        return
    if isinstance(value, float) and math.isinf(value):
        raise VspairError(f"{key} = {value}: expected a finite number.")
    if isinstance(value, bool | str):
        return
    if name == "seed" and not 0 <= value < 2**32:
        raise VspairError(f"{key} = {value}: expected a whole number from 0 to 2^32 - 1.")
    if name in _POSITIVE and not value > 0:
        raise VspairError(f"{key} = {value}: expected a number above 0.")
    if name in _SHARE and not 0 <= value < 1:
        raise VspairError(f"{key} = {value}: expected a share in [0, 1).")
    if not value >= 0:
        raise VspairError(f"{key} = {value}: expected 0 or more.")


def _convert(value: Any, hint: Any, key: str) -> Any:
    """Return the value as the annotated type, or raise an error that names the key."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type[Any], hint), value, prefix=f"{key}.")
    if origin is Literal:
        if value in args:
            return value
        names = {str(a).lower(): a for a in args}
        near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.4)
        hint_text = f" Did you mean {names[near[0]]!r}?" if near else ""
        raise VspairError(f"{key} = {value!r}: expected one of {', '.join(args)}.{hint_text}")
    if origin is tuple:
        kinds = (
            args[:1] * len(value) if args[-1] is Ellipsis and hasattr(value, "__len__") else args
        )
        if isinstance(value, list | tuple) and len(value) == len(kinds):
            return tuple(_convert(v, a, key) for v, a in zip(value, kinds, strict=True))
        raise VspairError(f"{key} = {value!r}: expected a list of numbers.")
    if hint in (int, float) and isinstance(value, np.generic):
        value = value.item()
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise VspairError(f"{key} = {value!r}: expected {hint.__name__}, got {type(value).__name__}.")


def from_dict(cls: type[C], values: Any, prefix: str = "") -> C:
    """Create a configuration from nested dictionaries, refusing what it does not know."""
    if not isinstance(values, Mapping):
        raise VspairError(f"{prefix.rstrip('.')} = {values!r}: expected a section of keys.")
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1, cutoff=0.0)[0]
            raise VspairError(f"Unknown key {prefix}{name}. Did you mean {prefix}{near}?")
        arguments[name] = _convert(value, hints[name], prefix + name)
        if not dataclasses.is_dataclass(arguments[name]):
            _check_range(prefix + name, arguments[name])
    return cls(**arguments)


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        nested = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if nested else value  # type: ignore[arg-type]
    return merged


def override(config: Config, changes: Mapping[str, Any]) -> Config:
    """Return the configuration with nested changes, checked as strictly as a file.

    Example:
        >>> changed = override(Config(), {"training": {"epochs": 3}})
        >>> changed.training.epochs, sorted(changed.named)
        (3, ['training.epochs'])
    """
    changed = from_dict(Config, _merge(dataclasses.asdict(config), changes))
    # No field: it describes no run, is not written with one, and tells no two of them apart.
    object.__setattr__(changed, "_named", config.named | _keys(changes))
    return changed


def _keys(changes: Mapping[str, Any], prefix: str = "") -> frozenset[str]:
    """Return the dotted keys of nested changes."""
    found = frozenset[str]()
    for key, value in changes.items():
        nested = isinstance(value, Mapping)
        found |= _keys(value, f"{prefix}{key}.") if nested else {prefix + key}
    return found


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_scalar, value)) + "]"
    return repr(value)


def to_toml(values: Mapping[str, Any], prefix: str = "") -> str:
    """Write nested dictionaries of scalars and lists as TOML."""
    lines = [f"{k} = {_scalar(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for key, section in values.items():
        if isinstance(section, Mapping):
            lines += ["", f"[{prefix}{key}]", to_toml(section, f"{prefix}{key}.").strip("\n")]
    return "\n".join(lines).lstrip("\n") + "\n"


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file, with an error that names the file and the line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VspairError(f"There is no file {path} to read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise VspairError(f"{path} is not valid TOML: {error}.") from None


def load(path: str | Path) -> Config:
    """Read a configuration file; it may name a ``preset`` to start from.

    Keys that the file leaves out keep the preset's value, ``calibrated`` where none is named;
    passes and kinds of the anchored model are planned by ``fit`` then.
    """
    values = read_toml(Path(path))
    name = values.pop("preset", "calibrated")
    try:
        return override(preset(name), values)
    except VspairError as error:
        raise VspairError(f"{path}: {error}") from None


def shipped(name: str) -> Config:
    """Return a configuration that comes with the package, such as ``gaussian-paper``."""
    files = (resources.files("vspair") / "configs").iterdir()
    names = sorted(file.name.removesuffix(".toml") for file in files)
    if name not in names:
        known = ", ".join((*typing.get_args(PresetName), *names))
        raise VspairError(f"preset = {name!r}: expected one of {known}.")
    with resources.as_file(resources.files("vspair") / "configs" / f"{name}.toml") as path:
        return load(path)


def preset(name: PresetName = "calibrated", active: int = 0) -> Config:
    """Return the anchored model, the paper's objective as printed, or the calibrated one.

    Arguments:
        name: ``anchored``, ``calibrated`` or ``paper``.
        active: The number of factors: with ``anchored`` that of its answers, 0 chooses it; with
            ``calibrated`` the one to steer to, 0 keeps each factor that is worth a small price.
    """
    if name == "anchored":
        return Config(model=ModelConfig(kind="anchored"), anchored=AnchoredConfig(active=active))
    if name == "paper":
        return Config(
            model=ModelConfig(gate="exponential", logvar_range=(-30.0, 20.0), normalise="none"),
            objective=ObjectiveConfig(),
            training=TrainingConfig(),
        )
    if name != "calibrated":
        raise VspairError(f"preset = {name!r}: expected one of anchored, calibrated, paper.")
    objective = ObjectiveConfig(
        lambda_y=0.5,
        gamma_x=0.01,
        map="kl",
        gate_prior="price",
        rho="dual" if active else "fixed",
        active=active,
        width="learned",
        width_start=0.5,
    )
    training = TrainingConfig(schedule="cosine", keep="best")
    return Config(model=ModelConfig(), objective=objective, training=training)
