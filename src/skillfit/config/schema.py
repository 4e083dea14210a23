"""Every setting of skillfit, with its default. Unknown keys are errors; every key has an effect.

The sections of the loop (`train`, `gradient`, `optimizer`, `evaluation`) and their keys have the
names that users of SkillOpt know. The docstrings of the fields are the reference in docs/ and in
`skillfit docs`; `describe_keys` lists them.

Recipes are named sets of settings. They fill in what the user does not set. `default` is the values
of this schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import annotated_types
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from skillfit.extensions import extension_names, is_extension
from skillfit.models.json_text import JsonObject
from skillfit.models.protocol import CONCURRENCY
from skillfit.models.registry import ModelSpec, map_file, names_cli_program, split_id
from skillfit.settings import Number, Settings, nested_model
from skillfit.skill.parts import ONLY_BODY, Part

_AGENTS = ("chat", "tools", "cli")  # values of env.agent that are built in
PROGRAM_AGENTS = ("tools", "cli")  # those of them that run programs
ROLLOUT_SECONDS, PROGRAM_SECONDS = 120.0, 600.0  # what a rollout may take without env.exec_timeout
M = TypeVar("M", bound=BaseModel)
Metric = Literal["hard", "soft", "mixed"]
Scheduler = Literal["constant", "linear", "cosine", "autonomous"]
ControlMode = Literal["fixed", "autonomous", "none"]
PairPolicy = Literal["mixed", "changed", "unchanged"]
GraderSetting = str | JsonObject  # a name, or {name: settings}
UpdateMode = Literal["patch", "rewrite_from_suggestions", "full_rewrite_minibatch"]


class Section(Settings):
    """A part of the config, documented by field docstrings."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def _named_grader(value: GraderSetting | None) -> GraderSetting | None:
    if isinstance(value, Mapping) and not value:
        raise ValueError(
            "an empty mapping names no grader; write a name, such as exact, or {name: settings}"
        )
    return value


class ModelSection(Section):
    agent: ModelSpec | None = None
    """The model of the agent that uses the skill."""
    agents: tuple[ModelSpec, ...] = ()
    """Several models, in place of `agent`: each item is run with each of them, and results are by
    model instead of by type. An edit that is likely to hurt one of them is not kept, and the ship
    test is not passed where one of them loses."""
    optimizer: ModelSpec | None = None
    """The model that improves the skill. Not needed with `optimizer.proposer: examples`."""
    judge: ModelSpec | None = None
    """The model that grades answers. Needed only by graders that ask a model."""
    concurrency: int = Field(default=CONCURRENCY, gt=0)
    """The most calls at one time, per endpoint. The limiter finds the best number below it."""
    prices: dict[str, dict[str, Number]] = Field(default_factory=dict)
    """Dollars per million tokens that override or extend the bundled table: {model: {input, cached,
    output}}.
    """

    @model_validator(mode="before")
    @classmethod
    def _name_first_agent(cls, given: Any) -> Any:
        """Take the first of several models as the one that stands for all."""
        if isinstance(given, dict) and given.get("agents") and not given.get("agent"):
            first = given["agents"]
            if isinstance(first, list | tuple):
                return {**given, "agent": first[0]}
        return given

    @model_validator(mode="after")
    def _check_agents(self) -> Self:
        if not self.agents:
            return self
        if self.agent != self.agents[0]:
            raise ValueError("agent and agents exclude each other")
        if not 1 < len(self.agents) == len(self.by_name()):
            raise ValueError("agents should be two or more different models")
        return self

    def by_role(self) -> dict[str, ModelSpec]:
        """Return the models that are set; of several agents' models the first."""
        models = {"agent": self.agent, "optimizer": self.optimizer, "judge": self.judge}
        return {role: spec for role, spec in models.items() if spec is not None}

    def by_name(self) -> dict[str, ModelSpec]:
        """Return several models of the agent by their ids, without folders of Python files."""
        return {map_file(spec.id, lambda file: Path(file).name): spec for spec in self.agents}

    def named(self, role: str) -> str:
        """Return the ids of a role's models; empty where there is none."""
        spec = self.of_role(role)
        if role == "agent" and self.agents:
            return ", ".join(self.by_name())
        return spec.id if spec is not None else ""

    def of_role(self, role: str) -> ModelSpec | None:
        """Return the model of a role; None where there is none."""
        return self.by_role().get(role)


class TrainSection(Section):
    num_epochs: int = Field(default=4, ge=1)
    """Passes over the training items."""
    batch_size: int = Field(default=20, ge=1)
    """Items rolled out in one batch; one step uses `accumulation` batches."""
    accumulation: int = Field(default=1, ge=1)
    """Batches rolled out and reflected on before one update."""
    train_size: int = Field(default=0, ge=0)
    """Training items to use; 0 = all."""
    seed: int = 42
    """Decides shuffles, batches and the seeds sent to models."""
    sampler: str = "balanced"
    """Which items each step uses: balanced (every batch has a similar mix of types), shuffled, a
    sampler's name from another package, or file.py:name."""


class GradientSection(Section):
    minibatch_size: int = Field(default=8, ge=1)
    """Trajectories that the optimizer reads in one call."""
    merge: bool = False
    """Let the optimizer merge the patches of a step into one. Without it, only edits with the same
    text become one. Rewrite modes always merge."""
    merge_batch_size: int = Field(default=8, ge=2)
    """Patches merged in one call; more patches are merged level by level."""
    analyst_workers: int = Field(default=16, ge=1)
    """Optimizer calls at one time."""
    failure_only: bool = False
    """Reflect on failures only."""
    rollouts_per_item: int = Field(default=1, ge=1)
    """Training rollouts of each item. With two or more, the optimizer sees successes and failures
    of the same item side by side.
    """
    deep_reflection: bool = False
    """Ask the optimizer for a diagnostic instruction, run some failures again with it, and reflect
    on these answers too.
    """
    deep_reflection_items: int = Field(default=4, ge=1)
    """At most this many failures are run again with the diagnostic instruction."""
    trace_to_optimizer: bool = True
    """Command-line agents: show their event stream to the optimizer, not only the answer."""


class OptimizerSection(Section):
    learning_rate: int | None = Field(default=None, ge=0)
    """The edit budget: how many edits may enter in one step. The optimizer ranks them where it
    proposes more. Empty: no limit."""
    min_learning_rate: int = Field(default=2, ge=0)
    """The edit budget at which `linear` and `cosine` end."""
    lr_scheduler: Scheduler = "constant"
    """How the edit budget falls over the run; autonomous: no limit."""
    lr_control_mode: ControlMode = "fixed"
    """fixed: the schedule; autonomous: the optimizer chooses in each step; none: no limit."""
    skill_update_mode: UpdateMode = "patch"
    """patch: edits are applied; the others let the optimizer write the skill anew, from suggestions
    or from each group.
    """
    proposer: str = "auto"
    """Where edits come from: agent (the optimizer works on the skill in a folder with all rollouts
    as files), corpus (one call reads all rollouts so far and writes many single edits), reflect
    (analysts read a few trajectories each), examples (solved training items as worked examples), or
    both (reflect and examples). auto: agent where the optimizer is a coding-agent program, corpus
    for other models; reflect where it is a local or practice model, the skill is rewritten, or
    skill-aware reflection is on. Also a proposer's name from another package, or file.py:name.
    """
    agent_minutes: float = Field(default=30, gt=0)
    """Time limit of one session of the proposer `agent`, in minutes. What it changed until then
    counts."""
    guidance: str = ""
    """Your wishes for the skill, as text or as the name of a .md or .txt file. Every proposer reads
    them.
    """
    feedback: dict[str, str] = Field(default_factory=dict)
    """What people say about answers, by item: {ticket-7: "wrong: it names the old queue"}; or the
    name of a feedback.json, which `skillfit export` and the studio write. Every proposer reads what
    is said about training items.
    """
    memory: str = ""
    """A JSON file that carries what failed, and what was tried against it, from run to run of the
    same skill. It is read at the start and written at the end; it need not exist yet.
    """
    parts: tuple[Part, ...] = ONLY_BODY
    """The parts of the skill folder that edits may change: body, description (in the frontmatter),
    references (files in references/, new ones too) and scripts (files in scripts/). Give the agent
    the folder for these: with tools or a coding-agent program.
    """
    script_check: str = ""
    """A command that each script which an edit writes must pass before any rollout, with {script}
    for its path; it runs in the skill's folder. Empty: the script itself with --self-check.
    """
    max_skill_tokens: int | None = Field(default=None, gt=0)
    """Edits that would grow the document beyond this are skipped. The agent reads references when
    it needs them: they do not count."""
    prune_initial: bool = False
    """Remove paragraphs of the initial skill: each is left out of about 10 % of the rollouts, and
    cut once that is unlikely to cost score. Needs evaluation.gate: screening.
    """
    use_slow_update: bool = False
    """At each epoch's end, draw a lesson from the same items under the previous and the current
    skill.
    """
    slow_update_samples: int = Field(default=20, ge=1)
    """Training items that this comparison rolls out."""
    slow_update_gate_with_selection: bool = True
    """Put the lesson through the gate; false: add it without a decision, and measure it."""
    longitudinal_pair_policy: PairPolicy = "mixed"
    """Which pairs are shown: all, those whose result changed, or those where it did not."""
    use_meta_skill: bool = False
    """Keep advice for the optimizer itself from epoch to epoch."""
    use_skill_aware_reflection: bool = False
    """Tell rules that are missing from rules that were not followed; the latter become notes in an
    appendix.
    """
    skill_aware_appendix_source: Literal["both", "failure_only"] = "both"
    """Which analysts' notes to keep."""
    skill_aware_consolidate_threshold: int = Field(default=0, ge=0)
    """Condense the notes when there are more than this; 0 = never."""
    rewrite_reasoning_effort: str | None = None
    """Reasoning effort of the call that rewrites the skill. Default: that of the model."""
    rewrite_max_completion_tokens: int = Field(default=64000, gt=0)
    """The most tokens of a reply that carries a whole skill."""

    @field_validator("parts")
    @classmethod
    def _check_parts(cls, value: tuple[Part, ...]) -> tuple[Part, ...]:
        if not value:
            raise ValueError("it should name at least one part of the skill")
        return value


def metric_score(metric: str, hard: float, soft: float, mixed_weight: float) -> float:
    """Return a score under the gate's metric. `mixed_weight` is the weight of soft in `mixed`."""
    weight = {"hard": 0.0, "soft": 1.0}.get(metric, mixed_weight)
    return (1 - weight) * hard + weight * soft


class EvaluationSection(Section):
    gate: str = "screening"
    """screening: every rollout carries some pending edits, and a regression measures the effect of
    each; strict: SkillOpt's rule, one pass per candidate, accepted if its mean is strictly
    above. Also a gate's name from another package, or file.py:name."""
    use_gate: bool = True
    """false: accept every candidate of a step, measured as a whole as with strict, and keep the
    best skill."""
    gate_metric: Metric = "hard"
    """Which score decides: hard, soft or mixed."""
    gate_mixed_weight: float = Field(default=0.5, ge=0, le=1)
    """Weight of the soft score in `mixed`."""
    sel_env_num: int = Field(default=0, ge=0)
    """Selection items to use; 0 = all."""
    test_env_num: int = Field(default=0, ge=0)
    """Test items to use; 0 = all."""
    eval_test: bool = True
    """Measure the test split once, at the end."""
    coverage_floor: float = Field(default=0.6, ge=0, le=1)
    """Below this share of scored rollouts a verdict is inconclusive."""
    must_pass: tuple[str, ...] = ()
    """Ids of selection items that promoted edits must not break."""
    ship_test: bool = True
    """Compare the final skill with the initial one on fresh rollouts at the end."""
    objective: Literal["score", "cheaper"] = "score"
    """What the ship test must show. score: a higher score. cheaper: fewer tokens in a rollout, and
    a score that is at most `margin` lower; then text of the initial skill may be removed too, and
    an edit stays only if it was measured to help."""
    margin: float = Field(default=0.1, gt=0, lt=1)
    """A loss of score below which a cheaper skill counts as not worse, also in `skillfit eval`."""
    finalists: int = Field(default=1, ge=1)
    """Skills that the ship test compares with the initial one: the most promising first. The test
    corrects for their number, so each further one costs power."""
    ship_grader: GraderSetting | None = None
    """A second grader for the ship test: train on one, ship on another."""
    preflight: bool = True
    """Run `check` before the first step. Without it each model is still tried with one small
    call."""
    leak_check: bool = True
    """Block edits that carry hidden items' text or answers, or the grader's rules."""

    _check_grader = field_validator("ship_grader")(_named_grader)

    def value(self, hard: float, soft: float) -> float:
        """Return the score that decides: hard and soft under `gate_metric`."""
        return metric_score(self.gate_metric, hard, soft, self.gate_mixed_weight)


class TaskSection(Section):
    """The part of `env` that says what is trained on what."""

    skill: str = ""
    """SKILL.md, skill folder or markdown file; with `#description` at its end, the description in
    the frontmatter alone. Empty: start from a blank skill.
    """
    tasks: str = ""
    """JSONL/JSON/CSV file, folder with train/ val/ test/, evals.json, file.py:name, `command: …`,
    or a named source: inspect:…, trigger, a benchmark's name.
    """
    task_args: JsonObject = Field(default_factory=dict)
    """Options of a named source, for example the arguments of an Inspect task."""
    model_roles: dict[str, Literal["agent", "judge"]] = Field(default_factory=dict)
    """Inspect tasks: which model, agent or judge, plays each of the task's model roles. Default:
    the judge, if set, for the role `grader`, and the agent's model for all others.
    """
    score_range: tuple[float, float] | None = None
    """Inspect tasks: the lowest and the highest score that the task's scorers give, for example
    [1, 10]. Default: 0 and 1.
    """
    grader: GraderSetting | None = None
    """The name of a grader, {name: settings}, file.py:name, or a list of graders under `all`, `any`
    or `mean`. Default: exact; for evals.json, checklist.
    """
    folder: str = ""
    """The folder in which `command:` and `inspect:` tasks run and where their relative paths start.
    Default: the folder of the config file.
    """
    fields: dict[str, str] = Field(default_factory=dict)
    """The columns of your tasks by field: {input: question, answers: gold}."""

    _check_grader = field_validator("grader")(_named_grader)

    @field_validator("score_range")
    @classmethod
    def _low_first(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not -math.inf < value[0] < value[1] < math.inf:
            raise ValueError("it is [lowest, highest], two different numbers")
        return value


class AgentSection(Section):
    """The part of `env` that says how rollouts use the skill."""

    agent: str = "chat"
    """How the skill is used: chat, tools or cli (`cli/…` models imply it). Also an agent's name
    from another package, or file.py:name.
    """
    corpus: str = ""
    """tools, cli: a folder of documents that every rollout may read, as corpus/ in its workspace.
    It is shared, not copied.
    """
    network: Literal["auto", "on", "off"] = "auto"
    """Whether the agent's programs may use the network. auto: command-line agents, which call their
    model, may; commands of the tools agent may not.
    """
    sandbox: Literal["auto", "require", "off"] = "auto"
    """tools, cli: isolation of the agent's programs. auto: the best this machine has; require:
    refuse to run without a full one; off: none.
    """
    skill_as: Literal["message", "file"] = "message"
    """Inspect tasks: the skill as the first system message, or as files in the sandbox, at
    .agents/skills/.
    """
    prompt: str | None = None
    """chat, tools: a template for the system prompt, with {skill} in it. Default: a plain one."""
    max_turns: int | None = Field(default=None, ge=1)
    """chat: turns, default 1; tools: rounds of tool calls, default 20."""
    max_rollout_tokens: int | None = Field(default=None, gt=0)
    """chat, tools: tokens after which a rollout starts no further turn."""
    rollout_usd: float | None = Field(default=None, ge=0)
    """What one rollout costs, in dollars, for an agent that does not report it: your own figure,
    which `budget.usd` then counts. 0: it is free.
    """
    exec_timeout: float | None = Field(default=None, gt=0)
    """Seconds that one rollout may take. Its calls and processes are stopped after that. Default:
    120, with a command-line program as the agent 600.
    """

    @field_validator("agent")
    @classmethod
    def _known_agent(cls, value: str) -> str:
        if value not in _AGENTS and not is_extension("agent", value):
            known = ", ".join([*_AGENTS, *extension_names("agent")])
            raise ValueError(f"it is {known}, or file.py:name for your own agent")
        return value


class SplitSection(Section):
    """The part of `env` that says how items are divided into splits."""

    split_mode: Literal["auto", "ratio", "split_dir"] = "auto"
    """auto: the split field or folders of the items if they have any, else by ratio, stratified by
    type; ratio, split_dir: always the one or the other.
    """
    split_ratio: str = "4:4:2"
    """Sizes of the splits, as train:selection:test."""
    split_method: Literal["balanced", "shuffle"] = "balanced"
    """How splits are made by ratio. balanced: the types in equal shares, near-duplicates in the
    same split; shuffle: one shuffle of all items in file order, as SkillOpt divides them.
    """
    split_seed: int = 42
    """The seed for dividing the items into splits."""
    allow_duplicates: bool = False
    """Warn about near-duplicate items in different splits instead of refusing them."""
    allow_fit_only: bool = False
    """Train even when too few items are left for selection. The result is labelled unverified."""
    limit: int = Field(default=0, ge=0)
    """Items to use per split; 0 = all."""

    @field_validator("split_ratio")
    @classmethod
    def _known_ratio(cls, value: str) -> str:
        _parse_ratio(value)
        return value

    @property
    def ratio(self) -> tuple[float, float, float]:
        """`split_ratio` as numbers."""
        return _parse_ratio(self.split_ratio)


def _parse_ratio(text: str) -> tuple[float, float, float]:
    """Parse `train:selection:test`, as 4:4:2 or 0.2:0.1:0.7."""
    try:
        parts = tuple(float(part) for part in text.split(":"))
    except ValueError:
        parts = ()
    if len(parts) != 3 or not all(0 <= part < float("inf") for part in parts) or not parts[0]:
        raise ValueError(f"{text!r} is not train:selection:test, for example 4:4:2")
    return parts


class EnvSection(SplitSection, AgentSection, TaskSection):
    """All of `env`. Fields of the last base class come first."""


class BudgetSection(Section):
    rollouts: int | None = Field(default=None, gt=0)
    """Rollouts of the whole run: steps, selection passes and the ship test are planned to use this
    number well."""
    usd: float | None = Field(default=None, gt=0)
    """Dollars. The price of every model must be known."""
    tokens: int | None = Field(default=None, gt=0)
    """Tokens, input and output together."""
    calls: int | None = Field(default=None, gt=0)
    """Attempts at model calls; a run of a command-line agent counts as one."""
    minutes: float | None = Field(default=None, gt=0)
    """Minutes, over all resumes of the run."""


# Providers whose models are small or follow rules: they do better with few trajectories at a time.
SMALL_OPTIMIZERS = frozenset({"local", "ollama", "practice"})


class Config(Section):
    recipe: Literal["default", "paper", "lite"] = "default"
    """A named set of settings that fills in what you do not set."""
    model: ModelSection = Field(default_factory=ModelSection)
    train: TrainSection = Field(default_factory=TrainSection)
    gradient: GradientSection = Field(default_factory=GradientSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    evaluation: EvaluationSection = Field(default_factory=EvaluationSection)
    env: EnvSection = Field(default_factory=EnvSection)
    budget: BudgetSection = Field(default_factory=BudgetSection)
    review: bool = False
    """Hold every edit that would be promoted until a person approves it (`skillfit steer`). The run
    stops before its ship test while edits wait.
    """
    run: str = ""
    """The run directory, when the command does not name one with --run. Empty: a directory in
    `runs/`, named after the skill and the settings.
    """
    executor: str = "local"
    """Where rollouts run: local, ray (a cluster on this machine) or ray://HOST:PORT. Also an
    executor's name from another package, or file.py:name.
    """

    @property
    def proposer(self) -> str:
        """`optimizer.proposer`, or what suits the optimizer's model."""
        spec, settings = self.model.optimizer, self.optimizer
        if settings.proposer != "auto":
            return settings.proposer
        small = spec is None or split_id(spec.id)[0] in SMALL_OPTIMIZERS
        analysts = settings.skill_update_mode != "patch" or settings.use_skill_aware_reflection
        if small or analysts:
            return "reflect"
        return "agent" if spec is not None and spec.is_cli else "corpus"

    @property
    def rollout_seconds(self) -> float:
        """`env.exec_timeout`, or what suits the kind of agent."""
        usual = PROGRAM_SECONDS if self.agent_kind == "cli" else ROLLOUT_SECONDS
        return usual if self.env.exec_timeout is None else self.env.exec_timeout

    @property
    def removes_initial_text(self) -> bool:
        """Whether a run may remove paragraphs of the initial skill."""
        return self.optimizer.prune_initial or self.evaluation.objective == "cheaper"

    @property
    def agent_kind(self) -> str:
        """`env.agent`, or what the agent's model implies."""
        spec = self.model.agent
        return agent_kind(self.env.agent, spec.id if spec is not None else "")


def agent_kind(name: str, model_id: str) -> str:
    """Return the agent that runs the items: `env.agent`, or cli where its model is a program."""
    return "cli" if names_cli_program(model_id) else name


RECIPES: Mapping[str, Mapping[str, Mapping[str, bool | int | str]]] = {
    "default": {},
    # SkillOpt's defaults and decisions, for reproduction.
    "paper": {
        "train": {"batch_size": 40, "sampler": "shuffled"},
        "gradient": {"merge": True},
        "optimizer": {
            "proposer": "reflect",
            "learning_rate": 4,
            "lr_scheduler": "cosine",
            "use_slow_update": True,
            "use_meta_skill": True,
            "slow_update_gate_with_selection": False,
        },
        "evaluation": {
            "gate": "strict",
            "ship_test": False,
            "preflight": False,
            "leak_check": False,
        },
        "env": {"split_ratio": "2:1:7", "split_method": "shuffle", "allow_duplicates": True},
    },
    # Fewer than about 20 items: short epochs, small groups, few candidates, every rollout spent on
    # measuring.
    "lite": {
        "train": {"num_epochs": 2, "batch_size": 8},
        "gradient": {"minibatch_size": 4, "rollouts_per_item": 2},
        "env": {"split_ratio": "5:5:0"},
    },
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting. `key` is dotted, for example `train.batch_size`."""

    key: str
    type: str
    default: Any  # None also for settings without a default
    doc: str
    limits: str = ""  # of a number, for example `>= 1`

    @property
    def section(self) -> str:
        """The section that the key belongs to; empty for keys at the top level."""
        return self.key.partition(".")[0] if "." in self.key else ""


def describe_keys() -> Iterator[Key]:
    """Yield every key of the schema, in its order. The settings of a model appear once for each
    role.
    """
    yield from _describe(Config, "")


def settings_of_run(recorded: JsonObject) -> Config:
    """Return the settings that a run recorded. A setting that it did not record, or that is not
    accepted here (an agent from a package that is not installed), has its default.
    """
    return _accepted(Config, recorded) or Config()


def _accepted(kind: type[M], recorded: Mapping[str, Any]) -> M | None:
    """Return a section with those values that the schema accepts; None when a required one is
    missing.
    """
    values: JsonObject = {}
    for name, info in kind.model_fields.items():
        if name not in recorded:
            continue
        value, nested = recorded[name], nested_model(info.annotation)
        if nested is not None and isinstance(value, Mapping):
            value = _accepted(nested, value)
        values[name] = value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        refused = {problem["loc"][0] for problem in error.errors()}
    try:
        return kind.model_validate({name: values[name] for name in values.keys() - refused})
    except ValidationError:
        return None


def _describe(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        key = f"{prefix}{name}"
        # The settings of a list of models are those of a single one.
        is_list = get_origin(info.annotation) is tuple
        nested = None if is_list else nested_model(info.annotation)
        if nested is None or nested is ModelSpec:
            yield Key(
                key,
                _type(info.annotation),
                _default(info),
                " ".join((info.description or "").split()),
                _limits(info),
            )
        if nested is not None:
            yield from _describe(nested, f"{key}.")


def _default(info: FieldInfo) -> Any:
    default = info.get_default(call_default_factory=True)
    return None if default is PydanticUndefined else default


def _limits(info: FieldInfo) -> str:
    """Return the limits of a number, as a text."""
    limits = []
    for rule in info.metadata:
        if isinstance(rule, annotated_types.Ge):
            limits.append(f">= {rule.ge}")
        elif isinstance(rule, annotated_types.Gt):
            limits.append(f"> {rule.gt}")
        elif isinstance(rule, annotated_types.Le):
            limits.append(f"<= {rule.le}")
    return " and ".join(limits)


def _type(annotation: Any) -> str:
    """Return a type in the words of YAML."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(str(argument) for argument in arguments)
    if annotation is NoneType:
        return "null"
    if annotation is ModelSpec:
        return "string or mapping"
    if origin is dict:
        return "mapping"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if arguments:
        return " | ".join(_type(argument) for argument in arguments)
    return getattr(annotation, "__name__", str(annotation))


SECTIONS = tuple(
    name for name, info in Config.model_fields.items() if nested_model(info.annotation)
)
