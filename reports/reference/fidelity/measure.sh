#!/usr/bin/env bash
# The reference measurements of fidelity on one GPU: calibrates each model on sessions it is not measured on, measures
# it on three windows, and writes per measurement NAME the calibration (NAME.safetensors, NAME.json), a results database
# (NAME.sqlite), the figures (NAME.values.json) and the pages (a folder NAME).
#   measure.sh SESSIONS OUT QWEN GEMMA [NAME...]    SESSIONS: a directory of recorded sessions; QWEN: Qwen2.5-Coder-1.5B;
#       GEMMA: Gemma-3-270M (folders, .gguf files or hub ids). The third model is the embedded SmolLM2. NAME: the
#       measurements wanted, all of them by default: qwen-16k qwen-32k gemma-8k gemma-32k smollm2-8k.
set -euo pipefail
sessions=$1 out=$2 qwen=$3 gemma=$4
shift 4
wanted=" $* "
mkdir -p "$out"

measure() { # NAME MODEL LENGTH
  [[ $wanted = "  " || $wanted = *" $1 "* ]] || return 0
  leadline calibrate "$2" --text "$sessions" --length "$3" --windows 3 --out "$out/$1.safetensors"
  leadline fidelity "$2" --text "$sessions" --length "$3" --windows 3 --grid full \
    --calibration "$out/$1.safetensors" --db "$out/$1.sqlite" --out "$out/$1" --json >"$out/$1.values.json"
}

measure qwen-16k "$qwen" 16384
measure qwen-32k "$qwen" 32768
measure gemma-8k "$gemma" 8192
measure gemma-32k "$gemma" 32768
measure smollm2-8k embedded 8192
