"""The phases that a run's wall time is divided into; docs/reference/metrics.md defines them."""

PHASES = ("startup", "fetch", "decode", "transfer", "compute", "communication", "evaluation", "checkpoint", "other")
