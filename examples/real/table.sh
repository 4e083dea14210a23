#!/bin/sh
# The whole table: `sh table.sh [KEY.SUB=VALUE …]`. Run it again to resume.
set -eu
mkdir -p results
for name in searchqa spreadsheetbench officeqa docvqa alfworld livemathematicianbench; do
  skillfit compare "$name.yaml" "$@" --rollouts 150 --rollouts 600 --seeds 2 --run "runs/$name"
  cp "runs/$name/comparison.json" "results/$name.json"
done
