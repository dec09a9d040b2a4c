#!/usr/bin/env bash
# Writes the pages and the table of docs/results/comparisons from the records; no GPU is needed.
set -euo pipefail
if [ $# -ne 1 ]; then
  echo "usage: docs/results/comparisons.sh OUT (docs/results/comparisons to renew them)" >&2
  exit 2
fi
out=$1 python=${PYTHON:-.venv/bin/python} records=$(dirname "$0")/records
"$python" report.py compare "$records"/moflow_train_512_{amp,tf32}.json --format html --output "$out/moflow_precision.html"
"$python" report.py compare "$records"/distilbert_minilm_seed_*.json --format html --output "$out/distilbert_seeds.html"
"$python" report.py stability "$records"/distilbert_minilm_seed_*.json --output "$out/distilbert_seeds.md"
