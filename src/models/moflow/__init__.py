"""MoFlow: a normalising flow over molecular graphs, in NVIDIA's variant."""
