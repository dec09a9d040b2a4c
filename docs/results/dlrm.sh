#!/usr/bin/env bash
# The measured rows of docs/results/dlrm.md, on one NVIDIA GPU (scaling: on 1, 2, 4 and 8, as many as there are; torchrec: on 2;
# dcnv2: on one of 141 GB, and on 2 where there are):
#   docs/results/dlrm.sh OUT speed|predict|training|scaling|torchrec|dcnv2 [option=value ...]
# Each row's record is OUT/NAME/result.json. Further options go to every run, for example data_root=DIR. In the environment
# GPUS="1 8" takes other numbers of GPUs for scaling; strong_65536_x8 and weak_262144_x8 are the published cases 1x8.
# ROWS=PATTERN in the environment runs the rows of such names only.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/dlrm.sh OUT speed|predict|training|scaling|torchrec|dcnv2 [option=value ...]" >&2; exit 2; }
out=$1 what=$2
shift 2
. "$(dirname "$0")/rows.sh"
given=("output_root=$out/hydra" "$@")
common=("model=dlrm" "${given[@]}")

train() {  # NAME option=value ...: synthetic clicks that are on the GPU already, published tables
  ranks 1 "$@"
}
ranks() {  # GPUS NAME option=value ...: the same on several GPUs
  local gpus=$1
  shift
  wanted "$1" || return 0
  "$python" train.py "${common[@]}" "trainer=1x$gpus" datamodule=criteo_resident datamodule.steps_per_epoch=820 datamodule.pool_batches=8 \
    logger=none "output_dir=$out/$1" callbacks=bare hp.lr=1 fit.eval_every_n_epochs=null fit.final_evaluation=false "${@:2}"
}
predict() {  # NAME option=value ...: untrained; rates do not depend on the weights. One record for each batch size
  wanted "$1" "${1}_32768" || return 0
  "$python" predict.py -m hydra/launcher=basic "${common[@]}" datamodule=criteo_resident datamodule.pool_batches=1 datamodule.test_batches=1 \
    datamodule.steps_per_epoch=1 benchmark=true "hydra.sweep.dir=$out" "hydra.sweep.subdir=$1_\${batch_size}" \
    batch_size=2,4,8,16,32,64,128,256,512,1024,2048,4096,8192,16384,32768 "${@:2}"
}
multihot() {  # GPUS NAME option=value ...: MLPerf's DLRM-DCNv2 and its tables, of at most 20 million rows each on one GPU, 30 on two
  wanted "$2" || return 0
  local limit=20000000 rows=40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,3067956,405282,10,2209,11938,155,4,976,14,40000000
  [ "$1" = 1 ] || limit=30000000
  "$python" train.py model=dlrm_dcnv2 precision=amp "${given[@]}" "trainer=1x$1" datamodule=criteo_resident datamodule.pool_batches=4 \
    "datamodule.cardinalities=[$rows,40000000,40000000,590152,12973,108,36]" "datamodule.max_rows=$limit" datamodule.steps_per_epoch=2000 \
    datamodule.hotness=[3,2,1,2,6,1,1,1,1,7,3,8,1,6,9,5,1,1,1,12,100,27,10,3,1,1] logger=none callbacks=bare "output_dir=$out/$2" \
    fit.eval_every_n_epochs=null fit.final_evaluation=false "${@:3}"
}

case $what in
  speed)
    train train_65536_amp precision=amp
    train train_65536_tf32 precision=tf32
    train train_65536_bf16 precision=bf16
    train train_262144_amp precision=amp hp.batch_size=262144
    train profile_65536_amp precision=amp callbacks=profile fit.max_steps=60 ;;
  predict)
    for precision in amp tf32 fp16; do
      for graph in on off; do
        predict "predict_${precision}_graph_$graph" "precision=$precision" "execution.graph=$graph"
      done
    done ;;
  training)
    teacher=("experiment=dlrm_teacher" logger=none callbacks=bare)
    ! wanted teacher_16384_amp || "$python" train.py "${common[@]}" "${teacher[@]}" "output_dir=$out/teacher_16384_amp"
    ! wanted disk_65536_amp || "$python" train.py "${common[@]}" "${teacher[@]}" "output_dir=$out/disk_65536_amp" hp.batch_size=65536 hp.lr=1 \
      model.task.schedule.decay_start_step=2400 model.task.schedule.decay_steps=1696 ;;
  scaling)
    for gpus in ${GPUS:-1 2 4 8}; do
      [ "$gpus" -le "$(nvidia-smi -L | wc -l)" ] || break
      ranks "$gpus" "weak_65536_x$gpus" precision=amp "hp.batch_size=$((65536 * gpus))"
      [ "$gpus" = 1 ] || ranks "$gpus" "strong_65536_x$gpus" precision=amp hp.batch_size=65536
      ranks "$gpus" "weak_262144_x$gpus" precision=amp "hp.batch_size=$((262144 * gpus))"
    done ;;
  torchrec)  # needs FBGEMM's build for CUDA
    ranks 2 torchrec_65536_x2 precision=amp hp.batch_size=131072 model.task.engine=torchrec ;;
  dcnv2)
    multihot 1 multihot_65536_amp fit.max_steps=120
    multihot 1 multihot_6912_amp hp.batch_size=6912 fit.max_steps=400
    # Test clicks beside the best possible scores, after 33.6 million clicks that are read once
    multihot 1 multihot_teacher_amp datamodule.pool_batches=512 datamodule.steps_per_epoch=512 datamodule.test_batches=16 \
      datamodule.max_rows=1000000 fit.max_epochs=1 fit.final_evaluation=true
    [ "$(nvidia-smi -L | wc -l)" -ge 2 ] || exit 0
    multihot 2 multihot_65536_x2 hp.batch_size=131072 fit.max_steps=120
    multihot 2 multihot_6912_x2 hp.batch_size=13824 fit.max_steps=400
    # The largest table cut by rows, by TorchRec's engine
    multihot 2 multihot_torchrec_65536_x2 hp.batch_size=131072 fit.max_steps=60 model.task.engine=torchrec \
      "+model.task.sharding={cat_20.bin: row_wise}" ;;
  *) echo "dlrm.sh: '$what' is none of speed, predict, training, scaling, torchrec and dcnv2" >&2; exit 2 ;;
esac
