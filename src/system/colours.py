"""The colours of pictures and pages: Okabe and Ito's, which colour-blind readers can tell apart."""

CURVES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
PHASES = {
    "compute": "#0072B2",
    "communication": "#56B4E9",
    "transfer": "#009E73",
    "fetch": "#E69F00",
    "decode": "#8C510A",
    "evaluation": "#CC79A7",
    "checkpoint": "#F0E442",
    "startup": "#D55E00",
    "other": "#999999",
    "unaccounted": "#DDDDDD",
}
START = {  # parts of a run's start, in their order
    "interpreter": "#999999",
    "config": "#E69F00",
    "imports": "#D55E00",
    "launcher": "#000000",
    "model": "#56B4E9",
    "data": "#009E73",
    "device": "#CC79A7",
    "first step": "#0072B2",
    "warm-up": "#F0E442",
}
