#!/usr/bin/env bash
# Everything that a person does with a run, on the tiny model, in about three minutes. docs/quickstart.md explains it.
#
#   examples/tour.sh [FOLDER]      writes into FOLDER, or into a new temporary one
set -euo pipefail

examples=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$(mktemp -d)}
mkdir -p "$folder" && cd "$folder"
step() { printf '\n$ %s\n' "$*"; "$@"; }

step headway check "$examples/tiny.toml"                                  # before
step headway env try arithmetic --model tiny
step headway train "$examples/tiny.toml" stop.steps=10 run.name=first     # during
step headway watch runs/first --once
step headway report runs/first --html report.html                         # after
step headway rollouts runs/first --worst --limit 3
step headway rollouts runs/first --best --limit 1 --show
step headway rollouts runs/first --train --min-reward 1 --limit 0 --jsonl right.jsonl
step headway export runs/first model                                      # take it away
step headway eval model --env arithmetic 'environment.args={levels=[1, 2]}' eval.num_tasks=16 -n 4
step headway sft "$examples/sft.toml" sft.data="$PWD/right.jsonl" sft.eval_every_steps=20 run.name=on-the-best
step headway resume runs/first stop.steps=12                              # go on
step headway replay runs/first --verify
step headway prune runs/first --dry-run

printf '\nall of it is in %s\n' "$PWD"
