#!/usr/bin/env bash
# Writes the pages of docs/results/comparisons; no GPU is needed.
#   pages        from the committed records (default)
#   sweep        renews the records of 18 small MobileNets (mobilenet_quick), minutes on two CPU cores
#   screenshots  pictures of OUT/moflow_precision.html; needs chromium
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: docs/results/comparisons.sh OUT [pages|sweep|screenshots] (docs/results/comparisons to renew them)" >&2
  exit 2
fi
out=$1 what=${2:-pages} python=${PYTHON:-.venv/bin/python} records=$(dirname "$0")/records
page() { "$python" report.py compare "${@:2}" --format html --output "$out/$1.html"; }
case $what in
  pages)
    page moflow_precision "$records"/moflow_train_512_{amp,tf32}.json
    page distilbert_seeds "$records"/distilbert_minilm_seed_*.json
    page mobilenet_sweep "$records"/mobilenet_sweep/*.json --no-published
    "$python" report.py stability "$records"/distilbert_minilm_seed_*.json --output "$out/distilbert_seeds.md"
    for runs in moflow_published moflow_published_x1 moflow_quality se3_transformer_homo; do
      "$python" report.py stability "$records/$runs"_?.json --picture "$out/$runs.png" > /dev/null
    done
    ;;
  sweep)
    # one thread: several would wait for each other on shared cores
    OMP_NUM_THREADS=1 "$python" train.py -m experiment=mobilenet_quick datamodule.image_size=32 fit.max_epochs=3 \
      hp.batch_size=16,32 hp.lr=0.01,0.03,0.1 seed=1,2,3 sweep.parallel=1 hydra.sweep.dir=outputs/mobilenet_sweep
    mkdir -p "$records/mobilenet_sweep"
    for job in outputs/mobilenet_sweep/*/; do
      sed "s#$PWD/##g" "${job}result.json" > "$records/mobilenet_sweep/$(printf %02d "$(basename "$job")").json"
    done
    ;;
  screenshots)
    "$python" -m tests.support.browser "$out/moflow_precision.html" "$out/moflow_precision_wide.png" 1440 900
    "$python" -m tests.support.browser "$out/moflow_precision.html" "$out/moflow_precision_phone.png" 390 844 dark
    ;;
esac
