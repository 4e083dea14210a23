"""What a benchmark consists of, and where its data is found.

`env.tasks: NAME` reads the data that `skillfit data get NAME` or `data make NAME` prepared,
`NAME:sample` the items that come with skillfit, and `NAME:PATH` a file or folder in the
benchmark's own format.

A `Dialogue` records the model calls of an evaluator that runs its items itself as the steps of an
attempt.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Required, TypedDict

import yaml

from skillfit.errors import InputError, did_you_mean
from skillfit.extensions import (
    JsonValue,
    SourceDefaults,
    SourceReference,
    TaskSource,
    source_module,
    source_names,
)
from skillfit.models.protocol import Message, Model, Reply, Request, Tool, ToolCall, Usage
from skillfit.tasks.item import Attempt, Item, TrajectoryStep
from skillfit.tasks.rows import SUFFIXES, Row, folder_rows, items_of, read_rows
from skillfit.tasks.splits import SPLIT_NAMES
from skillfit.tasks.task import LoadContext, SourceItems

SAMPLE = "sample"
MANIFEST = "skillfit-data.json"  # in a prepared folder: what it was made from
FOLDERS_COLUMN = "skillfit_folders"  # of a prepared row: its `base` and `root`


class ItemRow(TypedDict, total=False):
    """An item in skillfit's format. A benchmark may add columns for its own grader or evaluator."""

    id: Required[str]
    type: str
    input: Required[str]
    answers: list[str]
    choices: dict[str, str]  # by label
    images: list[str]
    image_detail: str
    files: dict[str, str]  # by their names in the workspace
    reference: str


Convert = Callable[[Row], ItemRow | None]
"""A row in the benchmark's format -> the same in skillfit's; None: skip."""
Read = Callable[[Path], Iterator[Row]]
RowId = Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of a data set on the Hugging Face Hub, by patterns of their paths."""

    repo: str
    patterns: tuple[str, ...]
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """A file at a fixed address."""

    url: str
    sha256: str = ""  # empty: the publisher names none; the one found is shown and recorded


@dataclass(frozen=True, slots=True)
class PublishedSplits:
    """Lists of item ids for train, val and test, published as `FOLDER/{train,val,test}/items.json`.
    Rows that no list names are left out.
    """

    url: str  # of the folder
    counts: tuple[int, int, int]


def skillopt_splits(name: str, train: int, selection: int, test: int) -> PublishedSplits:
    """Return the lists that the SkillOpt authors publish in the data folder of their repository."""
    root = "https://raw.githubusercontent.com/microsoft/SkillOpt/main/data"
    return PublishedSplits(f"{root}/{name}", (train, selection, test))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark without its data.

    `read` finds the rows in the layout that the publisher distributes. `row_id` tells which id a
    row has in the published splits.
    """

    name: str
    title: str
    homepage: str
    licence: str
    folder: Path
    downloads: tuple[HubFiles | PublishedFile, ...] = ()
    splits: PublishedSplits | None = None
    read: Read = field(default=lambda path: read_any(path))
    row_id: RowId = field(default=lambda row: text(row, "id"))

    def source(
        self,
        reference: SourceReference,
        convert: Convert,
        *,
        how: Callable[[LoadContext], SourceItems] = lambda context: SourceItems(()),
        config: SourceDefaults | None = None,
    ) -> TaskSource:
        """Return the task source. `how` brings a grader or evaluator that no config value can name;
        `config` is laid over the values of NAME.yaml.
        """

        def load(context: LoadContext) -> SourceItems:
            return replace(how(context), items=self.items(reference, convert))

        return TaskSource(load, self._config(config or {}))

    def items(self, reference: SourceReference, convert: Convert) -> list[Item]:
        converted = (
            replace(row, values=values, at=None, root=None)
            for row in self.rows(reference)
            if (values := convert(row)) is not None
        )
        items = items_of(converted, {})
        if not items:
            raise InputError(
                f"{self.name}: no items in {self.path(reference)} fit the options of env.task_args."
            )
        return items

    def rows(self, reference: SourceReference) -> Iterator[Row]:
        """Yield the rows that a reference names, in the benchmark's format. `root` of a row is the
        folder that the files it refers to must be in.
        """
        path = self.path(reference)
        prepared_here = (path / MANIFEST).is_file()
        if has_splits(path):
            rows = folder_rows(path)
        elif prepared_here:
            rows = read_rows(path / "items.jsonl")
        else:
            rows = self.read(path)
        root = path if path.is_dir() else path.parent
        for row in rows:
            if prepared_here:
                base, inside = row.values[FOLDERS_COLUMN]
                yield replace(row, base=Path(base), root=Path(inside))
            else:
                yield replace(row, root=root)

    def path(self, reference: SourceReference) -> Path:
        """Return the file or folder that a reference names."""
        if reference.argument == SAMPLE:
            return self.folder / "sample"
        if reference.argument:
            path = reference.base / reference.argument
            if path.exists():
                return path
            raise InputError(
                f"env.tasks: {self.name}:{reference.argument}: {path} does not exist.",
                hint=f"{self.name}:{SAMPLE} is a small sample that comes with skillfit.",
            )
        path = prepared(self.name)
        if (path / MANIFEST).is_file():  # written last
            return path
        raise InputError(
            f"env.tasks: there is no data for {self.name} in {path}.",
            hint=f"Run `skillfit data get {self.name}`, or `skillfit data make {self.name} --from "
            f"PATH` with your own copy, or use {self.name}:{SAMPLE}, a small sample.",
        )

    def data_folder(self, reference: SourceReference) -> Path:
        """Return the folder that holds the files of the data: for data that `data make` prepared,
        the folder it was made from.
        """
        path = self.path(reference)
        if (path / MANIFEST).is_file():
            source = Path(json.loads((path / MANIFEST).read_bytes())["source"])
            path = source if source.exists() else path
        return path if path.is_dir() else path.parent

    def _config(self, over: SourceDefaults) -> SourceDefaults:
        yaml_text = (self.folder / f"{self.name}.yaml").read_text(encoding="utf-8")
        config: dict[str, Mapping[str, JsonValue]] = yaml.safe_load(yaml_text) or {}
        config.pop("benchmark", None)  # what `question_set.py` reads
        skill: SourceDefaults = {"env": {"skill": str(self.folder / f"{self.name}.md")}}
        for layer in (skill, over):
            for section, values in layer.items():
                config[section] = {**config.get(section, {}), **values}
        return config


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of this name, from the module of the task source."""
    found = _benchmark_of(name)
    if found is None:
        known = benchmark_names()
        raise InputError(
            f"{name!r} is not a benchmark with data to prepare.",
            hint=did_you_mean(name, known) or f"Known: {', '.join(known)}.",
        )
    return found


def benchmark_names() -> list[str]:
    """Return the task sources that are benchmarks with data to prepare."""
    return [name for name in source_names() if _benchmark_of(name) is not None]


def _benchmark_of(source: str) -> Benchmark | None:
    """Return the `Benchmark` in the module of a task source: the one of the same name, or the
    constant BENCHMARK, for sources that other packages offer under another name.
    """
    module = source_module(source)
    if not module:
        return None
    members = vars(import_module(module))
    of_same_name = (
        value for value in members.values() if isinstance(value, Benchmark) and value.name == source
    )
    found = next(of_same_name, members.get("BENCHMARK"))
    return found if isinstance(found, Benchmark) else None


def data_home() -> Path:
    """Find where prepared benchmarks are kept: SKILLFIT_DATA, or a folder of the user's cache."""
    chosen = os.environ.get("SKILLFIT_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "skillfit" / "data"


def prepared(name: str) -> Path:
    """Return the folder of a prepared benchmark."""
    return data_home() / name


def has_splits(path: Path) -> bool:
    """Return whether a folder is divided into train, val and test, each with a file of rows."""
    for child in path.iterdir() if path.is_dir() else ():
        if SPLIT_NAMES.get(child.stem) != "train":
            continue
        files = child.iterdir() if child.is_dir() else [child]
        if any(file.is_file() and file.suffix in SUFFIXES for file in files):
            return True
    return False


def find_in_data(row: Row, names: Iterable[str], data_root: Path | None = None) -> Path | None:
    """Return the first file or folder of these names in `data_root`, or else in the row's own
    folder or the folder that the user named. Names that lead out of these folders are ignored: data
    from somebody else must not read private files.
    """
    folders = [data_root] if data_root else [row.base, *([row.root] if row.root else [])]
    for folder in folders:
        for name in names:
            found = (folder / name).resolve()
            inside = row.root if row.root and folder == row.base else folder
            if found.exists() and found.is_relative_to(inside.resolve()):
                return found
    return None


def data_root_of(reference: SourceReference, data_root: str) -> Path | None:
    """Return the folder that the option `data_root` names; None when it is not set."""
    return reference.base / Path(data_root).expanduser() if data_root else None


def read_any(path: Path) -> Iterator[Row]:
    """Yield the rows of a JSON, JSONL, CSV or Parquet file, or of all such files in a folder."""
    files = [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.suffix in (*SUFFIXES, ".parquet"))
        files = [file for file in found if file.name != MANIFEST]
    if not files:
        raise InputError(f"{path}: no JSON, JSONL, CSV or Parquet file in this folder.")
    for file in files:
        yield from read_parquet(file) if file.suffix == ".parquet" else read_rows(file)


def read_parquet(path: Path) -> Iterator[Row]:
    """Yield the rows of a Parquet file, a batch at a time."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise InputError(
            f"{path}: reading Parquet files needs pyarrow.", hint="pip install 'skillfit[data]'"
        ) from error
    number = 0
    with ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=256):
            for values in batch.to_pylist():
                number += 1
                yield Row(values, f"{path}: row {number}", path.parent)


def text(row: Row, *columns: str) -> str:
    """Return the first of these columns that holds something, as text. One of them must."""
    value = optional(row, *columns)
    if not value:
        raise InputError(
            f"{row.where}: no {' or '.join(columns)}.",
            hint=f"Columns here: {', '.join(map(str, row.values)) or 'none'}.",
        )
    return value


def optional(row: Row, *columns: str) -> str:
    """Return the same as `text`, but empty when no column holds anything."""
    values = (row.values.get(column) for column in columns)
    return next((str(value).strip() for value in values if value not in (None, "", [])), "")


@dataclass
class Dialogue:
    """The calls of one rollout. `seed` differs between repeats of an item."""

    model: Model
    item: Item
    seed: int
    steps: list[TrajectoryStep] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    calls: int = 0

    async def ask(self, messages: tuple[Message, ...], tools: tuple[Tool, ...] = ()) -> Reply:
        """Return the model's reply. Raises `ModelError` when there is none: a failed rollout."""
        purpose = f"{self.item.id}/{self.seed}/turn_{self.calls}"
        request = Request(messages, "rollout", tools, seed=self.seed, purpose=purpose)
        self.calls += 1
        reply = await self.model.complete(request)
        self.usage += reply.usage
        if reply.text.strip():
            self.steps.append(TrajectoryStep("message", reply.text))
        return reply

    async def use_tool(
        self,
        messages: tuple[Message, ...],
        tool: Tool,
        use: Callable[[ToolCall], Awaitable[str]],
        turns: int,
    ) -> str:
        """Let the model call the tool until it replies without a call, or the turns are used up;
        returns its last text. `use` runs one call and returns what the model is told.
        """
        text = ""
        for _ in range(turns):
            reply = await self.ask(messages, (tool,))
            text = reply.text
            if not reply.tool_calls:
                return text
            message = Message("assistant", reply.text, tool_calls=reply.tool_calls)
            results = [await self._used(call, use) for call in reply.tool_calls]
            messages = (*messages, message, *results)
        self.note(f"Ended after {turns} turns.")
        return text

    async def _used(self, call: ToolCall, use: Callable[[ToolCall], Awaitable[str]]) -> Message:
        self.steps.append(TrajectoryStep("tool_call", call.arguments, name=call.name))
        result = await use(call)
        self.steps.append(TrajectoryStep("tool_result", result, role="tool", name=call.name))
        return Message("tool", result, tool_call_id=call.id)

    def note(self, text: str) -> None:
        self.steps.append(TrajectoryStep("note", text, role="harness"))

    def attempt(self, answer: str) -> Attempt:
        """Return what the calls came to."""
        return Attempt(answer, tuple(self.steps), usage=self.usage)


def packaged_text(folder: Path, name: str) -> str:
    """Return a text file that comes with a benchmark."""
    return (folder / name).read_text(encoding="utf-8")


def required_model(model: Model | None, name: str) -> Model:
    """Return the agent's model; an evaluator that calls it cannot run without one."""
    if model is None:
        raise InputError(f"{name} needs the agent's model.", hint="Set model.agent.")
    return model


def extract_tar(files: tarfile.TarFile, folder: Path) -> None:
    """Write the members of an archive below `folder`; what would end outside is refused. Python
    before 3.11.4 has no filters for that.
    """
    if hasattr(tarfile, "data_filter"):
        try:
            files.extractall(folder, filter="data")
        except tarfile.FilterError as error:
            raise InputError(f"The archive was refused: {error}.") from error
        return
    root = folder.resolve()
    for member in files:
        place = root / member.name
        ends = [place]
        if member.issym():
            ends.append(place.parent / member.linkname)
        elif member.islnk():
            ends.append(root / member.linkname)
        if not all(end.resolve().is_relative_to(root) for end in ends):
            raise InputError(f"The archive was refused: {member.name} is outside its folder.")
        if member.isfile() or member.isdir() or member.issym() or member.islnk():
            files.extract(member, root)
