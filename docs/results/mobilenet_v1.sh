#!/usr/bin/env bash
# MobileNetV1's rows, on one NVIDIA GPU:
#   docs/results/mobilenet_v1.sh OUT speed|predict|cifar10 [option=value ...]
# Each row's record is OUT/NAME/result.json. Further options go to every run, for example data_root=DIR; cifar10 takes
# datamodule.source=FILE where there is no network. ROWS=PATTERN in the environment runs the rows of such names only.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/mobilenet_v1.sh OUT speed|predict|cifar10 [option=value ...]" >&2; exit 2; }
out=$1 what=$2
shift 2
. "$(dirname "$0")/rows.sh"
common=("output_root=$out/hydra" "$@")

speed() {  # NAME option=value ...: synthetic images that are on the GPU already
  wanted "$1" || return 0
  "$python" train.py "${common[@]}" model=mobilenet_v1 datamodule=image_synthetic logger=none callbacks=bare \
    "output_dir=$out/$1" fit.max_steps=600 fit.max_epochs=2 fit.eval_every_n_epochs=null fit.final_evaluation=false "${@:2}"
}
plain=(model.task.augment.flip=false model.task.augment.jitter=0 model.task.augment.lighting=0)

case $what in
  speed)  # without augmentation, as the reference was measured, and with the recipe's
    for precision in fp32 tf32 amp bf16; do
      speed "train_64_$precision" "precision=$precision" "${plain[@]}"
    done
    speed train_256_amp precision=amp hp.batch_size=256 "${plain[@]}"
    speed train_768_fp32 precision=fp32 hp.batch_size=768 "${plain[@]}"
    speed augmented_64_amp precision=amp
    speed augmented_256_amp precision=amp hp.batch_size=256 ;;
  predict)
    ! wanted predict predict_256 || "$python" predict.py -m hydra/launcher=basic "${common[@]}" model=mobilenet_v1 datamodule=image_synthetic benchmark=true \
      precision=amp "hydra.sweep.dir=$out" 'hydra.sweep.subdir=predict_${batch_size}' batch_size=1,8,64,256 ;;
  cifar10)
    ! wanted cifar10 || "$python" train.py "${common[@]}" experiment=mobilenet_cifar10 logger=none callbacks=bare "output_dir=$out/cifar10" ;;
  *) echo "mobilenet_v1.sh: '$what' is none of speed, predict and cifar10" >&2; exit 2 ;;
esac
