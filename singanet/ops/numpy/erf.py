"""The error function, which NumPy lacks."""

from __future__ import annotations

from typing import Any

from singanet.types import Array

# Rational approximations of W. J. Cody, Math. Comp. 23 (1969); relative error below 1e-15 on
# their intervals, highest power first. The second one is used past 4 as well, where erf is 1 to
# within 2e-8 and the error of erfc no longer shows.
_NEAR_P = (0.185777706184603153, 3.16112374387056560, 113.864154151050156, 377.485237685302021,
           3209.37758913846947)  # fmt: skip
_NEAR_Q = (1.0, 23.6012909523441209, 244.024637934444173, 1282.61652607737228, 2844.23683343917062)
_FAR_P = (2.15311535474403846e-8, 0.564188496988670089, 8.88314979438837594, 66.1191906371416295,
          298.635138197400131, 881.952221241769090, 1712.04761263407058, 2051.07837782607147,
          1230.33935479799725)  # fmt: skip
_FAR_Q = (1.0, 15.7449261107098347, 117.693950891312499, 537.181101862009858, 1621.38957456669019,
          3290.79923573345963, 4362.61909014324716, 3439.36767414372164,
          1230.33935480374942)  # fmt: skip
_SPLIT = 0.46875
_ONE_BEYOND = 6.0


def erf(xp: Any, x: Array) -> Array:
    """The error function of every element, in the type of ``x``."""
    size = xp.abs(x)
    square = xp.square(xp.minimum(size, _SPLIT))
    near = x * (_polynomial(_NEAR_P, square) / _polynomial(_NEAR_Q, square))
    far_x = xp.clip(size, _SPLIT, _ONE_BEYOND)
    tail = xp.exp(-far_x * far_x) * (_polynomial(_FAR_P, far_x) / _polynomial(_FAR_Q, far_x))
    return xp.where(size <= _SPLIT, near, xp.sign(x) * (1.0 - tail))  # type: ignore[no-any-return]


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    """Horner's scheme."""
    total: Array = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total *= x
        total += coefficient
    return total
