#!/usr/bin/env bash
# DistilBERT's rows, on one NVIDIA GPU:
#   docs/results/distilbert.sh OUT padded|full|packed|minilm [option=value ...]
# Each row's record is OUT/NAME/result.json. Further options go to every run, for example data_root=DIR. Where there is no
# network, padded, packed and minilm need datamodule.raw=DIR with SST-2's files, padded and packed also
# datamodule.vocabulary=DIR; minilm takes model.task.weights=DIR, which src.models.distilbert.convert makes.
# ROWS=PATTERN in the environment runs the rows of such names only.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/distilbert.sh OUT padded|full|packed|minilm [option=value ...]" >&2; exit 2; }
out=$1 what=$2
shift 2
. "$(dirname "$0")/rows.sh"
common=("output_root=$out/hydra" logger=none callbacks=bare "$@")

train() {  # NAME option=value ...
  wanted "$1" || return 0
  "$python" train.py "${common[@]}" "output_dir=$out/$1" "${@:2}"
}
speed() {  # NAME option=value ...: the published row of 96 sentences in 512 places; rates do not depend on the weights
  train "$@" model=distilbert +fix_hp=max_bs model.task.weights=random fit.max_steps=250 \
    fit.evaluate_first=false fit.eval_every_n_epochs=null fit.final_evaluation=false
}

case $what in
  padded)  # SST-2's sentences
    for precision in fp32 tf32 bf16 amp; do
      speed "padded_96_$precision" "precision=$precision"
    done ;;
  full)  # every place is a token
    for precision in fp32 tf32 bf16 amp; do
      speed "full_96_$precision" "precision=$precision" datamodule=token_synthetic datamodule.length=512
    done ;;
  packed)  # three epochs with evaluations, the model's full size
    for precision in bf16 tf32; do
      train "packed_96_$precision" model=distilbert +fix_hp=max_bs model.task.weights=random "precision=$precision" \
        datamodule.padding=packed fit.max_epochs=3 datamodule.test_batch_size=256
    done ;;
  minilm)
    for seed in 1 2 3 4 5; do
      train "minilm_seed_$seed" experiment=distilbert_minilm "seed=$seed"
    done ;;
  *) echo "distilbert.sh: '$what' is none of padded, full, packed and minilm" >&2; exit 2 ;;
esac
