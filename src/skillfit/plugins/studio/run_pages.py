"""The pages of one run, and below them the actions that change it: decisions about edits, stop and
resume, handoff answers, apply and undo. Each action does what a command does, and says which.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from skillfit.cli.apply import plan_change
from skillfit.cli.train import open_training_run
from skillfit.errors import Exit, InputError, SkillfitError
from skillfit.models.providers.handoff import Pending
from skillfit.plain_text import budget_amount, quantity, shorten
from skillfit.plugins.studio.commands import as_typed, check_run_name, run_command
from skillfit.plugins.studio.site import (
    ListPage,
    Studio,
    number_in,
    page_of,
    run_url,
    steps_in,
    stream_parts,
)
from skillfit.record.labels import label_run, read_labels
from skillfit.record.record import (
    EditRecord,
    GateSummary,
    PersonDecision,
    Record,
    SkillVersion,
    by_effect,
)
from skillfit.record.steering import (
    STOPPING,
    answer_prompt,
    steer_run,
    waiting_prompts,
    when_followed,
)
from skillfit.record.text import (
    CapUse,
    Fact,
    cap_uses,
    facts,
    fullest_cap,
    next_commands,
    time_left,
)
from skillfit.report import open_details
from skillfit.report.charts import (
    PANELS,
    StepRange,
    candidates_plot,
    edit_row,
    effect_history,
    effect_row,
    forest_plot,
    result_chart,
    score_chart,
)
from skillfit.report.html_report import (
    PageData,
    ShownSettings,
    SkillLine,
    html_report,
    settings_of_config,
    skill_lines,
    unit_forest,
    unit_lines,
)
from skillfit.report.run_details import (
    StepDetails,
)
from skillfit.run.control import (
    EDIT_ACTIONS,
    NOTE_ACTIONS,
    RAISABLE,
    SteeringRequest,
    cap_amount,
    decision_about,
    stop_run,
)
from skillfit.run.events import RolloutFinished
from skillfit.run.store import CONFIG_FILE, UNPROVEN_SKILL, in_use
from skillfit.skill import Hunk, diff_hunks, estimate_tokens
from skillfit.skill.parts import on_demand_tokens

_EDITS = 60  # of the pool on the overview
_FIRST_EDITS = 20  # shown before the rest is opened
_OPERATIONS = {
    "append": "Adds text at the end",
    "insert_after": "Inserts text",
    "insert_before": "Inserts text",
    "replace": "Replaces text",
    "delete": "Deletes text",
    "move": "Moves text from the body",
    "write": "Writes the script",
}
# Commands that measure a version of a skill in a run of their own, with their options.
_MEASUREMENTS = {"eval": ["--no-skill"], "ablate": []}
_GATES = 50  # of a page
_ROLLOUTS = 60  # of a page
_LONGEST = 200  # characters of a form's field in an address
_TABS = ("run", "log", "about")  # pages that are made of the parts of `RunPage`
_CHOICES = ("cap", "amount", "edit", "page", "from", "to")  # of a query
_PARTS = (
    "bar",
    "head",
    "stages",
    "scores",
    "pool",
    "side",
    "gates",
    "notices",
    "log",
    "cost",
    "about",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(PageData):
    """The overview of a run, its steps, and its settings. The parts of these pages, which are
    updated while it runs, use the same names.
    """

    template: ClassVar = "run.html.j2"

    tab: str
    name: str
    record: Record
    facts: Sequence[Fact]
    result: Markup
    chart: Markup
    steps: StepRange | None  # that the chart shows; None: all
    small_charts: Sequence[Markup]
    candidates: Markup  # of a gate that judges whole candidates
    pool: Markup
    pool_rest: Markup  # edits that are shown when the list is opened
    pool_rest_count: int
    pool_cut: int  # those of the rest that are not shown
    pool_steps: Sequence[int]
    dropped: Markup
    dropped_count: int
    dropped_cut: int
    chosen: ChosenEdit | None  # for the panel beside the list
    gates: ListPage[GateSummary]
    caps: Sequence[CapUse]
    raisable: Sequence[str]
    chosen_cap: str
    typed_amount: str
    live_url: str
    time_left: str
    commands: Sequence[str]
    # Asked behind the badge that says "starting": a process may end while the page is written.
    start_failure: Callable[[], str]
    settings: ShownSettings


@dataclass(frozen=True, slots=True)
class ChosenEdit:
    """An edit with what its row in the list leaves out."""

    edit: EditRecord
    history: Markup
    operation: str
    behind: Mapping[str, RolloutFinished]  # item -> the rollout that the edit was written from
    decisions: Sequence[PersonDecision]
    decided: SteeringRequest | None  # the decision that can be taken back


def chosen_edit(record: Record, edit_id: str) -> ChosenEdit:
    found = record.edit(edit_id)
    if found is None:
        raise HTTPException(404, "The run has no such edit.")
    with open_details(Path(record.path)) as details:
        batch = details.training_rollouts(found.step)
    return ChosenEdit(
        edit=found,
        history=effect_history(found.history, 340, 130),
        operation=_OPERATIONS.get(found.edit.op, found.edit.op),
        behind={row.item: row for row in batch if row.item in found.items},
        decisions=[one for one in record.decisions if one.target == found.id],
        decided=decision_about(Path(record.path), found.id),
    )


def tab_page(studio: Studio, request: Request, record: Record) -> RunPage:
    """Collect what a tab of the run's page shows. After a refused budget, `cap` and `amount` of the
    query are what was typed.
    """
    name, query = str(request.path_params["name"]), request.query_params
    tab = request.url.path.split("/")[1]
    if tab not in _TABS:  # a stream of updates, for the page that `tab` of the query names
        tab = query.get("tab", "run")
    typed = {key: query[key] for key in _CHOICES if key in query}
    ranked = by_effect(record.edits)
    dropped = [edit for edit in ranked if edit.in_best is False or edit.standing == "dropped"]
    left_out = {edit.id for edit in dropped}
    pool = [edit for edit in ranked if edit.id not in left_out]
    splits = ["selection", "test"] if record.compared else [*PANELS]
    steps = steps_in(request)
    return RunPage(
        tab=tab,
        name=name,
        record=record,
        facts=facts(record),
        result=result_chart(record),
        chart=score_chart(record, 720, 270, splits, f"/step/{{}}/{quote(name)}", steps),
        steps=steps,
        small_charts=[
            score_chart(record, 340, 260, ["selection"], steps=steps),
            score_chart(record, 340, 260, ["ship", "test"]),
        ],
        candidates=Markup("") if any(edit.effect for edit in ranked) else _candidates(record),
        pool=_pool(name, record, pool[:_FIRST_EDITS]),
        pool_rest=_forest(name, pool[_FIRST_EDITS:_EDITS]),
        pool_rest_count=max(0, len(pool) - _FIRST_EDITS),
        pool_cut=max(0, len(pool) - _EDITS),
        pool_steps=sorted({step for edit in record.edits for step in edit.history}),
        dropped=_forest(name, dropped[:_EDITS]),
        dropped_count=len(dropped),
        dropped_cut=max(0, len(dropped) - _EDITS),
        chosen=chosen_edit(record, query["edit"]) if query.get("edit") else None,
        gates=page_of(record.gates[::-1], number_in(request, "page"), _GATES, query),
        caps=cap_uses(record.usage, record.seconds, record.caps, record.rollouts),
        raisable=RAISABLE,
        chosen_cap=typed.get("cap") or fullest_cap(record),
        typed_amount=typed.get("amount", ""),
        live_url=run_url("live", name, tab=tab, **typed),
        time_left=time_left(record),
        commands=next_commands(record),
        start_failure=lambda: _start_failure(studio, record),
        settings=settings_of_config(record.config),
    )


def _start_failure(studio: Studio, record: Record) -> str:
    """Say why the run could not be resumed. A resumed run that ended says so itself."""
    if record.state in ("running", "waiting") or record.is_over:
        return ""
    ended = record.state == "finished"
    return studio.starter.failure(Path(record.path), (Exit.BUG, Exit.USAGE) if ended else None)


def _candidates(record: Record) -> Markup:
    return candidates_plot(record.gates[-_EDITS:])


def _pool(name: str, record: Record, edits: list[EditRecord]) -> Markup:
    if record.ablation is not None:
        return unit_forest(record.ablation)
    return _forest(name, edits)


def _forest(name: str, edits: list[EditRecord]) -> Markup:
    rows = [edit_row(edit, run_url("run", name, edit=edit.id)) for edit in edits]
    return forest_plot(rows)


def run_page(studio: Studio, request: Request) -> Response:
    name = str(request.path_params["name"])
    record = studio.record(request)
    if not record.has_begun and record.state == "running" and "/" not in name:
        return studio.go_to(run_url("starting", name))
    return studio.page(request, tab_page(studio, request, record))


def run_live(studio: Studio, request: Request) -> Response:
    followed = studio.library.follow(studio.find(request))
    seen: tuple[Record, bool] | None = None
    kept: dict[str, str] = {}

    def look() -> Mapping[str, str]:
        nonlocal seen
        record = followed.record()
        now = (record, studio.starter.is_alive(followed.path))
        if seen != now:
            seen = now
            page = tab_page(studio, request, record)
            for part in _PARTS:
                kept[part] = studio.render(page, f"run_{part}.html.j2", here=page.tab)
        return kept

    def is_over() -> bool:
        return seen is not None and seen[0].is_over and not seen[1]

    return stream_parts(studio, request, look, is_over)


@dataclass(frozen=True, slots=True)
class PoolPart(PageData):
    template: ClassVar = "pool.html.j2"

    pool: Markup


def pool_part(studio: Studio, request: Request) -> Response:
    """Show the pool of edits as it was after a step."""
    name, step = str(request.path_params["name"]), number_in(request, "step")
    pool = pool_after(name, studio.record(request), step)
    return HTMLResponse(studio.render(PoolPart(pool)))


def pool_after(name: str, record: Record, step: int) -> Markup:
    then = [edit.history[step] for edit in record.edits if step in edit.history]
    return forest_plot(
        [
            effect_row(edit, edit.status, href=run_url("run", name, edit=edit.id))
            for edit in by_effect(then)
        ]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage(PageData):
    template: ClassVar = "step.html.j2"

    name: str
    record: Record
    number: int
    summary: GateSummary | None
    details: StepDetails
    batch: ListPage[RolloutFinished]
    scored: Sequence[float]
    pool: Markup


def step_page(studio: Studio, request: Request) -> Response:
    name, number = str(request.path_params["name"]), int(request.path_params["number"])
    record = studio.record(request)
    with open_details(Path(record.path)) as details:
        found = details.step(number)
    if found is None:
        raise HTTPException(404, f"The run has no step {number}.")
    rows = sorted(found.rollouts, key=lambda row: (row.hard is not None, row.hard or 0.0, row.item))
    page = StepPage(
        name=name,
        record=record,
        number=number,
        summary=next((gate for gate in record.gates if gate.step == number), None),
        details=found,
        batch=page_of(rows, number_in(request, "page"), _ROLLOUTS, request.query_params),
        scored=[row.hard for row in found.rollouts if row.hard is not None],
        pool=pool_after(name, record, number),
    )
    return studio.page(request, page)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillPage(PageData):
    template: ClassVar = "skill.html.j2"

    name: str
    record: Record
    version: SkillVersion
    other: SkillVersion | None  # that it is compared with
    lines: Sequence[SkillLine]
    files: Mapping[str, Sequence[SkillLine]]
    tokens: int
    demand: int  # tokens of the files
    hunks: Sequence[Hunk]
    measurements: Sequence[str]  # commands that measure the version; empty: it cannot be measured


def skill_page(studio: Studio, request: Request) -> Response:
    record, query = studio.record(request), request.query_params
    usual = "unproven" if record.unproven_skill else "initial" if record.only_measures else "best"
    version = _version(record, query.get("version", usual))
    other = _version(record, query["against"]) if query.get("against") else None
    show = partial(skill_lines, edits=record.edits)
    if record.ablation is not None and version.text == record.initial_skill:
        show = partial(unit_lines, units=record.ablation.units)
    page = SkillPage(
        name=str(request.path_params["name"]),
        record=record,
        version=version,
        other=other,
        lines=show(version.text),
        files={file: show(text, file=file) for file, text in version.files.items()},
        tokens=estimate_tokens(version.text),
        demand=on_demand_tokens(version.skill),
        hunks=diff_hunks(other.skill, version.skill) if other else (),
        measurements=() if studio.library.is_run else _typed_measurements(record, version),
    )
    return studio.page(request, page)


def _typed_measurements(record: Record, version: SkillVersion) -> list[str]:
    config = _measured_config(record, version)
    commands = [_measurement(one, config, f"{record.path}-{one}") for one in _MEASUREMENTS]
    return [as_typed(arguments) for arguments in commands] if config else []


def _measurement(command: str, config: Sequence[str], run: str) -> list[str]:
    return [command, *config, *_MEASUREMENTS[command], "--run", run]


def _measured_config(record: Record, version: SkillVersion) -> list[str]:
    run = Path(record.path)
    files = {"initial": "", "best": "best_skill.md", "unproven": UNPROVEN_SKILL}
    file = files.get(version.name)
    if file is None or record.only_measures or not (run / (file or CONFIG_FILE)).is_file():
        return []
    return [str(run / CONFIG_FILE), *([f"env.skill={run / file}"] if file else [])]


def _version(record: Record, name: str) -> SkillVersion:
    found = record.version_of(name)
    if found is None and name.isdecimal():  # a step that left the skill as it was
        found = record.skill_after(int(name))
    if found is None:
        raise HTTPException(404, f"The run has no skill version {name!r}.")
    return found


def report_page(studio: Studio, request: Request) -> Response:
    """Show the report as a separate page. It brings a policy with the hashes of its script."""
    text = html_report(studio.record(request))
    return HTMLResponse(text, headers={"Content-Security-Policy": "frame-ancestors 'none'"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPage(PageData):
    """What applying would change in the file as it is now, and the buttons for it."""

    template: ClassVar = "apply.html.j2"

    name: str
    record: Record
    document: str  # that is changed
    hunks: Sequence[Hunk]
    lines: Sequence[SkillLine]
    objection: str  # why it has to be confirmed
    problem: str  # why it cannot be
    inside: bool  # the skill lies in a folder that the studio may change


def apply_page(studio: Studio, request: Request) -> Response:
    record = studio.record(request)
    inside = bool(record.data.skill) and studio.folders.holds(record.data.skill)
    change, objection, problem = None, "", ""
    if inside and record.state == "finished" and not record.only_measures and not record.applied:
        try:
            run = open_training_run(Path(record.path))
            try:
                change = plan_change(run, None, force=False)
            except InputError as error:
                objection = error.message
                change = plan_change(run, None, force=True)
        except SkillfitError as error:
            problem = str(error)
    old = change.present if change else record.initial
    new = change.wanted if change else record.initial if record.unproven_skill else record.found
    page = ApplyPage(
        name=str(request.path_params["name"]),
        record=record,
        document=str(change.document) if change else record.data.skill,
        hunks=diff_hunks(old, new),
        lines=skill_lines(new.text, record.edits),
        objection=objection,
        problem=problem,
        inside=inside,
    )
    return studio.page(request, page)


@dataclass(frozen=True, slots=True)
class WaitingPrompt:
    """A handoff prompt with the answer that is in its file so far."""

    id: str
    text: str
    answer: str
    problem: str  # why that answer cannot be used


def _waiting(prompt: Pending) -> WaitingPrompt:
    text = prompt.prompt.read_text(encoding="utf-8", errors="replace")
    answer = ""
    if prompt.answer.is_file():
        answer = prompt.answer.read_text(encoding="utf-8", errors="replace")
    return WaitingPrompt(prompt.id, text, answer, prompt.problem)


@dataclass(frozen=True, slots=True)
class HandoffPage(PageData):
    """The prompts that wait for an answer."""

    template: ClassVar = "handoff.html.j2"

    name: str
    record: Record
    prompts: Sequence[WaitingPrompt]


def handoff_page(studio: Studio, request: Request) -> Response:
    record = studio.record(request)
    prompts = [_waiting(prompt) for prompt in waiting_prompts(Path(record.path))]
    return studio.page(request, HandoffPage(str(request.path_params["name"]), record, prompts))


async def act(studio: Studio, request: Request) -> Response:
    """Make one change to a run. The answer leads back to the page it was made on, with a
    message.
    """
    name = str(request.path_params["name"])
    form = await studio.form(request)
    do, target, rollout = (form.get(field, "") for field in ("do", "target", "rollout"))
    text = form.get("text", "").replace("\r\n", "\n")
    run = studio.find(request)
    back = await asyncio.to_thread(_page_with_form, studio, run, name, do, target)
    if do in NOTE_ACTIONS:
        back = run_url("items", name, item=target, key=rollout) + "#note"
    try:
        if do == "measure":
            started = await asyncio.to_thread(_measure, studio, run, target, text, form)
            return studio.go_to(run_url("starting", started))
        message = await _carry_out(studio, run, do, target, text, rollout)
    except SkillfitError as error:
        if do == "budget":  # the form keeps what was typed
            typed = {"cap": target, "amount": text}
            back = run_url("run", name, **{key: shorten(typed[key], _LONGEST) for key in typed})
        return studio.go_to(back, str(error), failed=True)
    return studio.go_to(back, message, while_running=do == "stop")


def _page_with_form(studio: Studio, run: Path, name: str, do: str, target: str) -> str:
    """Return the address of the page that has the form of an action."""
    if do in ("approve", "decline"):
        return run_url("run", name) + "#review"
    if do in EDIT_ACTIONS and studio.library.follow(run).record().edit(target):
        return run_url("run", name, edit=target) + "#edit"
    if do in ("apply", "undo"):
        return run_url("apply", name)
    if do == "measure":
        return run_url("skill", name, version=target) + "#measure"
    if do in ("tag", "archive", "unarchive"):
        return run_url("about", name)
    return run_url("handoff" if do == "answer" else "run", name)


async def _carry_out(
    studio: Studio, run: Path, do: str, target: str, text: str, rollout: str
) -> str:
    """Do what was asked for; returns what to tell the person."""
    if do in EDIT_ACTIONS or do in NOTE_ACTIONS:
        return await asyncio.to_thread(_steer, run, do, target, text, rollout)
    if do == "stop":
        await asyncio.to_thread(stop_run, run)
        return STOPPING
    if do == "budget":
        return await asyncio.to_thread(_raise_budget, studio, run, target, text)
    if do == "resume":
        return await asyncio.to_thread(_resume, studio, run, [])
    if do in ("apply", "undo"):
        return await _apply(studio, run, do, force=text == "force")
    if do in ("tag", "archive", "unarchive"):
        return await asyncio.to_thread(_label, run, do, text)
    if do == "answer":
        left = await asyncio.to_thread(answer_prompt, run, target, text)
        rest = f"{quantity(left, 'prompt')} left." if left else "Resume the run now."
        return f"Answered {target}. {rest}"
    raise HTTPException(400, f"Unknown action {do!r}.")


def _measure(
    studio: Studio, run: Path, version: str, command: str, limits: Mapping[str, str]
) -> str:
    """Start `eval` or `ablate` of a version of the skill, as a run beside the others. Returns the
    name of that run.
    """
    record = studio.library.follow(run).record()
    config = _measured_config(record, _version(record, version))
    if command not in _MEASUREMENTS or not config or studio.library.is_run:
        raise InputError("This version of the skill cannot be measured from here.")
    if usd := limits.get("usd", "").strip():
        config.append(f"budget.usd={cap_amount('usd', usd):.12g}")
    elif "no_limit" not in limits:
        raise InputError("Set a budget in dollars, or choose “no limit”.")
    first = f"{studio.library.name_of(run).replace('/', '-')}-{command}"
    names = (first if number == 1 else f"{first}-{number}" for number in count(1))
    name = next(name for name in names if not (studio.library.folder / name).exists())
    new = studio.folders.resolve(studio.library.folder / check_run_name(name))
    arguments = [*_measurement(command, config, str(new)), "--json"]
    studio.starter.start(new, arguments, folder=_command_folder(studio, record))
    return name


def _label(run: Path, do: str, text: str) -> str:
    """Set the tags of a run, or whether lists leave it out."""
    if do != "tag":
        label_run(run, archived=do == "archive")
        command = f"skillfit tag {run.name} --{'no-' * (do == 'unarchive')}archive"
        return f"The run is {'archived' if do == 'archive' else 'listed again'}: {command}"
    wanted = text.replace(",", " ").split()
    before = read_labels(run).tags
    labels = label_run(run, wanted, [tag for tag in before if tag not in wanted])
    return f"Tags: {', '.join(labels.tags) or 'none'}"


def _steer(run: Path, do: str, target: str, text: str, rollout: str) -> str:
    request = steer_run(run, do, target, text, rollout)
    return f"Recorded: {request.command(run.name)}. {when_followed(run)}"


def _raise_budget(studio: Studio, run: Path, cap: str, amount: str) -> str:
    """Raise a cap: the running loop reads it; a stopped run is resumed with it."""
    _refuse_lower_cap(studio.library.follow(run).record(), cap, amount)
    steer_run(run, "budget", cap, amount)
    if in_use(run):
        raised = budget_amount(cap, cap_amount(cap, amount))
        return f"The run uses the budget of {raised} after its current step."
    return _resume(studio, run, [f"budget.{cap}={amount}"])


def _refuse_lower_cap(record: Record, cap: str, typed: str) -> None:
    """Refuse an amount with which the run would stop at once."""
    amount = cap_amount(cap, typed)
    asked = [
        cap_amount(cap, decision.text)
        for decision in record.decisions
        if decision.action == "budget" and decision.target == cap and not decision.done
    ]
    present = max([record.caps.get(cap, 0.0), *asked])
    refused = f"A budget of {budget_amount(cap, amount)} is not higher than"
    if amount <= present:
        raise InputError(f"{refused} the present one ({budget_amount(cap, present)}).")
    for use in cap_uses(record.usage, record.seconds, record.caps):
        if use.name == cap and amount <= use.used:
            raise InputError(f"{refused} what the run has used ({use.text}).")


def _resume(studio: Studio, run: Path, overrides: list[str]) -> str:
    record = studio.library.follow(run).record()
    if record.is_ablation:
        arguments = ["ablate", str(run / CONFIG_FILE), "--run", str(run), "--json"]
    else:
        arguments = ["resume", str(run), *overrides, "--json"]
    studio.starter.start(run, arguments, folder=_command_folder(studio, record))
    return f"Started: {as_typed(arguments)}"


def _command_folder(studio: Studio, record: Record) -> Path | None:
    """Return where commands about a run are run: Python modules that its config names are found
    there.
    """
    if studio.project is not None:
        return studio.project
    folder = record.config.settings.env.folder
    return Path(folder) if folder and Path(folder).is_dir() else None


async def _apply(studio: Studio, run: Path, do: str, *, force: bool) -> str:
    record = await asyncio.to_thread(studio.library.follow(run).record)
    studio.folders.resolve(record.data.skill)
    arguments = ["apply", str(run), "--undo" if do == "undo" else "--yes", *["--force"] * force]
    result = await run_command(arguments, folder=_command_folder(studio, record))
    if result.error:
        raise InputError(result.error)
    done = "Restored the former text" if do == "undo" else "Changed the skill"
    return f"{done}: {record.data.skill}. The same as: {result.command}"
