"""The posterior: what a method believes of x, given an observation y.

Every method answers with a :class:`Posterior`, whatever it is: :class:`LatentPosterior` decodes
samples of a code, :class:`SamplePosterior` holds samples that were made elsewhere,
:class:`NormalPosterior` is an estimate with independent Gaussian noise, and
:class:`PointPosterior` is one estimate, which has no spread.
"""

from vspair.posterior.base import Method as Method
from vspair.posterior.base import NormalPosterior as NormalPosterior
from vspair.posterior.base import PointPosterior as PointPosterior
from vspair.posterior.base import Posterior as Posterior
from vspair.posterior.base import SamplePosterior as SamplePosterior
from vspair.posterior.latent import LatentPosterior as LatentPosterior
