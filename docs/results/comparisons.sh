#!/usr/bin/env bash
# Writes the pages and tables of docs/results/comparisons from the records: docs/results/comparisons.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-.venv/bin/python} records=docs/results/records out=docs/results/comparisons
"$python" report.py compare $records/moflow_train_512_{amp,tf32}.json --format html --output $out/moflow_precision.html
"$python" report.py compare $records/distilbert_minilm_seed_*.json --format html --output $out/distilbert_seeds.html
"$python" report.py stability $records/distilbert_minilm_seed_*.json --output $out/distilbert_seeds.md
