#!/usr/bin/env bash
# Rows of weak scaling on 1, 2 and 4 NVIDIA GPUs of one machine, as many as it has, each about 20 s:
#   docs/results/scaling.sh OUT moflow|se3_transformer|distilbert|mobilenet_v1 [option=value ...]
# Each row's record is OUT/NAME/result.json; `report.py scaling OUT/weak_*` makes the table. Further options go to every run, for
# example data_root=DIR. PRECISION=tf32 in the environment takes another precision than amp, ROWS=PATTERN runs
# the rows of such names only. DLRM's rows: dlrm.sh.
set -euo pipefail
out=$1 model=$2
shift 2
python=${PYTHON:-python3} precision=${PRECISION:-amp}
common=("model=$model" "output_root=$out/hydra" "precision=$precision" logger=none callbacks=bare hp.accumulate=1
  fit.eval_every_n_epochs=null fit.evaluate_first=false fit.final_evaluation=false)
plain=(model.task.augment.flip=false model.task.augment.jitter=0 model.task.augment.lighting=0)  # as in mobilenet_v1.sh

weak() {  # BATCH STEPS option=value ...: that many samples on each GPU
  local gpus row
  for gpus in 1 2 4; do
    [ "$gpus" -le "$(nvidia-smi -L | wc -l)" ] || break
    row=weak_$1_${precision}_x$gpus
    [[ $row == ${ROWS:-*} ]] || continue
    "$python" train.py "${common[@]}" "trainer=1x$gpus" "output_dir=$out/$row" "hp.batch_size=$1" \
      "fit.max_steps=$2" "${@:3}"
  done
}

case $model in
  moflow)
    weak 512 420 hp.lr=5e-4 "$@"
    weak 2048 220 hp.lr=5e-4 "$@" ;;
  se3_transformer)
    weak 240 1000 "$@"
    weak 1600 420 "$@" ;;
  distilbert)  # every place is a token; rates do not depend on the weights
    weak 96 420 model.task.weights=random datamodule=token_synthetic datamodule.length=512 "$@" ;;
  mobilenet_v1)  # synthetic images that are on the GPU already
    weak 64 1500 datamodule=image_synthetic "${plain[@]}" "$@"
    weak 256 500 datamodule=image_synthetic "${plain[@]}" "$@" ;;
  *) echo "scaling.sh: '$model' is none of moflow, se3_transformer, distilbert and mobilenet_v1" >&2; exit 2 ;;
esac
