"""Where a model's doubt comes from, and whether it is placed where it belongs.

Everything here works for every kind of model, for vectors and images, and for any region of
pixels: which factors are active, what each factor does to the reconstruction, which factor acts
where data is missing, and whether predicted variance follows the error. Functions of tensors
that return tensors or small records; pictures are drawn elsewhere. Results always have a batch
dimension, of length one for a single observation.
"""

from vspair.uncertainty.active import Summary as Summary
from vspair.uncertainty.active import always_active as always_active
from vspair.uncertainty.active import draw_active as draw_active
from vspair.uncertainty.active import nnz as nnz
from vspair.uncertainty.active import posterior_in_parts as posterior_in_parts
from vspair.uncertainty.active import sparsity as sparsity
from vspair.uncertainty.active import spread_over_y as spread_over_y
from vspair.uncertainty.active import summarise as summarise
from vspair.uncertainty.active import summarise_codes as summarise_codes
from vspair.uncertainty.agreement import LinearFit as LinearFit
from vspair.uncertainty.agreement import t_quantile as t_quantile
from vspair.uncertainty.agreement import uncertainty_error as uncertainty_error
from vspair.uncertainty.agreement import variance_ratio as variance_ratio
from vspair.uncertainty.localisation import BestLocalised as BestLocalised
from vspair.uncertainty.localisation import Localisation as Localisation
from vspair.uncertainty.localisation import best_localised as best_localised
from vspair.uncertainty.localisation import localisation as localisation
from vspair.uncertainty.perturbation import DEVIATIONS as DEVIATIONS
from vspair.uncertainty.perturbation import perturb as perturb
from vspair.uncertainty.perturbation import traversal as traversal
from vspair.uncertainty.spans import FEW as FEW
from vspair.uncertainty.spans import factor_directions as factor_directions
from vspair.uncertainty.spans import spans as spans
