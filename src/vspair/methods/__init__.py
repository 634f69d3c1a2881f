"""Other methods to compare with, one published method in a file; each answers ``posterior(y)``."""

from vspair.methods.cvae import Cvae as Cvae
from vspair.methods.dps import Dps as Dps
from vspair.methods.fbp import Fbp as Fbp
from vspair.methods.flow import Flow as Flow
from vspair.methods.fourier import ShiftRidge as ShiftRidge
from vspair.methods.fourier import Tikhonov as Tikhonov
from vspair.methods.fourier import Wiener as Wiener
from vspair.methods.gaussian import GaussianResiduals as GaussianResiduals
from vspair.methods.large_ridge import LargeRidge as LargeRidge
from vspair.methods.nppc import Nppc as Nppc
from vspair.methods.plain import Plain as Plain
from vspair.methods.point import AnchorAnswer as AnchorAnswer
from vspair.methods.point import AnswerMean as AnswerMean
from vspair.methods.point import AnswerY as AnswerY
from vspair.methods.point import PointMethod as PointMethod
from vspair.methods.regression import RegressionAfter as RegressionAfter
from vspair.methods.ridge import Ridge as Ridge
from vspair.methods.tv_admm import TvAdmm as TvAdmm
