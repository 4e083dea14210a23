"""results.md from the stored results. Every figure and every comparison in words is computed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.gate.play import EDITS, PATCH
from bench.local.compare import BATCH, BUDGETS, SUBSETS, WAYS, Compared, gate_code, read_results
from bench.local.house_style import SIZES
from bench.local.pool import POOL

SORTS = ("helpful", "overlapping", "useless", "wrong")
LEFT = (
    "# Real models on this machine\n\n"
    "What skillfit does with a small model that runs here, behind the shipped local provider.\n"
    "Get xllamacpp with `pip install 'skillfit[local]'` and a GGUF file of Qwen2.5-Coder-1.5B\n"
    "Instruct (Q4_K_M), then:\n\n"
    "```sh\n"
    "python -m bench.local compare --model MODEL.gguf --work DIR   # resumes where it ended\n"
    "python -m bench.local ablate --model MODEL.gguf --work DIR\n"
    "python -m bench.local train --model MODEL.gguf --work DIR\n"
    "python -m bench.local report                                  # writes this page\n"
    "```\n"
)


def report(folder: Path) -> str:
    parts = [LEFT]
    if runs := read_results(folder / "comparison.jsonl"):
        parts.append(_comparison(runs))
    if (folder / "ablation.json").is_file():
        parts.append(_ablation(json.loads((folder / "ablation.json").read_text("utf-8"))))
    if (folder / "training.json").is_file():
        parts.append(_training(json.loads((folder / "training.json").read_text("utf-8"))))
    else:
        parts.append("## Benchmarks, before and after training\n\nNo finished run is stored.\n")
    return "\n".join(parts)


def _mean(values: Sequence[float]) -> str:
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.3f}"
    return f"{mean:.3f} ± {_error(values):.3f}"


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))


def _comparison(runs: Sequence[Compared]) -> str:
    counts = {sort: sum(line.planted == sort for line in POOL) for sort in SORTS}
    pool = ", ".join(f"{count} {sort}" for sort, count in counts.items())
    fixed = {one.way: one.test for one in runs if not one.rollouts}
    played = [one for one in runs if one.rollouts]
    lines = [
        "## The gates, with everything else the same\n",
        "Task: values are rewritten in house style (dates, times, money, names and so on), graded",
        f"by exact match: {SIZES['train']} training, {SIZES['selection']} selection and",
        f"{SIZES['test']} test items of ten kinds. A fixed pool of {len(POOL)} hand-written lines",
        f"({pool}) takes the place of the optimizer.",
        f"Each step proposes the next {EDITS} lines in an order that the seed fixes and pays for",
        f"{BATCH} training rollouts. Screening takes all of them into its pool; strict tries the",
        f"first {PATCH} as one patch; the race gets candidates of {PATCH} and {2 * PATCH} lines,",
        f"as in bench/gate. Screening draws {SUBSETS} subsets per pass. Temperature 0. A gate's",
        "rollouts count training and selection, not the test or a final comparison. Every gate",
        "ends when a step no longer fits.\n",
        f"Test score of the initial skill: {fixed.get('initial', 0.0):.3f}; of the initial skill",
        f"with all helpful lines: {fixed.get('all helpful lines', 0.0):.3f}.\n",
        "| rollouts | gate | test score of the final skill, mean ± s.e. | each seed | steps | used "
        f"| lines kept: {' / '.join(SORTS)} |",
        "|---|---|---|---|---|---|---|",
    ]
    for rollouts in BUDGETS:
        for way in WAYS:
            found = [one for one in played if (one.rollouts, one.way) == (rollouts, way)]
            if not found:
                continue
            kept = " / ".join(
                f"{statistics.fmean(one.lines.get(sort, 0) for one in found):.1f}" for sort in SORTS
            )
            each = ", ".join(f"{one.test:.2f}" for one in sorted(found, key=lambda o: o.seed))
            steps = statistics.fmean(one.steps for one in found)
            scores = _mean([one.test for one in found])
            used = statistics.fmean(one.spent for one in found)
            row = (rollouts, way, scores, each, f"{steps:.1f}", f"{used:.0f}", kept)
            lines.append(f"| {' | '.join(map(str, row))} |")
    lines += ["", *_reading(played), *_below(played, fixed.get("initial", 0.0)), ""]
    codes = {one.gate_code for one in played}
    if codes != {gate_code()}:
        lines += [
            "The sources of the gates were changed or moved since this was measured (fingerprint:",
            f"{', '.join(sorted(codes))}; now {gate_code()}).\n",
        ]
    return "\n".join(lines)


def _reading(runs: Sequence[Compared]) -> list[str]:
    """Paired differences between screening and the others, and what they say."""
    lines = []
    for rollouts in BUDGETS:
        scores = {(one.way, one.seed): one.test for one in runs if one.rollouts == rollouts}
        for other in WAYS[1:]:
            seeds = [s for w, s in scores if w == "screening" and (other, s) in scores]
            if len(seeds) < 2:
                continue
            differences = [scores["screening", s] - scores[other, s] for s in seeds]
            mean, error = statistics.fmean(differences), _error(differences)
            if abs(mean) <= 2 * error:
                verdict = "within two standard errors: no difference is shown"
            else:
                verdict = "screening is better" if mean > 0 else "screening is worse"
            lines.append(
                f"- {rollouts} rollouts, screening minus {other}, paired by seed: {mean:+.3f} "
                f"± {error:.3f} ({len(seeds)} seeds): {verdict}."
            )
    screened = [one for one in runs if one.way == "screening"]
    if screened:
        bad = statistics.fmean(
            one.lines.get("useless", 0) + one.lines.get("wrong", 0) for one in screened
        )
        lines.append(
            f"- The skills that screening composed hold {bad:.1f} useless or wrong lines on "
            "average: with this few rollouts per line a line stays when its estimate is barely "
            "positive. In `skillfit train` the ship test decides whether such a skill is handed "
            "over at all."
        )
    return lines


def _below(runs: Sequence[Compared], initial: float) -> list[str]:
    """Runs whose final skill is worse than the initial one."""
    lines = []
    for way in WAYS:
        worse = [one for one in runs if one.way == way and one.test < initial]
        if worse:
            total = sum(one.way == way for one in runs)
            at = ", ".join(f"seed {one.seed} at {one.rollouts}" for one in worse)
            lines.append(
                f"- {way}: in {len(worse)} of {total} runs the final skill scores below the "
                f"initial one ({at})."
            )
    return lines


def _ablation(found: dict[str, Any]) -> str:
    score = found["score"]
    units = sorted(found["units"], key=lambda unit: -unit["mean"])
    lines = [
        "## `skillfit ablate` on a skill with planted lines\n",
        f"{found['rollouts']} rollouts, {len(units)} lines; the whole skill is estimated to score",
        f"{score['mean']:.3f} (90 % interval {score['low']:.3f} … {score['high']:.3f}).",
        f"Rolled out on every item it scores {found['measured_score']:.3f}.",
        f"The cuts that it suggests save {found['tokens_before'] - found['tokens_after']} of",
        f"{found['tokens_before']} tokens.\n",
        "| worth | 80 % interval | decision | planted | line |",
        "|---|---|---|---|---|",
    ]
    for unit in units:
        text = unit["text"].strip().replace("|", "\\|")
        lines.append(
            f"| {unit['mean']:+.3f} | {unit['low']:+.3f} … {unit['high']:+.3f} | "
            f"{unit['decision']} | {unit['planted']} | {text} |"
        )
    lines += [
        "",
        "| planted | lines | mean worth | keep | unsure | cut |",
        "|---|---|---|---|---|---|",
    ]
    for sort in (*SORTS, "initial skill"):
        group = [unit for unit in units if unit["planted"] == sort]
        if not group:
            continue
        counts = [
            str(sum(unit["decision"] == decision for unit in group))
            for decision in ("keep", "unsure", "cut")
        ]
        worth = statistics.fmean(unit["mean"] for unit in group)
        lines.append(f"| {sort} | {len(group)} | {worth:+.3f} | {' | '.join(counts)} |")
    useful = [u["mean"] for u in units if u["planted"] in ("helpful", "overlapping")]
    others = [u["mean"] for u in units if u["planted"] in ("useless", "wrong")]
    width = statistics.fmean((u["high"] - u["low"]) / 2 for u in units)
    right = sum(a > b for a in useful for b in others)
    lines += [
        "",
        f"In {right} of {len(useful) * len(others)} pairs of a helpful or overlapping line with a",
        "useless or wrong one the first is estimated to be worth more. The intervals reach",
        f"{width:.3f} to each side on average. A rule concerns one kind of value in ten here, so",
        "most lines can be worth 0.1 at most, and this number of rollouts tells few of them apart.",
        "An example in the wrong format is not harmful by necessity: it also shows the model that",
        "values are to be changed.\n",
    ]
    return "\n".join(lines)


def _training(records: Sequence[dict[str, Any]]) -> str:
    lines = [
        "## Benchmarks, before and after training\n",
        "`skillfit train` with worked examples as edits and no optimizer model. The samples are",
        "small: these runs show that the path works, not how good the model is.\n",
        "| task | rollouts | selection before | test before | test, skill found | "
        "test, skill handed back | ship test | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in records:
        baseline = next((s for s in one["scores"] if s["name"] == "baseline"), None)
        before = f"{baseline['hard']:.3f} ({baseline['scored']} items)" if baseline else ""
        ship = one["ship"]
        verdict = one["finish_reason"]
        if ship:
            low, high = ship["interval"]
            verdict = f"{ship['verdict']}, {ship['difference']:+.3f} ({low:+.2f} … {high:+.2f})"
        test = {s["name"]: f"{s['hard']:.3f} ({s['scored']} items)" for s in one["scores"]}
        found = [test.get(f"test_{name}", "") for name in ("baseline", "final", "best")]
        lines.append(
            f"| `{one['tasks']}` | {one['rollouts']['scored']} | {before} | {' | '.join(found)} | "
            f"{verdict} | {one['seconds'] / 60:.0f} |"
        )
    return "\n".join([*lines, ""])
