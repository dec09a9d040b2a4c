"""NVIDIA's package `se3_transformer` in plain torch, for RFdiffusion and the RoseTTAFolds; docs/guides/rfdiffusion.md.

Names, constructor arguments, parameters (names, order, values of one seed) and results are those of its copies in these
projects. `graphs` is in DGL's place. The distribution `se3-transformer` has this folder as `se3_transformer`.
"""
