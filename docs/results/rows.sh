# What the scripts of this folder share: they source it.
python=${PYTHON:-.venv/bin/python}

complete() {  # FOLDER: whether its run came to its end
  grep -qs '^  "status": "done"' "$1/result.json"
}
wanted() {  # NAME [FOLDER]: whether ROWS takes this row, and OUT has no complete record of it
  [[ $1 == ${ROWS:-*} ]] || return 1
  ! complete "$out/${2:-$1}" || { echo "$1 is done: $out/${2:-$1}"; return 1; }
}
