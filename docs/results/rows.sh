# What the scripts of this folder share: they source it.
python=${PYTHON:-.venv/bin/python}

wanted() {  # NAME [FOLDER]: whether ROWS takes this row, and OUT has no complete record of it
  [[ $1 == ${ROWS:-*} ]] || return 1
  ! grep -qs '^  "status": "done"' "$out/${2:-$1}/result.json" || { echo "$1 is done: $out/${2:-$1}"; return 1; }
}
