#!/usr/bin/env bash
# The measured rows of docs/results/moflow.md, on one NVIDIA GPU:
#   docs/results/moflow.sh OUT speed|training|quality|published|judged [option=value ...]
# Each row's record is OUT/NAME/result.json. Further options go to every run, for example data_root=DIR; trainings take the published
# split, which is downloaded: datamodule.source.split_file=FILE takes a file of it.
# ROWS=PATTERN in the environment runs the rows of such names only.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/moflow.sh OUT speed|training|quality|published|judged [option=value ...]" >&2; exit 2; }
out=$1 what=$2
shift 2
. "$(dirname "$0")/rows.sh"
split=datamodule.source.split_file=official
common=("$split" "hp.lr=5e-4" "output_root=$out/hydra" "logger=none")
given=("$@")

train() {  # NAME option=value ...
  wanted "$1" || return 0
  "$python" train.py "${common[@]}" "output_dir=$out/$1" callbacks=bare fit.max_steps=420 \
    fit.eval_every_n_epochs=null fit.final_evaluation=false "${@:2}" "${given[@]}"
}
generate() {  # NAME option=value ...
  wanted "$1" || return 0
  "$python" predict.py "output_root=$out/hydra" "output_dir=$out/$1" benchmark=true num_samples=204800 "${@:2}"
}
judge() {  # NAME RUN option=value ...
  wanted "$1" || return 0
  "$python" predict.py "ckpt_path=$out/$2/checkpoints/last.ckpt" "output_dir=$out/$1" num_samples=10000 batch_size=512 \
    model.predict.judge=true "${@:3}"
}

case $what in
  speed)
    for precision in amp tf32 bf16; do
      train "train_512_$precision" hp.batch_size=512 "precision=$precision"
    done
    train train_2048_amp hp.batch_size=2048
    for precision in amp tf32; do
      train "train_3584_$precision" hp.batch_size=3584 hp.lr=1e-4 "precision=$precision"
    done
    train train_512_amp_exact hp.batch_size=512 model.task.network.logdet=exact
    train profile_512_amp hp.batch_size=512 callbacks=profile fit.max_steps=60
    for precision in amp tf32; do
      for batch in 512 2048; do
        generate "generate_${batch}_$precision" "batch_size=$batch" "precision=$precision"
      done
    done ;;
  training)
    ! wanted training_amp || "$python" train.py "${common[@]}" "output_dir=$out/training_amp" hp.batch_size=512 fit.max_epochs=24 fit.eval_every_n_epochs=1 \
      model.task.eval_batch=1000 "${given[@]}" ;;
  quality)  # SEEDS=... in the environment takes other seeds
    for seed in ${SEEDS:-1 2 3 4 5}; do
      wanted "quality_$seed" || continue
      "$python" train.py experiment=moflow_quality "$split" "output_root=$out/hydra" "output_dir=$out/quality_$seed" "seed=$seed" \
        model.task.distances=true "${given[@]}"
    done ;;
  published)  # on GPUS=1|2|4 GPUs: 300 epochs, BatchNorm of 512; repeat it where fit.max_time_s=S ended it
    for seed in ${SEEDS:-1 2 3}; do
      wanted "published_$seed" || continue
      "$python" train.py "${common[@]}" "output_dir=$out/published_$seed" "seed=$seed" resume=true \
        "trainer=1x${GPUS:-1}" "hp.batch_size=$((4096 / ${GPUS:-1}))" \
        model.task.network.norm_batch=512 fit.max_epochs=300 fit.eval_every_n_epochs=25 fit.checkpoint_every_n_epochs=100 \
        model.task.eval_batch=2048 "${given[@]}"
    done ;;
  judged)  # NAMES=... in the environment: the runs of which the last weights are judged, generate and optimise properties
    for name in ${NAMES:-published_1 quality_1}; do
      temperatures=0.2,0.25,0.3,0.35,0.4,0.5,0.7,0.85,1.0
      case $name in quality_*) temperatures=0.6,0.7,0.8,0.9,1.0 ;; esac  # the loss draws at 1
      judge "temperatures_$name" "$name" "model.predict.temperatures=[$temperatures]" "$@"
      generate "generate_$name" batch_size=2048 "ckpt_path=$out/$name/checkpoints/last.ckpt" "$@"
      for property in qed plogp; do
        ! wanted "optimise_${name}_$property" || "$python" predict.py "ckpt_path=$out/$name/checkpoints/last.ckpt" \
          "output_dir=$out/optimise_${name}_$property" num_samples=1000 batch_size=512 "model.predict.optimise=$property" "$@"
      done
    done ;;
  *) echo "moflow.sh: '$what' is none of speed, training, quality, published, judged" >&2; exit 2 ;;
esac
