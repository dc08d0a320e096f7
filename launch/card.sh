#!/usr/bin/env bash
# Networks that read the same past as counts, and Table 1 of the paper, on one accelerator: about ten minutes for the networks.
#   launch/card.sh DATA OUT    DATA is laid out as docs/data.md says. TINY=1 tries it with small networks.
# If killed, the same command continues. Afterwards, without an accelerator, for each network (babylm has a window of 128):
#   jexplicit lm --tokenizer OUT/NAME/tokenizer.model --documents file --methods context-mixing --history window:256 online ...
#   jexplicit combine --run COUNTS --other OUT/NAME --documents file ...
set -euo pipefail
data=${1:?usage: launch/card.sh DATA OUT} out=${2:?usage: launch/card.sh DATA OUT}
python=${PYTHON:-.venv/bin/python}
lengths=(1 2 4) seeds=(0 1 2)
if [ -n "${TINY:-}" ]; then lengths=(1) seeds=(0); fi
run() { "$python" -m "launch.$1" "${@:2}" --resume; }

mkdir -p "$out/texts"
input=$data/tinyshakespeare/input.txt
tenth=$(($(wc -c <"$input") / 10))
head -c "-$((2 * tenth))" "$input" >"$out/texts/train.txt"
tail -c "$((2 * tenth))" "$input" | head -c "$tenth" >"$out/texts/dev.txt"
tail -c "$tenth" "$input" >"$out/texts/test.txt"
characters=(--tokenizer char --train "$out/texts/train.txt" --dev "$out/texts/dev.txt" --test "$out/texts/test.txt")
dev=$data/babylm_like/dev
words=(--tokenizer bpe --train "$data"/babylm_like/train/*.train --dev "$dev/mixed_2024.dev" ${TINY:+--vocab-size 128})
tests=("$dev"/{aochildes,cbt,children_stories,switchboard}.dev)

# A document is a file: a window crosses the ends of lines, in training and in the losses of dev and test.
network() {
  local preset=${TINY:+tiny}
  run networks transformer-lm --preset "${preset:-$1}" --documents file --samples 0 --out "$out/$1" "${@:2}"
}
network shakespeare "${characters[@]}"
network shakespeare-gpu "${characters[@]}"
network babylm "${words[@]}" --test "${tests[@]}"
network babylm-gpu "${words[@]}" --test "${tests[@]}"

# The paper gives no batch: in batches of 1024 tables can move as far as they need. K = 1 takes minutes, K = 4 the longest.
for K in "${lengths[@]}"; do
  for seed in "${seeds[@]}"; do
    flags=(--context "$K" --seed "$seed" --batch-size 1024 --out "$out/table1-$K-$seed" ${TINY:+--epochs 1})
    run lm --preset table1 "${words[@]}" "${flags[@]}"
  done
done
