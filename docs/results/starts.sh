#!/usr/bin/env bash
# Time lines of a cold and a warm start of each model's published case, on one NVIDIA GPU:
#   docs/results/starts.sh OUT [option=value ...]
# OUT/MODEL_cold has no kernel compiled before, OUT/MODEL_warm what that run compiled. Lists of both and the picture OUT/starts.png are
# made at last; `report.py start BEFORE/* OUT/* --picture starts.png` has those of another checkout beside them.
# Further options go to every run, for example data_root=DIR, where QM9 and ZINC-250k are prepared. ROWS=PATTERN in the environment
# takes the runs of such names only. It runs .venv/bin/python, from the root of the repository; PYTHON=... takes another.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: docs/results/starts.sh OUT [option=value ...]" >&2; exit 2; }
out=$(realpath -m "$1")
shift
. "$(dirname "$0")/rows.sh"
given=("output_root=$out/hydra" logger=none callbacks=bare fit.eval_every_n_epochs=null fit.final_evaluation=false "$@")

start() {  # MODEL option=value ...
  local caches=$out/caches/$1 kind
  for kind in cold warm; do
    wanted "$1_$kind" || continue
    [ "$kind" = warm ] || rm -rf "$caches"
    TRITON_CACHE_DIR=$caches/triton TORCHINDUCTOR_CACHE_DIR=$caches/inductor "$python" train.py "output_dir=$out/$1_$kind" "${@:2}" "${given[@]}"
  done
}

start mobilenet_v1 model=mobilenet_v1 datamodule=image_synthetic precision=amp fit.max_steps=60
start se3_transformer model=se3_transformer precision=amp fit.max_steps=100
start distilbert model=distilbert +fix_hp=max_bs datamodule=token_synthetic datamodule.length=512 model.task.weights=random \
  precision=tf32 fit.evaluate_first=false fit.max_steps=20
start dlrm model=dlrm datamodule=criteo_resident datamodule.steps_per_epoch=200 datamodule.pool_batches=8 precision=amp hp.lr=1
start moflow model=moflow hp.batch_size=512 hp.lr=5e-4 precision=amp fit.max_steps=100
"$python" report.py start "$out"/*_cold "$out"/*_warm --output "$out/starts.md" --picture "$out/starts.png"
