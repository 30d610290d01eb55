#!/usr/bin/env bash
# Agreement of scanners on recorded agent sessions, one stage of it:
#   run.sh STAGE SESSIONS OUT QWEN_1.5B QWEN_0.5B [I/N]
# STAGE: calibrate, calibrate-small, primary, full-view, k512, small-model, timing, timing-k512 or repeat; a stage is NAME.toml
# beside this file and ends in OUT/NAME.sqlite. SESSIONS: the folder of recorded sessions. QWEN_1.5B, QWEN_0.5B: .gguf files of
# Qwen2.5-Coder-Instruct. I/N: this process's share of the sessions; without it a stage also says that it is complete.
# Names in the databases are relative to OUT, so that a stage goes on on another machine from a copied database.
set -euo pipefail
stage=$1 part=${6:-1/1}
sessions=$(realpath "$2") large=$(realpath "$4") small=$(realpath "$5")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
mkdir -p "$3" && cd "$3"
ln -sfn "$sessions" sessions
ln -sfn "$large" qwen2.5-coder-1.5b-instruct.gguf
ln -sfn "$small" qwen2.5-coder-0.5b-instruct.gguf

# Recordings that no stage replays, of tasks that no replayed recording tells of.
unseen=(
  chat-swesmith-xml/getmoto__moto.694ce1f4.pr_6055-77.json.gz
  mini-swe-agent-traj/django__django-11905.json.gz
  oh-v0-eval-output/multi-swe-bench-ponyc-3records.jsonl.gz
  oh-v1-session-dir/astropy-b322b280.tar.gz
)
calibrate() { # NAME LENGTH [OPTION...]
  mkdir -p unseen
  for one in "${unseen[@]}"; do ln -sfn "$sessions/$one" "unseen/$(basename "$one")"; done
  leadline calibrate "$1.gguf" --text unseen --length "$2" --plans 48 --out "$1.safetensors" "${@:3}"
}

case $stage in
  calibrate) calibrate qwen2.5-coder-1.5b-instruct 57344 --rope yarn:4 ;;
  calibrate-small) calibrate qwen2.5-coder-0.5b-instruct 32768 ;;
  *) leadline replay --config "$here/$stage.toml" --db "$stage.sqlite" --part "$part" ;;
esac
