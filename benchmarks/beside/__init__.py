"""Trains and predicts with our code and with that of others in turn, on one GPU, in one run: docs/guides/beside.md.

python -m benchmarks.beside MODEL --out DIR [CASE ...] [--reference PATH]     runs the cases of a model
python -m benchmarks.beside collect DIR                                       writes src/published/reference.yaml

A case is one batch and precision, with several sides: ours, and peers. Each side is a process. It prepares, then runs
steps when the parent gives it a turn, so exactly one side works at a time.
"""
