"""Signs of e3nn's Wigner 3j symbols in its versions, for weights that were trained with another one.

NVIDIA's code pins e3nn 0.3.3. e3nn 0.5.0 negated some symbols, so the weights that multiply those symbols change sign.
"""

import math

from src.errors import UserError
from src.models.se3_transformer.basis import Pair

Triple = tuple[int, ...]  # J, degree in and degree out, sorted

NVIDIA_E3NN = "0.3.3"  # what every revision of NVIDIA's requirements.txt pins
# Triples (in any order) whose symbol e3nn 0.5.0 negated, for degrees in and out up to 5. Before 0.5.0 the symbols end
# at degree 11, and degree 6 needs J = 12. Source: o3.wigner_3j in float64. 0.3.0, 0.3.3, 0.4.0 and 0.4.4 agree, and so
# do 0.5.0, 0.5.9 and 0.6.0. Apart from these signs, old and new agree within 1e-15; spherical harmonics are equal.
NEGATED: frozenset[Triple] = frozenset(
    {(1, 2, 2), (1, 3, 3), (1, 4, 4), (1, 5, 5), (3, 4, 6), (3, 5, 7), (4, 4, 5), (4, 5, 6), (5, 5, 5)}
)
NEGATED_MAX_DEGREE = 5

Y_0 = 0.5 / math.sqrt(math.pi)  # the spherical harmonic of degree 0


def negated_symbols(e3nn: str, max_degree: int) -> frozenset[Triple]:
    """Returns the triples whose symbols have opposite signs in that version of e3nn and in the installed one.

    Raises UserError for an unknown version, and for degrees that it has no symbols for.
    """
    release = ".".join(e3nn.split(".")[:2])
    if release in ("0.5", "0.6"):
        return frozenset()
    if release not in ("0.3", "0.4"):
        raise UserError(
            f"e3nn={e3nn}: the signs of Wigner 3j symbols are known for e3nn 0.3 to 0.6; give the version that "
            f"NVIDIA's code runs with, which is {NVIDIA_E3NN} unless its requirements.txt was changed"
        )
    if max_degree > NEGATED_MAX_DEGREE:
        raise UserError(
            f"e3nn={e3nn} has no Wigner 3j symbols for degree {max_degree}, only up to degree {NEGATED_MAX_DEGREE}; "
            "give e3nn=0.5.0 or later, or a network of fewer degrees"
        )
    return NEGATED


def symbol_signs(pair: Pair, negated: frozenset[Triple]) -> list[float]:
    """Returns for each frequency of the pair -1 if its symbol is negated, else 1."""
    frequencies = range(abs(pair[0] - pair[1]), sum(pair) + 1)
    return [-1.0 if tuple(sorted((j, *pair))) in negated else 1.0 for j in frequencies]
