#!/usr/bin/env bash
# Rows of weak scaling on 1, 2, 4 and 8 NVIDIA GPUs of one machine, as many as it has, each about 20 s:
#   docs/results/scaling.sh OUT moflow|se3_transformer|distilbert|mobilenet_v1 [option=value ...]
# Each row's record is OUT/NAME/result.json; `report.py scaling OUT/weak_*` makes the table. Further options go to every run, for
# example data_root=DIR. In the environment PRECISION=tf32 takes another precision than amp, GPUS="1 8" other numbers of GPUs,
# ROWS=PATTERN the rows of such names only: PRECISION=fp32 are Paddle's cases sp and mp of MobileNetV1, 64 and 768 images on each GPU;
# GPUS="1 8" are MoFlow's published cases 1x8. DLRM's rows: dlrm.sh.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/scaling.sh OUT moflow|se3_transformer|distilbert|mobilenet_v1 [option=value ...]" >&2; exit 2; }
out=$1 model=$2
shift 2
. "$(dirname "$0")/rows.sh"
precision=${PRECISION:-amp}
common=("model=$model" "output_root=$out/hydra" "precision=$precision" logger=none callbacks=bare hp.accumulate=1
  fit.eval_every_n_epochs=null fit.evaluate_first=false fit.final_evaluation=false)
plain=(model.task.augment.flip=false model.task.augment.jitter=0 model.task.augment.lighting=0)  # as in mobilenet_v1.sh

weak() {  # BATCH STEPS option=value ...: that many samples on each GPU
  local gpus row
  for gpus in ${GPUS:-1 2 4 8}; do
    [ "$gpus" -le "$(nvidia-smi -L | wc -l)" ] || break
    row=weak_$1_${precision}_x$gpus
    wanted "$row" || continue
    "$python" train.py "${common[@]}" "trainer=1x$gpus" "output_dir=$out/$row" "hp.batch_size=$1" \
      "fit.max_steps=$2" "${@:3}"
  done
}

case $model in
  moflow)
    published=(datamodule.source.split_file=official hp.lr=5e-4)  # the published split is downloaded
    weak 512 420 "${published[@]}" "$@"
    weak 2048 220 "${published[@]}" "$@"
    weak 3072 160 "${published[@]}" "$@" ;;
  se3_transformer)
    weak 120 1000 "$@"
    weak 240 1000 "$@"
    weak 1600 420 "$@" ;;
  distilbert)  # every place is a token; rates do not depend on the weights
    for batch in 32 96; do
      weak "$batch" 420 model.task.weights=random datamodule=token_synthetic datamodule.length=512 "$@"
    done ;;
  mobilenet_v1)  # synthetic images that are on the GPU already
    weak 64 1500 datamodule=image_synthetic "${plain[@]}" "$@"
    if [ "$precision" = fp32 ]; then
      weak 768 200 datamodule=image_synthetic "${plain[@]}" "$@"
    else
      weak 256 500 datamodule=image_synthetic "${plain[@]}" "$@"
    fi ;;
  *) echo "scaling.sh: '$model' is none of moflow, se3_transformer, distilbert and mobilenet_v1" >&2; exit 2 ;;
esac
