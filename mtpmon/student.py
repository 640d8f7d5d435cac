"""Student's t distribution: the one quantile this project needs, without SciPy."""

import math

import numpy as np

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def student_t_quantile(probability: float, degrees: int) -> float:
    """The value that a t variable stays below with ``probability``.

    Substituting t = √ν · tan θ turns the distribution function into the integral of
    cos^(ν-1) θ over a bounded interval, which Gauss-Legendre quadrature takes to machine
    precision; bisection over θ inverts it.

    Args:
        probability: between 0 and 1, both excluded.
        degrees: degrees of freedom ν, at least 1.
    """
    if not 0 < probability < 1 or degrees < 1:
        raise ValueError(f"no t quantile for probability {probability}, {degrees} degrees")
    if probability < 0.5:
        return -student_t_quantile(1 - probability, degrees)
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)

    def excess(angle: float) -> float:
        """P(0 < T < √ν · tan angle) less what is wanted."""
        theta = angle / 2 * (_NODES + 1)
        area = angle / 2 * float(_WEIGHTS @ np.cos(theta) ** (degrees - 1))
        return scale * area - (probability - 0.5)

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)
