"""Variational sparse paired autoencoders for inverse problems and uncertainty quantification.

A code is a distribution. In the anchored model, the default, an anchor answers and a code
describes what it leaves in doubt; a paired autoencoder is two autoencoders and a map between their
codes.

    model = vspair.fit(x, y)
    model.verdict    # what it is worth on held-out pairs
    post = model.posterior(y_new)
    post.mean(), post.std(), post.interval(0.9), post.sample(50)
    post.factors(5)  # which factors the doubt comes from
    post.split()     # structural and parametric variance, and grain
"""

from vspair.codes import Code as Code
from vspair.codes import Normal as Normal
from vspair.codes import Point as Point
from vspair.codes import SpikeSlab as SpikeSlab
from vspair.config import Config as Config
from vspair.config import preset as preset
from vspair.errors import VspairError as VspairError
from vspair.evaluation import evaluate as evaluate
from vspair.evaluation import invert as invert
from vspair.evaluation import scores as scores
from vspair.factors import Factors as Factors
from vspair.factors import Split as Split
from vspair.fitting import fit as fit
from vspair.model import InverseModel as InverseModel
from vspair.model import PairedAutoencoder as PairedAutoencoder
from vspair.model import SparseVAE as SparseVAE
from vspair.model import build as build
from vspair.posterior import LatentPosterior as LatentPosterior
from vspair.runs import load as load

__version__ = "0.2.0"
