#!/usr/bin/env bash
# The comparisons with other code on the result pages, on one NVIDIA GPU of 80 GB, each 1 to 3 minutes:
#   docs/results/beside.sh OUT mobilenet_v1|distilbert|moflow|se3_transformer|dlrm [--reference CLONE] [option=value ...]
# All sides of a case are in the GPU's memory at once: here are peers that fit beside ours. What does not: NVIDIA's MoFlow at 3,584
# in TF32, and NVIDIA's SE(3)-Transformer at 1,600 in TF32 (110 GiB). For time, peers that the patterns below do not take are left
# out too. `python -m benchmarks.beside MODEL` takes all, on a larger GPU. OUT/MODEL/CASE holds a comparison; those that have a ratio
# are left out. ROWS=PATTERN in the environment takes the cases of such names only. CLONE and the rest: docs/guides/beside.md.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: docs/results/beside.sh OUT mobilenet_v1|distilbert|moflow|se3_transformer|dlrm [--reference CLONE] [option=value ...]" >&2; exit 2; }
out=$1 model=$2 given=("${@:3}") failed=0
. "$(dirname "$0")/rows.sh"

beside() {  # PEERS CASE ...
  local case
  for case in "${@:2}"; do
    [[ $case == ${ROWS:-*} ]] || continue
    ! grep -qs '"ours_over_it": {' "$out/$model/$case/beside.json" || { echo "$case is done: $out/$model/$case"; continue; }
    "$python" -m benchmarks.beside "$model" "$case" --peers "$1" --out "$out/$model" "${given[@]}" || failed=1
  done
}

case $model in
  mobilenet_v1) beside '*' train_64_amp train_64_tf32 train_256_amp train_64_fp32 ;;
  distilbert)
    beside '*eager attention, compiled, graph' train_padded_96_tf32 train_full_96_tf32
    beside '*sdpa, compiled*' train_padded_96_bf16 train_full_96_bf16
    beside '*' train_packed_96_bf16
    beside '*compiled, graph' train_padded_96_fp32 train_full_96_fp32 train_padded_96_amp train_full_96_amp ;;
  moflow)
    given=(datamodule.source.split_file=official "${given[@]}")  # the published split is downloaded
    beside '*' train_512_amp generate_512_amp train_512_tf32 generate_512_tf32 train_2048_amp generate_2048_amp train_3584_amp \
      generate_2048_tf32 ;;
  se3_transformer)
    beside '*' train_240_amp train_240_tf32 train_120_amp train_1600_amp predict_400_amp predict_1600_amp convolution_8960_tf32 \
      convolution_8960_amp train_120_tf32 predict_800_amp predict_400_tf32 predict_800_tf32 predict_1600_tf32 ;;
  dlrm)
    beside '*graph' train_65536_amp train_65536_tf32
    beside 'NVIDIA*' train_262144_amp train_262144_tf32 ;;
  *) echo "beside.sh: '$model' is none of mobilenet_v1, distilbert, moflow, se3_transformer and dlrm" >&2; exit 2 ;;
esac
exit "$failed"
