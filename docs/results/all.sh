#!/usr/bin/env bash
# Every row of README and docs/results, one after another, on the GPUs that the machine has:
#   docs/results/all.sh OUT [option=value ...]
# Each row's record is OUT/MODEL/NAME/result.json. Rows whose record is complete are left out, so the same command goes on
# where it was ended. At last the records are copied to docs/results/records, and the pages and their pictures are made of them.
# Further options go to every run, for example data_root=DIR; the environment is that of the other scripts: ROWS, SEEDS, GPUS.
# It runs .venv/bin/python, from the root of the repository; PYTHON=... in the environment takes another.
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: docs/results/all.sh OUT [option=value ...]" >&2; exit 2; }
here=$(dirname "$0") out=$1
shift
. "$here/rows.sh"
rows() {  # MODEL KIND ...
  for kind in "${@:2}"; do
    "$here/$1.sh" "$out/$1" "$kind" "${options[@]}"
  done
}
one_commit() {  # ends the script where OUT holds records of several commits
  local commits
  commits=$(grep -hom1 '"commit": "[0-9a-f]\{7\}' "$out"/*/*/result.json 2> /dev/null | cut -d'"' -f4 | sort -u) || true
  [ "$(wc -l <<< "$commits")" -le 1 ] || { echo "$out has records of commits" $commits": measure in a new folder" >&2; exit 2; }
}
options=("$@")
one_commit

rows moflow speed training quality published judged
rows se3_transformer speed training targets
rows distilbert padded full packed minilm
rows dlrm speed predict training scaling
[ "$(nvidia-smi -L | wc -l)" -lt 2 ] || rows dlrm torchrec
rows mobilenet_v1 speed predict cifar10
for model in moflow se3_transformer distilbert mobilenet_v1; do
  "$here/scaling.sh" "$out/$model" "$model" "${options[@]}"
done
PRECISION=fp32 "$here/scaling.sh" "$out/mobilenet_v1" mobilenet_v1 "${options[@]}"

one_commit
shopt -s nullglob
for record in "$out"/*/*/result.json; do
  complete "$(dirname "$record")" || continue
  name=$(basename "$(dirname "$record")") model=$(basename "$(dirname "$(dirname "$record")")")
  sed "s#$PWD/##g" "$record" > "$here/records/${model}_$name.json"
done
picture() {  # FILE NAME: takes a run's picture, where it has drawn it
  [ ! -e "$1" ] || cp "$1" "$here/moflow_$2.png"
}
for name in qed plogp; do
  picture "$out/moflow/optimise_quality_1_$name/molecules_optimised.png" "optimised_$name"
done
for name in published_1 quality_1; do
  picture "$out/moflow/temperatures_$name/molecules.png" "${name}_molecules"
  for what in properties temperatures; do
    picture "$out/moflow/temperatures_$name/molecules_$what.png" "${name}_$what"
  done
done
for model in moflow se3_transformer distilbert dlrm mobilenet_v1; do
  runs=("$here/records/$model"_{weak,strong}_*.json)
  [ ${#runs[@]} = 0 ] || "$python" report.py scaling "${runs[@]}" --picture "$here/${model}_scaling.png" > /dev/null
done
"$here/comparisons.sh" "$here/comparisons"
"$python" report.py --docs
