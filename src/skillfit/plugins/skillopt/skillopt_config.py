"""Read a config of SkillOpt, structured or flat, of its first or a later release.

skillopt_config.yaml says what its keys mean here. Keys without a meaning here cause a warning,
unless they are empty or have the value that SkillOpt's own files give them. Keys of skillfit
(`budget`, `evaluation.gate`, …) may be added to such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from skillfit.config.schema import SECTIONS, describe_keys
from skillfit.config.yaml_source import PlacedSettings, read_source
from skillfit.extensions import find_source, is_source, source_options
from skillfit.models.protocol import ROLES
from skillfit.models.registry import names_cli_program
from skillfit.models.secrets import redact

_BETWEEN_CALLS = 60  # seconds of a rollout outside of its calls; SkillOpt allows as many


class SkillOptTable(BaseModel):
    """The contents of skillopt_config.yaml, which explains each part."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flat_signs: list[str]
    signs: dict[str, list[str]]
    own_signs: dict[str, list[str]]
    first_release_words: dict[str, str]
    flat_names: dict[str, str]
    same_meaning: dict[str, list[str]]
    renamed: dict[str, str]
    translated_by_code: dict[str, str]
    other_meaning: list[str]
    aliases: dict[str, dict[str, list[str]]]
    providers: dict[str, str]
    default_models: dict[str, str]
    models_of_openai: list[str]
    backend_aliases: dict[str, list[str]]
    fills_both_roles: list[str]
    takes_effort: list[str]
    families: dict[str, dict[str, str]]
    values: dict[str, dict[str, str]]
    key_variables: dict[str, str]
    path_options: list[str]
    always_judged: list[str]
    limits_the_whole_task: list[str]
    turns: list[str]
    no_meaning: list[str]
    defaults: dict[str, list[Any]]

    @cached_property
    def moves(self) -> dict[str, str]:
        """Flat name there -> key here, for values that mean the same."""
        moves = dict(self.renamed)
        for section, names in self.same_meaning.items():
            for name in names:
                moves[name] = f"{section}.{name}"
        return moves

    def flat(self, key: str) -> str:
        """Return the flat name of a structured or flat key, in the words of the later releases."""
        section, _, name = key.rpartition(".")
        words = [self.first_release_words.get(word, word) for word in name.split("_")]
        name = "_".join(words)
        return self.flat_names.get(f"{section}.{name}" if section else name, name)

    def backend(self, name: Any) -> str:
        """Return the usual name of a backend."""
        plain = str(name).lower().replace("-", "_")
        for backend, aliases in self.backend_aliases.items():
            if plain in aliases:
                return backend
        return plain

    def knows(self, name: str) -> bool:
        """Return whether SkillOpt has a setting of this flat name that is not translated."""
        shared = _without_role(name)
        in_family = any(shared in family for family in self.families.values())
        return shared in self.no_meaning or shared in self.defaults or in_family

    def is_default(self, name: str, value: Any) -> bool:
        return value in self.defaults.get(_without_role(name), [])

    def key_here(self, key: str) -> str:
        """Return the key of skillfit for a key of SkillOpt that has another name here; else
        empty.
        """
        name = self.flat(key)
        return self.renamed.get(name) or self.translated_by_code.get(name, "")


@cache
def table() -> SkillOptTable:
    """Return the translation table."""
    return SkillOptTable.model_validate(
        read_source(Path(__file__).with_name("skillopt_config.yaml")).data
    )


def _without_role(name: str) -> str:
    return name.removeprefix("optimizer_").removeprefix("target_")


def is_skillopt(data: Mapping[str, Any]) -> bool:
    """Return whether this looks like a config of SkillOpt."""
    known = table()
    if _has_any(data, known.own_signs):
        return False
    return _has_any(data, known.signs) or any(name in data for name in known.flat_signs)


def _has_any(data: Mapping[str, Any], signs: Mapping[str, list[str]]) -> bool:
    for title, names in signs.items():
        section = data.get(title)
        if isinstance(section, Mapping) and any(name in section for name in names):
            return True
    return False


def translate(
    settings: PlacedSettings, overrides: PlacedSettings, warn: Callable[[str], None]
) -> PlacedSettings:
    """Return the settings in skillfit's words. Overrides may use the words of either."""
    ours = {described.key for described in describe_keys()}
    theirs, above = _divide(overrides, ours)
    has_grader = "env.grader" in above.places
    chosen = {str(role): _model_id(above.data, role) for role in ROLES}
    translation = _Translation(theirs.over(settings), ours, warn, chosen, has_grader=has_grader)
    translation.run()
    return above.over(translation.result)


def _model_id(settings: Mapping[str, Any], role: str) -> str:
    """Return the id of a role's model in skillfit's words; empty when the settings name none."""
    models = settings.get("model", {})
    spec = models.get(role, "") if isinstance(models, Mapping) else ""
    return str(spec.get("id", "") if isinstance(spec, Mapping) else spec)


def _divide(overrides: PlacedSettings, ours: set[str]) -> tuple[PlacedSettings, PlacedSettings]:
    """Split overrides into those in SkillOpt's words and those in skillfit's. Keys that both have,
    with other values or another meaning there, count as SkillOpt's.
    """
    theirs, above = PlacedSettings({}), PlacedSettings({})
    for key, place in overrides.places.items():
        value: Any = overrides.data
        for part in key.split("."):
            value = value[part]
        one = PlacedSettings.of(key, value, place)
        differs = key in table().other_meaning or table().flat(key) in table().aliases
        if key in ours and not differs:
            above = one.over(above)
        else:
            theirs = one.over(theirs)
    return theirs, above


@dataclass(frozen=True, slots=True)
class SkillOptValue:
    """A value in the file, and its key as the file has it."""

    value: Any
    key: str


@dataclass
class _Translation:
    """The translation of one config. `chosen`: the model ids of overrides in skillfit's words, by
    role. `used` are the flat names that are dealt with already.
    """

    settings: PlacedSettings
    ours: set[str]
    warn: Callable[[str], None]
    chosen: Mapping[str, str]
    has_grader: bool = False
    table: SkillOptTable = field(default_factory=table)
    used: set[str] = field(default_factory=set)
    result: PlacedSettings = field(default_factory=lambda: PlacedSettings({}))

    def run(self) -> None:
        self.given = dict(_flatten(self.settings.data))
        self.has_grader = self.has_grader or "grader" in self.given
        self.put("recipe", "paper", "recipe")
        self._task()
        for name, key in self.table.moves.items():
            self.move(key, name)
        for name, values in self.table.aliases.items():
            words = {}
            for value, aliases in values.items():
                words.update(dict.fromkeys(aliases, value))
            self.move(f"optimizer.{name}", name, words=words)
        self._drop_secrets()
        self._run_directory()
        for role, theirs in (("agent", "target"), ("optimizer", "optimizer"), ("judge", "judge")):
            self._model(role, theirs)
        self._judge()
        self._time_limits()
        self._turns()
        self._rest()

    def get(self, *names: str) -> SkillOptValue | None:
        """Return the first of the names with a value that is not empty. All of them count as
        used.
        """
        self.used.update(names)
        for name in names:
            given = self.given.get(name)
            if given is not None and given.value not in (None, "", []):
                return given
        return None

    def put(self, key: str, value: Any, source: str) -> None:
        """Set a key of skillfit. `source` is the key in the file that it comes from."""
        self.result = PlacedSettings.of(key, value, self.settings.place(source)).over(self.result)

    def move(self, key: str, *names: str, words: Mapping[str, str] | None = None) -> None:
        """Set a key of skillfit to the value of the first of the names, in skillfit's words."""
        given = self.get(*names)
        if given is None:
            return
        value = (words or {}).get(str(given.value).lower(), given.value)
        if value != "":
            self.put(key, value, given.key)

    def say(self, key: str, message: str) -> None:
        self.warn(f"{self.settings.place(key)}: {key} {message}")

    def _drop_secrets(self) -> None:
        for name in [name for name in self.given if name.endswith("_api_key")]:
            given = self.get(name)
            if given is None:
                continue
            variable = "AZURE_OPENAI_API_KEY"
            for family, named in self.table.key_variables.items():
                if family in name:
                    variable = named
            role = name.partition("_")[0]
            if role in ("optimizer", "target"):
                variable = f"{role.upper()}_{variable}"
                ours = "agent" if role == "target" else role
                self.put(f"model.{ours}.key_env", variable, given.key)
            self.say(
                given.key,
                "holds a key and is ignored. "
                f"Put the key into the environment variable {variable}.",
            )

    def _run_directory(self) -> None:
        given = self.get("out_root")
        if given is not None:
            self.put("run", str(Path.cwd() / str(given.value)), given.key)

    def _task(self) -> None:
        """Translate tasks, their options, splits and skill. A benchmark that skillfit has brings
        its own data and initial skill, which are used when the file names paths that do not exist.
        """
        name, data = self.get("env"), self.get("split_dir", "data_path")
        benchmark = str(name.value) if name is not None and is_source(str(name.value)) else ""
        found = self._find_path(data)
        split_mode = self.get("split_mode")
        if benchmark and name is not None:
            self.put("env.tasks", f"{benchmark}:{found}" if found else benchmark, name.key)
            self._task_options(benchmark)
        elif data is not None:
            self.put("env.tasks", str(found or Path.cwd() / str(data.value)), data.key)
        elif name is not None:
            self.put("env.tasks", name.value, name.key)
        if benchmark and data is not None and not found:
            self.say(
                data.key,
                f"= {data.value} does not exist; the data of `skillfit data get {benchmark}` "
                "is used.",
            )
        elif split_mode is not None:
            self.put("env.split_mode", split_mode.value, split_mode.key)
        if name is not None and data is not None and not benchmark and not self.has_grader:
            self.say(
                name.key,
                f"= {name.value} is not a benchmark of skillfit and chooses no grader: "
                f"set env.grader for the items of {data.key}.",
            )
        self._skill(benchmark)

    def _skill(self, benchmark: str) -> None:
        given = self.get("skill_init")
        if given is None:
            return
        found = self._find_path(given)
        if found or not benchmark:
            self.put("env.skill", str(found or Path.cwd() / str(given.value)), given.key)
        else:
            self.say(
                given.key,
                f"= {given.value} does not exist; the initial skill of {benchmark} is used.",
            )

    def _task_options(self, benchmark: str) -> None:
        """Return settings of the benchmark there that it has here too. Settings of the loop, such
        as the seed, are not meant for the benchmark.
        """
        for name in source_options(benchmark):
            present = self.given.get(name)
            if present is None or (name in self.table.moves and not present.key.startswith("env.")):
                continue
            given = self.get(name)
            if given is None:
                continue
            value = given.value
            if name in self.table.path_options:
                paths = value if isinstance(value, list) else [value]
                found = [self._find_path(SkillOptValue(path, given.key)) for path in paths]
                if not all(found):
                    self.say(given.key, f"= {value} does not exist and is ignored.")
                    continue
                value = [str(path) for path in found] if isinstance(value, list) else str(found[0])
            self.put(f"env.task_args.{name}", value, given.key)

    def _find_path(self, given: SkillOptValue | None) -> Path | None:
        """Return an existing path. In SkillOpt, paths start in the folder where the command is run:
        mostly the repository, some folders above the config.
        """
        if given is None:
            return None
        folder = self.settings.place(given.key).folder
        for start in (folder, Path.cwd(), *folder.parents):
            if (start / str(given.value)).exists():
                return start / str(given.value)
        return None

    def _judge(self) -> None:
        """Set a judge where none is named. In SkillOpt, variables of the environment name the judge
        of some benchmarks.
        """
        name = self.get("env")
        if name is None or name.value not in self.table.always_judged:
            return
        optimizer = self._put_value("model.optimizer")
        if optimizer and not self._put_value("model.judge"):
            self.put("model.judge", optimizer, name.key)
            self.say(
                name.key,
                f"= {name.value} needs a judge, and the file names none; the optimizer's model is "
                "used. Set env.judge_model to choose another.",
            )

    def _time_limits(self) -> None:
        """Translate exec_timeout, which limits one call of the agent's model in SkillOpt, or one
        run of a command-line agent. Here a rollout has a limit too, which leaves room for all of
        its turns.
        """
        given = self.get("exec_timeout")
        if given is None or given.value == 0:  # there, 0 is no limit
            return
        seconds, name = given.value, self.get("env")
        whole_task = name is not None and name.value in self.table.limits_the_whole_task
        if whole_task or not isinstance(seconds, (int, float)):
            self.put("env.exec_timeout", seconds, given.key)
            return
        turns = [1]
        for setting in self.table.turns:
            found = self.given.get(setting)
            if found is not None and isinstance(found.value, int):
                turns.append(found.value)
        limit = max(turns) * seconds + _BETWEEN_CALLS
        if limit > self._own_time_limit():
            self.put("env.exec_timeout", limit, given.key)
        model_id = str(self._put_value("model.agent.id"))
        if model_id and not names_cli_program(model_id):
            self.put("model.agent.timeout", seconds, given.key)

    def _own_time_limit(self) -> float:
        """Return the time limit of the benchmark for a rollout; 0 when it has none."""
        tasks = str(self._put_value("env.tasks"))
        options = self._put_value("env.task_args") or {}
        source = find_source(tasks, options=options) if is_source(tasks) else None
        env = read_source(source.config).data.get("env", {}) if source is not None else {}
        return float(env.get("exec_timeout", 0))

    def _turns(self) -> None:
        """Translate the turns of a chat, rounds of tool calls, and steps of mini-swe-agent."""
        is_cli = names_cli_program(str(self._put_value("model.agent.id")))
        rounds = self.get("max_tool_turns", "step_limit")
        turns = self.get("max_turns")
        if is_cli:
            for given in (rounds, turns):
                if given is not None and given.value != 1:
                    self.say(given.key, "has no meaning for a command-line agent and is ignored.")
            return
        options = self._put_value("env.task_args") or {}
        if any(name in options for name in ("max_tool_turns", "step_limit", "max_turns")):
            return  # the benchmark takes it as an option
        if rounds is not None:
            self.put("env.max_turns", rounds.value, rounds.key)
            if not is_source(str(self._put_value("env.tasks"))):
                self.put("env.agent", "tools", rounds.key)
        elif turns is not None:
            self.put("env.max_turns", turns.value, turns.key)

    def _put_value(self, key: str) -> Any:
        """Return what the result has under a key; empty when it has nothing."""
        value: Any = self.result.data
        for part in key.split("."):
            value = value.get(part, "") if isinstance(value, Mapping) else ""
        return value

    def _model(self, role: str, theirs: str) -> None:
        """Return a role's model: its id, and the settings of its provider's family of keys."""
        provider = self.table.providers.get(self._backend(theirs), "")
        name = self._model_name(theirs, provider)
        if name is None:
            return
        model_id = self.chosen[role] or str(name.value)
        beginning = model_id.split("/")[: 2 if names_cli_program(model_id) else 1]
        named = "".join(f"{part}/" for part in beginning)
        if self.chosen[role] or named in self.table.providers.values():
            provider = named  # the id is in skillfit's words
        else:
            model_id = f"{provider}{model_id}"
        self.put(f"model.{role}.id", model_id, name.key)
        family = self.table.families.get(provider, {})
        keys = [(f"{theirs}_{key}", key, setting) for key, setting in family.items()]
        if provider == "anthropic/":
            self.say(
                name.key,
                "was called through the claude command there. Here it is called through "
                "Anthropic's API (ANTHROPIC_API_KEY); use cli/claude for the command.",
            )
        if provider == "azure/" and self._sign_in(theirs) is None:
            # There, a file that names no sign-in uses the environment's, else the Azure CLI.
            self.put(f"model.{role}.options.auth", "auto", name.key)
        if provider in self.table.takes_effort and role != "judge":
            words = self.table.values["reasoning_effort"]
            self.move(f"model.{role}.reasoning_effort", "reasoning_effort", words=words)
        if role == "agent" and not names_cli_program(provider):
            self.move("model.agent.max_tokens", "max_completion_tokens")
        if role == "judge":
            self.move("model.judge.max_tokens", "judge_max_completion_tokens")
            self.move("model.judge.retries", "judge_retries")
        for own, shared, setting in keys:
            given = self.get(own, shared)
            limits_optimizer = role == "optimizer" and setting == "max_tokens"
            if given and limits_optimizer and self.table.is_default(shared, given.value):
                continue  # SkillOpt's default limit cuts the replies of analysts short
            self.move(f"model.{role}.{setting}", own, shared, words=self.table.values.get(setting))

    def _model_name(self, theirs: str, provider: str) -> SkillOptValue | None:
        """Return the model of a role. MiniMax and Copilot have their own settings for it there."""
        name = self.get(f"{theirs}_model")
        if name is not None and provider == "minimax/":
            shared = self.get("minimax_model")
            chosen = shared is not None and not self.table.is_default("minimax_model", shared.value)
            if shared is not None and (chosen or "minimax" not in str(name.value).lower()):
                return shared
        if name is not None and provider == "cli/copilot/":
            return self.get(f"copilot_chat_{theirs}_model") or name
        default = self.table.default_models.get(provider)
        if default is None or (
            name is not None and str(name.value) not in self.table.models_of_openai
        ):
            return name
        backend = self.get(f"{theirs}_backend") or self.get("model_backend")
        source = name or backend
        if source is None:
            return None
        self.say(
            source.key,
            f"= {source.value} names no model of {provider.rstrip('/')}; {default} is used, as in "
            "SkillOpt.",
        )
        return SkillOptValue(default, source.key)

    def _sign_in(self, theirs: str) -> SkillOptValue | None:
        """Say how the file says that a role signs in to Azure."""
        return self.get(f"{theirs}_azure_openai_auth_mode", "azure_openai_auth_mode")

    def _backend(self, theirs: str) -> str:
        """Return the backend of a role: its own, else what the label for the whole run means for
        it.
        """
        own, label = self.get(f"{theirs}_backend"), self.get("model_backend")
        named = self.table.backend(own.value) if own is not None else ""
        whole = self.table.backend(label.value) if label is not None else ""
        if named not in ("", "openai_chat"):
            return named
        if whole and (theirs == "target" or whole in self.table.fills_both_roles):
            return whole if theirs != "judge" else "openai_chat"
        return named or "openai_chat"

    def _rest(self) -> None:
        """Return what is left. skillfit's own keys are kept; keys without a meaning here are warned
        about; unknown keys are kept too, and become errors when the config is checked.
        """
        for name, given in self.given.items():
            if name in self.used:
                continue
            if given.key in self.ours:
                self.put(given.key, given.value, given.key)
            elif _says_nothing(given.value) or self.table.is_default(name, given.value):
                continue
            elif self.table.knows(name) or given.key.startswith("env."):
                value = redact(repr(given.value))
                self.say(given.key, f"= {value} has no meaning here and is ignored.")
            else:
                self.put(given.key, given.value, given.key)


def _says_nothing(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value.get("enabled", True)
    return value in (None, "", [], 0)


def _flatten(data: Mapping[str, Any]) -> Iterator[tuple[str, SkillOptValue]]:
    for section, value in data.items():
        if isinstance(value, Mapping) and section in SECTIONS:
            for name, item in value.items():
                key = f"{section}.{name}"
                yield table().flat(key), SkillOptValue(item, key)
        else:
            yield table().flat(section), SkillOptValue(value, section)
