"""The identity of a run: what is recorded, and what counts as a change."""

import json
from pathlib import Path

import pytest

from skillfit.config import Config, load_config
from skillfit.errors import InputError
from skillfit.run.directory import RecordedIdentity, RunDirectory, settings_identity

SETTINGS = settings_identity(load_config({}))
PARTS = {
    "gate": {"python": "MyGate", "source": "1111"},
    "proposer": {"python": "MyProposer", "source": "1111"},
    "sampler": None,
    "agent": {"python": "solve", "source": "1111"},
    "ship_grader": None,
}


def with_sources(**sources: str) -> RecordedIdentity:
    """An identity with other content of the files of these parts."""
    changed = {kind: {**(PARTS[kind] or {}), "source": source} for kind, source in sources.items()}
    return RecordedIdentity({"config": SETTINGS, "parts": {**PARTS, **changed}})


def test_a_change_is_named_with_its_key_and_both_values() -> None:
    before = RecordedIdentity({"train": {"seed": 1}, "tasks": ["a", "b"], "gone": None})
    after = RecordedIdentity({"train": {"seed": 2}, "tasks": ["a"]})
    changes = [str(change) for change in before.changes(after)]
    assert changes == ['tasks: ["a","b"] -> ["a"]', "train.seed: 1 -> 2"]


def test_files_at_another_place_are_no_change() -> None:
    before = RecordedIdentity({"gate": "/home/one/parts.py:Gate", "all": [{"a": "x/p.py:f"}]})
    after = RecordedIdentity({"gate": "/srv/parts.py:Gate", "all": [{"a": "y/p.py:f"}]})
    assert before.changes(after) == []
    assert before.changes(RecordedIdentity({**after.values, "gate": "/srv/other.py:Gate"}))


def test_a_fix_changes_only_the_file_of_the_failed_part_and_of_parts_that_decide_again() -> None:
    before = with_sources()
    both = before.changes(with_sources(gate="2222", proposer="2222"))
    assert [change.key for change in both] == ["parts.gate.source", "parts.proposer.source"]
    assert before.is_fix(both, "gate")
    assert not before.is_fix(both, ""), "no part has failed"
    assert not before.is_fix(both, "sampler"), "that part is in no file"
    with_agent = before.changes(with_sources(gate="2222", agent="2222"))
    assert not before.is_fix(with_agent, "gate"), "attempts of the agent are recorded"


def test_parts_that_an_older_version_did_not_record_are_no_change() -> None:
    older = RecordedIdentity({"config": {}, "parts": {"gate": PARTS["gate"]}})
    assert older.changes(with_sources()) == []
    assert [change.key for change in older.changes(with_sources(gate="2222"))] == [
        "parts.gate.source"
    ]


# What a version without `optimizer.prune_initial` recorded about a run.
OLDER = json.loads((Path(__file__).parent / "older_identity.json").read_text())


def identity_now(*overrides: str) -> RecordedIdentity:
    """The identity of the same run under this version."""
    return RecordedIdentity(
        {**OLDER, "config": settings_identity(load_config(OLDER["config"], overrides))}
    )


async def test_a_run_of_an_older_version_resumes_with_settings_that_were_added_since(
    tmp_path: Path,
) -> None:
    assert "prune_initial" not in OLDER["config"]["optimizer"]
    with RunDirectory.open(tmp_path / "run", RecordedIdentity(OLDER)) as run:
        await run.journal.note("rollout/1", 1, int, stage="rollout")
    with RunDirectory.open(tmp_path / "run", identity_now()) as run:
        assert run.resumed
    with pytest.raises(InputError, match=r"config\.optimizer\.prune_initial: false -> true"):
        RunDirectory.open(tmp_path / "run", identity_now("optimizer.prune_initial=true"))


@pytest.mark.parametrize("key", ["env.network", "model.agent.thinking", "train.lag"])
async def test_any_setting_may_be_unknown_to_the_version_that_started_the_run(
    tmp_path: Path, key: str
) -> None:
    older = json.loads(json.dumps(OLDER))
    *sections, name = key.split(".")
    holder = older["config"]
    for section in sections:
        holder = holder[section]
    del holder[name]
    with RunDirectory.open(tmp_path / "run", RecordedIdentity(older)) as run:
        await run.journal.note("rollout/1", 1, int, stage="rollout")
    RunDirectory.open(tmp_path / "run", identity_now()).close()


def test_what_only_says_how_fast_and_how_far_may_change_on_resume() -> None:
    free = [
        "budget.usd=9",
        "executor=ray",
        "run=elsewhere",
        "model.concurrency=2",
        "model.prices={m: {input: 1.0}}",
        "gradient.analyst_workers=3",
        "env.exec_timeout=9",
        "model.agent.timeout=5",
        "model.agent.retries=1",
        "model.agent.key_env=OTHER",
    ]
    base = {"model": {"agent": "openai/a"}}
    assert settings_identity(load_config(base, free)) == settings_identity(load_config(base))


@pytest.mark.parametrize(
    "override",
    [
        "train.seed=1",
        "model.agent.temperature=1",
        "model.agent=openai/b",
        "env.grader=f1",
        "recipe=paper",
    ],
)
def test_what_says_what_the_run_does_may_not(override: str) -> None:
    base = {"model": {"agent": "openai/a"}}
    assert settings_identity(load_config(base, [override])) != settings_identity(load_config(base))


def test_an_identity_leaves_the_config_as_it_was() -> None:
    config = Config()
    settings_identity(config)
    assert config == Config()
