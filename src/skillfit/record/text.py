"""A run in words: its result in one sentence, the numbers at the head of a page, what was used of
the budget, the commands that make sense next, and its progress as lines of text for `--plain`, for
logs and for runs from Python.

The sentence claims only what was measured: fresh rollouts at the end are evidence, scores during
training are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from skillfit.intervals import lift_of
from skillfit.models.protocol import Usage
from skillfit.plain_text import (
    budget_amount,
    change_interval,
    display_name,
    dollars,
    duration,
    label_of,
    mean_score,
    percent,
    points,
    quantity,
    score_change,
    with_interval,
    work_name,
)
from skillfit.record.record import Record, practice_models
from skillfit.run.control import RAISABLE
from skillfit.run.events import (
    AblationFinished,
    Discarded,
    EvaluationFinished,
    Event,
    GateDecided,
    PersonDecided,
    PreflightFinished,
    RunFinished,
    RunStarted,
    ShipTested,
    SkillsMeasured,
    SlowUpdateFinished,
    StepFinished,
    Stored,
    Warned,
)
from skillfit.run.records import (
    COMPOSED,
    DECIDED,
    LEAK_CHECK,
    Decision,
    ShipResult,
    saving_sentence,
    slow_update_epoch,
    slow_update_name,
)
from skillfit.run.store import CONFIG_FILE, HANDOFF, UNPROVEN_SKILL

HEARTBEAT = 30.0  # seconds without a line before one says how far the run is
_UNFINISHED = {
    "running": "Running, {where}",
    "waiting": "Waiting for answers to handoff prompts, {where}",
    "review": "Waiting for your approval of {edits}, {where}",
    "stopped": "Stopped {where}; it can be resumed",
}
_UNFINISHED_ABLATION = {
    "running": "Measuring what each part of the skill is worth.",
    "waiting": "Waiting for answers to handoff prompts before every part of the skill is measured.",
    "stopped": "Stopped before every part of the skill was measured; it can be resumed.",
}
_UNFINISHED_EVALUATION = {
    "running": "Measuring skills.",
    "waiting": "Waiting for answers to handoff prompts before every rollout is made.",
    "stopped": "Stopped before every rollout was made; the same `skillfit eval` command continues.",
}
_NOT_VERIFIED: Mapping[str, str] = {
    "improved": "The skill scores higher on the selection split; it was not checked on fresh"
    " rollouts",
    "unverified": "A suggestion, not verified: there are too few items for a selection split",
    "budget": "The budget was reached before the end, so nothing is verified",
    "infrastructure": "The run failed before it finished: there is no result for the skill",
}
_MEASURED_SKILLS = {
    "baseline": "initial skill",
    "test_baseline": "initial skill",
    "test_best": "skill handed back",
    "test_final": "last skill",
}
UNPRICED = "no price known"
TEST_ITEMS = "Test items of these"  # of the fresh rollouts


def verdict_sentence(record: Record) -> str:
    if record.ablation is not None:
        return ablation_sentence(record.ablation)
    if record.measured is not None:
        return measured_sentence(record.measured)
    if record.is_ablation and record.state in _UNFINISHED_ABLATION:
        return _UNFINISHED_ABLATION[record.state]
    if record.is_evaluation:
        return _UNFINISHED_EVALUATION.get(record.state, _UNFINISHED_EVALUATION["stopped"])
    if record.state == "finished":
        return _result(record) + _unproven(record) + _second_grader(record)
    if record.only_checked:
        return "Checked, not trained."
    if record.steps_done:
        where = f"after {record.steps_done} of {record.total_steps} steps"
    else:
        where = "before the first step was done"
    edits = quantity(len(record.to_review), "edit")
    return _UNFINISHED[record.state].format(where=where, edits=edits) + _so_far(record)


def verdict_in_short(record: Record) -> str:
    """Tell the verdict for the head of each page, beside the word for how the run ended; empty when
    there is no number to tell.
    """
    ship = record.compared
    if ship is not None:
        low, high = ship.interval or (ship.difference, ship.difference)
        return f"{points(ship.difference)} points ({points(low)} to {points(high)})"
    if record.only_checked:
        return ""
    if record.state != "finished" and record.total_steps:
        return f"step {record.steps_done} of {record.total_steps}"
    if record.gain is None or record.only_measures:
        return ""
    return f"{points(record.gain)} points, {record.doubt}" if record.doubt else "no gain"


def measured_sentence(event: SkillsMeasured) -> str:
    """Tell what `skillfit eval` found: whether each skill helps, where it was compared with no
    skill, and its score with its interval.
    """
    split = "" if event.split == "all" else f"{event.split} "
    scores = [
        f"{score.name} {percent(score.hard)} ({percent(score.low)} to {percent(score.high)})"
        if score.has_score
        else f"{score.name} has no score, because every rollout failed"
        for score in event.scores
    ]
    count = quantity(event.scores[0].planned, f"{split}rollout")
    lifts = [
        f"{score.name}: {lift_of(gain)}, {points(gain.mean)} points ({points(gain.low)} to "
        f"{points(gain.high)}) over no skill. "
        for score in event.scores
        if (gain := score.over_no_skill) is not None
    ]
    return f"{''.join(lifts)}Measured on {count} each: {', '.join(scores)}."


def lift_sentence(record: Record) -> str:
    """Tell whether the initial skill helps, as the check of a training run found. Empty for a run
    that began without a skill, and for one that only measures: its verdict says it.
    """
    if record.only_measures or not record.initial_skill.strip():
        return ""
    found = next((check.message for check in record.checks if check.name == "lift"), "")
    return found or "Not compared with no skill: skillfit eval --no-skill does that."


def ablation_sentence(event: AblationFinished) -> str:
    """Tell what `skillfit ablate` found: how much can go, and whether that was checked."""
    cut = sum(unit.decision == "cut" for unit in event.units)
    if event.all_zero:
        return "No rollout scored above 0, so nothing is known about the parts of the skill."
    if not cut:
        return "No part of the skill can be cut with confidence after these rollouts."
    if not event.shorter_skill:
        return f"All {cut} parts can be cut without loss, but then the skill would be empty."
    saved = event.tokens_before - event.tokens_after
    found = (
        f"{cut} of {len(event.units)} parts can be cut without loss:"
        f" {saved:,} of {event.tokens_before:,} tokens saved in every call."
    )
    if event.comparison is None:
        return found
    low, high = event.comparison.interval
    gain = f"{points(event.comparison.difference)} points ({points(low)} to {points(high)})"
    if event.holds:
        return f"{found} On fresh rollouts the shorter skill is as good: {gain}."
    scored = f"{percent(event.comparison.coverage)} of the rollouts were scored"
    return (
        f"{found} But fresh rollouts did not show that the shorter skill is as good: {gain},"
        f" {scored}."
    )


def _result(record: Record) -> str:
    reason, ship = record.finish_reason, record.compared
    before, after = record.point("ship_initial"), record.point("ship_best")
    if reason == "improved" and ship and ship.saving is not None:
        margin = record.config.settings.evaluation.margin
        return f"{saving_sentence(ship.saving, margin)} Score: {_gain(ship)}{_metric(record)}."
    if reason == "improved" and ship and before and after:
        change = f"{percent(before.score)} → {percent(after.score)}"
        return f"The skill is better: {change} on fresh rollouts{_metric(record)}, {_gain(ship)}."
    if reason == "improved" and ship:
        return f"The skill is better: {_gain(ship)} on fresh rollouts{_metric(record)}."
    if reason in ("inconclusive", "no_improvement") and ship and ship.saving is not None:
        return f"Not shown to be cheaper and not worse: {ship.reason}. Score: {_gain(ship)}."
    if reason == "no_improvement" and ship:
        return f"No improvement: {_gain(ship)} on fresh rollouts{_metric(record)}."
    if reason == "no_improvement":
        return "No improvement: no candidate beat the initial skill, which stays as it is."
    if reason == "inconclusive" and ship:
        detail = f", {ship.reason.rstrip('.')}" if ship.reason else ""
        return f"It is not clear whether the skill is better: {_gain(ship)}{detail}."
    if reason == "budget" and ship:
        return f"The budget ended training early. Ship test: {ship.verdict}, {_gain(ship)}."
    if reason in _NOT_VERIFIED:
        return _NOT_VERIFIED[reason] + _so_far(record, note="")
    return f"Ended ({display_name(reason)}){_so_far(record)}"


def _unproven(record: Record) -> str:
    return f" {unproven_sentence(UNPROVEN_SKILL)}" if record.unproven_skill else ""


def unproven_sentence(where: object) -> str:
    """Say that the run returns the initial skill, and `where` the skill is that it found."""
    return f"Improvement not proven. You get the initial skill; the candidate is in {where}."


def _second_grader(record: Record) -> str:
    gap = record.compared.gap if record.compared else None
    if gap is None:
        return ""
    differs = f"differs by {points(gap)} points" if round(gap, 3) else "is the same"
    return f" This is by the second grader; by the one trained on, the gain {differs}."


def _metric(record: Record) -> str:
    return "" if record.metric == "hard" else f" ({record.metric} score)"


def _gain(ship: ShipResult) -> str:
    low, high = ship.interval or (ship.difference, ship.difference)
    return f"{points(ship.difference)} points (90 % interval {points(low)} to {points(high)})"


def _so_far(record: Record, note: str = ", not verified") -> str:
    """Tell the best score seen so far, as an end of the sentence."""
    scores = record.selection_scores()
    if scores is None:
        return "; nothing is measured yet."
    about = "about " if record.selection_is_estimated else ""
    first, best = (f"{about}{percent(score)}" for score in scores)
    if best == first:
        return f"; the initial skill scores {first} on the selection split."
    label = "best" if record.is_over else "best so far"
    return f"; {label} {best}, initial skill {first} on the selection split{note}."


@dataclass(frozen=True, slots=True)
class Fact:
    name: str
    value: str
    note: str = ""


def facts(record: Record) -> list[Fact]:
    """Return the numbers at the head of a page."""
    found = []
    if record.ablation is not None:
        score = record.ablation.score
        interval = f"{percent(score.low)} to {percent(score.high)}, the whole skill"
        found.append(Fact("Score", percent(score.mean), interval))
    for measured in record.measured.scores if record.measured else ():
        note = f"{measured.scored} of {quantity(measured.planned, 'rollout')} scored"
        if measured.has_score:
            note = f"{percent(measured.low)} to {percent(measured.high)}, {note}"
        value = percent(measured.hard) if measured.has_score else "no score"
        found.append(Fact(measured.name, value, note))
    for row in comparisons(record):
        if record.changed:
            change = f"{row.difference}, {quantity(row.items, 'item')}"
            doubt = f", {record.doubt}" if record.doubt else ""
            found.append(Fact(row.name, f"{row.before} → {row.after}", change + doubt))
        else:
            found.append(Fact(row.name, row.before, quantity(row.items, "item")))
    tried = len(record.edits)
    if tried:
        skill = "unproven skill" if record.unproven_skill else "skill"
        found.append(Fact("Edits", f"{len(record.kept_edits)} in the {skill}", f"{tried} tried"))
    found.append(_size(record))
    used = f"{quantity(record.usage.calls, 'call')}, {quantity(record.usage.tokens, 'token')}"
    if record.usage.failed:
        used += f", {record.usage.failed:,} failed"
    found.append(Fact("Cost", dollars(record.usage.usd) or UNPRICED, used))
    found.append(Fact("Time", duration(record.seconds), quantity(record.rollouts, "rollout")))
    return found


def _size(record: Record) -> Fact:
    first, last = record.tokens
    if not record.only_measures:
        name = "Unproven skill" if record.unproven_skill else "Skill"
        note, (before, after) = f"{first:,} at the start", record.on_demand_tokens
        if before or after:
            note += f"; {after:,} more on demand, {before:,} at the start"
        return Fact(name, quantity(last, "token"), note)
    shorter = record.ablation.tokens_after if record.ablation else first
    note = f"{shorter:,} without what can be cut" if shorter != first else "in every call"
    return Fact("Skill", quantity(first, "token"), note)


def failed_calls(usage: Usage, given_up: Mapping[str, int]) -> str:
    """Say how many model calls failed, and which of the tokens are theirs; empty without any.
    `given_up`: those that were not answered in the end, by their kind.
    """
    if not usage.failed:
        return ""
    text = f"Failed model calls, repeated or given up: {usage.failed:,}"
    if given_up:
        kinds = ", ".join(f"{count:,} {display_name(kind)}" for kind, count in given_up.items())
        text += f" (given up: {kinds})"
    if usage.failed_tokens:
        text += f"; {usage.failed_tokens:,} of the {usage.tokens:,} tokens are theirs"
    return f"{text}."


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """The initial and the found skill on the same items."""

    name: str
    items: int
    before: str
    after: str
    difference: str


def comparisons(record: Record) -> list[ScoreComparison]:
    """Compare scores on fresh rollouts and on the test items of these, or on the selection split
    where the run ended before those.
    """
    found = []
    for name, first, last in (
        ("Fresh rollouts", "ship_initial", "ship_best"),
        (TEST_ITEMS if record.compared else "Test split", "test_baseline", _found_on_test(record)),
    ):
        before, after = record.point(first), record.point(last)
        if before and after:
            found.append(_comparison(name, after.items, before.score, after.score))
    for model in record.compared.models if record.compared else ():
        if model.before is not None and model.after is not None:
            name = f"With {model.type}"
            found.append(_comparison(name, model.items, model.before, model.after))
    scores, items = record.selection_scores(), record.data.splits.get("selection", 0)
    if not found and scores:
        return [_comparison("Selection split", items, *scores)]
    return found


def _found_on_test(record: Record) -> str:
    """Name the point of the skill that was found. A run that hands back the initial skill measured
    that as the best one, and what it found as the last.
    """
    return "test_final" if record.unproven_skill and record.point("test_final") else "test_best"


def _comparison(name: str, items: int, before: float, after: float) -> ScoreComparison:
    change = f"{points(after - before)} points"
    return ScoreComparison(name, items, percent(before), percent(after), change)


@dataclass(frozen=True, slots=True)
class CapUse:
    """What was used of one kind, beside the cap where one is set."""

    name: str
    text: str  # "120 calls"
    used: float
    cap: float | None
    cap_text: str  # "1,000"


def cap_uses(
    used: Usage, seconds: float, caps: Mapping[str, float], rollouts: int | None = None
) -> list[CapUse]:
    """List what a run used, in the order in which terminal and studio show it."""
    amounts: dict[str, float | None] = {
        "usd": used.usd,
        "calls": used.calls,
        "tokens": used.tokens,
        "minutes": seconds / 60,
        "rollouts": rollouts,
    }
    if rollouts is None:
        del amounts["rollouts"]
    found = []
    for name, amount in amounts.items():
        text = UNPRICED if amount is None else budget_amount(name, amount)
        cap = caps.get(name)
        counted = name not in ("usd", "minutes")
        cap_text = "" if cap is None else f"{cap:,.0f}" if counted else budget_amount(name, cap)
        found.append(CapUse(name, text, amount or 0.0, cap, cap_text))
    return found


def fullest_cap(record: Record) -> str:
    """Name the cap of which the largest share is used, of those that can be raised; empty if none
    is set.
    """
    uses = cap_uses(record.usage, record.seconds, record.caps, record.rollouts)
    shares = {use.name: use.used / use.cap for use in uses if use.cap and use.name in RAISABLE}
    return max(shares, key=shares.__getitem__, default="")


def resume_line(record: Record, run: str) -> str:
    """Return the command that resumes the run in the folder `run`; empty when it is over."""
    if record.is_over or record.is_evaluation:
        return ""
    if record.is_ablation:
        return _ablate_line(record, run, run)
    if record.finish_reason == "budget":
        cap = fullest_cap(record) or "usd"
        return f"skillfit resume {run} budget.{cap}={2 * record.caps.get(cap, 5):.12g}"
    return f"skillfit resume {run}"


def _ablate_line(record: Record, run: str, new_run: str) -> str:
    by = " --by paragraph" if record.ablated_by == "paragraph" else ""
    return f"skillfit ablate {run}/{CONFIG_FILE}{by} --run {new_run}"


def next_commands(record: Record) -> list[str]:
    """List commands that make sense now, with what they do."""
    run = record.path.replace(str(Path.home()), "~")
    if record.is_evaluation:
        return [f"skillfit export {run}   # write every answer as files"]
    resume = resume_line(record, run)
    lines = []
    if record.state == "review":
        first = record.to_review[0].id
        lines.append(f"skillfit steer {run} approve {first}   # or decline, for each of the edits")
        lines.append(f"{resume}   # when all have their answer")
    elif record.state == "stopped":
        lines.append(f"{resume}   # nothing that was paid for is paid again")
    elif record.state == "waiting":
        lines.append(f"{resume}   # after the prompts in {run}/{HANDOFF} are answered")
    elif record.finish_reason == "improved":
        lines.append(f"skillfit apply {run}   # put the skill into its folder")
    elif record.failed:
        lines.append(f"{resume}   # when the cause of the failures is fixed")
    elif record.finish_reason == "budget":
        lines.append(f"{resume}   # with a higher budget")
    again = f"{run}-again"
    repeat = f"skillfit train {run}/{CONFIG_FILE} --run {again}"
    if record.is_ablation:
        repeat = _ablate_line(record, run, again)
    lines.append(f"{repeat}   # repeat the run")
    return lines


class ProgressLines:
    """A listener that hands lines to `write`. Events that a resumed run replays print nothing.

    `record` returns the record so far, for the line that `tick` writes. `again`: the same command
    has printed how the run began.
    """

    def __init__(
        self, write: Callable[[str], None], record: Callable[[], Record], *, again: bool = False
    ) -> None:
        self._write = write
        self._record = record
        self._again = again
        self._since = time.time()
        self._begun = self._last_line = time.monotonic()
        self._replayed = 0
        self._resumed = again
        self._tested: set[str] = set()  # hashes of skills

    def __call__(self, stored: Stored) -> None:
        if self._again and isinstance(stored.event, RunStarted):
            return
        ended = isinstance(stored.event, RunFinished)
        replayed = stored.at < self._since and not isinstance(stored.event, RunStarted)
        if replayed and not ended:
            self._replayed += 1
            return
        if self._replayed and not self._resumed:  # later ones are parts of the new work
            known = quantity(self._replayed, "recorded event")
            if ended:
                self.say(f"The run was finished already: nothing was sent again ({known}).")
            else:
                self.say(f"Resuming where the run stopped ({known}).")
            self._resumed = True
        if isinstance(stored.event, EvaluationFinished) and stored.event.split == "test":
            if stored.event.skill_hash in self._tested:
                return  # the skill that was found is the one that is handed back
            self._tested.add(stored.event.skill_hash)
        for line in event_lines(stored.event):
            self.say(line)

    def say(self, message: str) -> None:
        self._last_line = time.monotonic()
        self._write(message)

    def tick(self) -> None:
        """Write a line now and then, so that a log shows that the run is alive."""
        now = time.monotonic()
        if now - self._last_line < HEARTBEAT:
            return
        record = self._record()
        stage = record.running_stage
        if stage is None:
            if not record.stages:  # models are loaded and tried before the first stage
                self.say(f"... waiting for the first reply, {duration(now - self._begun)}")
            return
        where = f"step {stage.step}, " if stage.step else ""
        name = work_name(stage.stage)
        total = f" of {stage.total}" if stage.total >= stage.done else ""
        done = f": {stage.done}{total} rollouts" if stage.total else ""
        left = time_left(record)
        self.say(f"... {where}{name}{done}{f', {left}' if left else ''}")


def time_left(record: Record) -> str:
    """Say how long the training steps will take; after the last one, the stage that runs."""
    if record.seconds_left:
        return f"about {duration(record.seconds_left)} of training left"
    stage = record.running_stage
    if stage is None or not stage.seconds_left or record.steps_done < record.total_steps:
        return ""
    return f"about {duration(stage.seconds_left)} left of this stage"


def event_lines(event: Event) -> list[str]:
    """Return what the plain terminal prints for an event; most events print nothing."""
    if isinstance(event, RunStarted):
        return [_started(event), "Scores are means over items, from 0 to 1."]
    if isinstance(event, PreflightFinished):
        return [
            f"check {check.name}: {check.message}"
            for check in event.checks
            if check.verdict != "go"
        ]
    if isinstance(event, EvaluationFinished):
        during_steps = event.name not in ("baseline", COMPOSED) and event.split != "test"
        return [] if during_steps else [_evaluated(event)]
    if isinstance(event, GateDecided):
        return [_decided(event)]
    if isinstance(event, StepFinished):
        decided = event.action in DECIDED  # the line of the decision says more
        return [] if decided else [f"step {event.step}: {display_name(event.action)}"]
    if isinstance(event, SlowUpdateFinished):
        if event.action in get_args(Decision):  # the line of the decision says more
            return []
        name = decision_name(slow_update_name(event.epoch))
        return [f"{name}: {display_name(event.action)}"]
    if isinstance(event, ShipTested):
        return [_shipped(event)]
    if isinstance(event, PersonDecided):
        return [f"request {event.number}: {event.action} {event.target}".rstrip()]
    if isinstance(event, Discarded) and event.stage == LEAK_CHECK:
        return [f"leak check blocked {event.blocked}"]
    if isinstance(event, Discarded):
        return [f"{work_name(event.stage)}: not used: {event.reason}"]
    return [f"warning: {event.message}"] if isinstance(event, Warned) else []


def _started(event: RunStarted) -> str:
    splits = ", ".join(f"{count} {name}" for name, count in event.splits.items())
    agent = event.model_of("agent") or "your agent"
    practice = practice_models(agent, event.model_of("optimizer"))
    what = f"Training {event.skill_name} for {agent}"
    if practice:
        what += f" ({practice}, no language model)"
    steps = quantity(event.total_steps, "step")
    return f"{what}: {splits} items, {steps}."


def _evaluated(event: EvaluationFinished) -> str:
    name = "test split" if event.split == "test" else event.name.replace("_", " ")
    skill = _MEASURED_SKILLS.get(event.name, "skill")
    if not event.has_score:
        return f"{name}: {skill} has no score: no {event.split} item was scored"
    if event.name == COMPOSED:
        return f"final skill: selection score about {mean_score(event.hard)}"
    score = mean_score(event.hard)
    if abs(event.soft - event.hard) > 1e-9:
        score += f" (soft {mean_score(event.soft)})"
    return (
        f"{name}: {skill} scores {score} on {quantity(event.scored_items, f'{event.split} item')}"
    )


def decision_name(name: str) -> str:
    """Return the name of a decision as screens show it: "step 3", "measuring 1", "writing edits
    after epoch 2".
    """
    epoch = slow_update_epoch(name)
    if epoch is not None:
        return f"{work_name('slow_update')} after epoch {epoch}"
    return label_of(name)


def _decided(event: GateDecided) -> str:
    """Describe the decision in one line: with a pool what changed in it, else the comparison."""
    name = decision_name(event.name)
    if event.effects or (event.score is not None and event.score.estimated):
        counts = [
            f"{sum(effect.status == status for effect in event.effects)} {status}"
            for status in ("promoted", "pending", "dropped")
        ]
        score = f"selection score about {mean_score(event.score.mean)}" if event.score else ""
        return f"{name}: {score}; {event.reason} (edits: {', '.join(counts)})"
    found, (low, high) = event.evidence, event.evidence.interval
    difference = f"selection score {with_interval(found.difference, low, high)}"
    counts_text = f"{len(found.fixed)} fixed, {len(found.broken)} broken"
    if not found.fixed and not found.broken and (found.higher or found.lower):
        counts_text = f"{found.higher} items better, {found.lower} worse"
    decision = display_name(event.decision)
    return f"{name}: {decision}, {difference}, {counts_text}, {found.rollouts} rollouts"


def _shipped(event: ShipTested) -> str:
    if event.interval is None:
        return f"ship test: {event.verdict}: {event.reason}"
    low, high = event.interval
    gain = f"score {score_change(event.difference)} on fresh rollouts"
    line = f"ship test: {event.verdict}, {gain} (90 % interval {change_interval(low, high)})"
    if event.saving is not None:
        line += f", {-event.saving.mean:+.0%} tokens"
    if event.gap is not None:
        line += f"; {score_change(event.difference + event.gap)} under the training grader"
    return line
