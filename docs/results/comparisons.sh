#!/usr/bin/env bash
# Writes the pages of docs/results/comparisons; no GPU is needed.
#   pages        from the committed records (default)
#   convergence  renews the records of ten seeds each of three small cases, half an hour on two CPU cores
#   sweep        renews the records of 18 small MobileNets (mobilenet_quick), minutes on two CPU cores
#   screenshots  pictures of OUT/moflow_precision.html; needs chromium
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: docs/results/comparisons.sh OUT [pages|convergence|sweep|screenshots] (docs/results/comparisons to renew them)" >&2
  exit 2
fi
out=$1 what=${2:-pages} python=${PYTHON:-.venv/bin/python} records=$(dirname "$0")/records
rcp() { "$python" report.py rcp "${@:2}" --format json --output "$out/../rcps/$1.json"; }
digest() {  # FILE ... (without this folder's paths): their digests anew
  "$python" -c 'if True:
    import sys, pathlib
    from src.report.record import read_record, write_record
    for file in map(pathlib.Path, sys.argv[1:]):
        write_record(read_record(file), file)' "$@"
}
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
    for model in distilbert dlrm mobilenet_v1; do rcp "$model" "$records/convergence/$model"_??.json; done
    rcp moflow "$records"/moflow_quality_?.json
    rcp se3_transformer "$records"/se3_transformer_homo_?.json
    ;;
  convergence)
    seeds() {  # MODEL option=value ...
      "$python" train.py -m logger=none pictures=false "seed=range(1,11)" sweep.parallel=1 "hydra.sweep.dir=outputs/convergence/$1" "${@:2}"
      for job in outputs/convergence/"$1"/?/; do
        sed "s#$PWD/##g" "${job}result.json" > "$records/convergence/$1_$(printf %02d $(($(basename "$job") + 1))).json"
      done
      digest "$records/convergence/$1"_??.json
    }
    export OMP_NUM_THREADS=1
    mkdir -p "$records/convergence"
    seeds mobilenet_v1 experiment=mobilenet_quick fit.eval_every_n_epochs=null fit.eval_every_n_steps=4 fit.stop_at_target=true
    seeds distilbert experiment=distilbert_quick fit.eval_every_n_steps=4 model.task.target=0.85
    seeds dlrm experiment=dlrm_quick fit.eval_every_n_steps=64 model.task.target=0.76
    ;;
  sweep)
    # one thread: several would wait for each other on shared cores
    OMP_NUM_THREADS=1 "$python" train.py -m experiment=mobilenet_quick datamodule.image_size=32 fit.max_epochs=3 \
      hp.batch_size=16,32 hp.lr=0.01,0.03,0.1 seed=1,2,3 sweep.parallel=1 hydra.sweep.dir=outputs/mobilenet_sweep
    mkdir -p "$records/mobilenet_sweep"
    for job in outputs/mobilenet_sweep/*/; do
      sed "s#$PWD/##g" "${job}result.json" > "$records/mobilenet_sweep/$(printf %02d "$(basename "$job")").json"
    done
    digest "$records"/mobilenet_sweep/*.json
    ;;
  screenshots)
    "$python" -m tests.support.browser "$out/moflow_precision.html" "$out/moflow_precision_wide.png" 1440 900
    "$python" -m tests.support.browser "$out/moflow_precision.html" "$out/moflow_precision_phone.png" 390 844 dark
    ;;
esac
