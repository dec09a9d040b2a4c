#!/usr/bin/env bash
# The largest batch of each model that fits on one NVIDIA GPU, by `+fix_hp=auto`, and a short run with it:
#   docs/results/auto.sh OUT [MODEL ...] [option=value ...]      all models if none is named
# OUT/fix_hp.yaml has the rows found, OUT/MODEL/result.json the run's record, OUT/MODEL/fix_hp/*/result.json those of the trials.
# Further options go to every run, for example data_root=DIR.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: docs/results/auto.sh OUT [MODEL ...] [option=value ...]" >&2; exit 2; }
out=$1
shift
. "$(dirname "$0")/rows.sh"
models=() options=()
for word in "$@"; do
  case $word in *=*) options+=("$word") ;; *) models+=("$word") ;; esac
done
[ "${#models[@]}" -gt 0 ] || models=(moflow se3_transformer distilbert dlrm mobilenet_v1)

for model in "${models[@]}"; do
  given=()
  case $model in
    moflow) given=(hp.batch_size=512 hp.lr=5e-4) ;;
    se3_transformer) ;;
    distilbert) given=(model.task.weights=random hp.accumulate=1 datamodule=token_synthetic datamodule.length=512) ;;
    dlrm) given=(datamodule=criteo_resident datamodule.pool_batches=2 datamodule.steps_per_epoch=200 hp.lr=1) ;;
    mobilenet_v1) given=(datamodule=image_synthetic datamodule.pool_batches=2) ;;
    *) echo "auto.sh: there is no model '$model'" >&2; exit 2 ;;
  esac
  wanted "$model" || continue
  "$python" train.py "model=$model" trainer=1x1 precision=amp +fix_hp=auto "fix_hp.file=$out/fix_hp.yaml" fix_hp.choose=batch_size \
    "output_root=$out/hydra" "output_dir=$out/$model" logger=none callbacks=bare fit.max_steps=30 fit.eval_every_n_epochs=null \
    fit.evaluate_first=false fit.final_evaluation=false "${given[@]}" ${options[@]+"${options[@]}"}
done
