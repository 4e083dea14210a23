"""Files are written completely or not at all, a run has one writer, and it resumes only with its
own identity: what is recorded of it, and what counts as a change.
"""

import json
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skillfit.config import Config, load_config
from skillfit.errors import InputError
from skillfit.models.protocol import ROLES, AnswerPending, Usage
from skillfit.record.fold import read_record
from skillfit.run.control import Interrupted
from skillfit.run.directory import (
    Identity,
    RunDirectory,
    identity_changes,
    is_fix,
    settings_identity,
)
from skillfit.run.events import RunFinished, RunStarted, Warned
from skillfit.run.store import RunLock, in_use
from skillfit.tasks.item import stable_hash
from tests.support.records import run_started, run_summary

IDENTITY = {"train": {"seed": 1, "batch_size": 8}, "tasks": ["a", "b"], "skill": "hash"}


def started(**config: object) -> RunStarted:
    return run_started(config=config)


def test_a_new_run_has_an_id_that_a_resume_keeps(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "deep" / "run", IDENTITY) as run:
        first = run.run_id
        assert not run.resumed
        run.events.emit(started())
    reordered = dict(reversed(IDENTITY.items()))
    with RunDirectory.open(tmp_path / "deep" / "run", reordered) as run:
        assert run.resumed
        assert run.run_id == first


async def test_a_changed_identity_is_refused_with_exactly_what_changed(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.journal.record("rollout/1", 1, int, stage="rollout")
    changed = {
        "train": {"seed": 2, "batch_size": 8, "extra": None},
        "tasks": ["a"],
        "skill": "hash",
    }
    with pytest.raises(InputError) as raised:
        RunDirectory.open(tmp_path / "run", changed)
    lines = [line.strip() for line in raised.value.message.splitlines() if "->" in line]
    assert lines == ['tasks: ["a","b"] -> ["a"]', "train.seed: 1 -> 2"]
    RunDirectory.open(tmp_path / "run", IDENTITY).close()  # and nothing was changed or left locked


async def test_a_change_of_which_only_hashes_are_known_is_named_without_them(
    tmp_path: Path,
) -> None:
    RunDirectory.open(tmp_path / "run", {"skill": stable_hash("a"), "corpus": ""}).close()
    with RunDirectory.open(tmp_path / "run", {"skill": stable_hash("a"), "corpus": ""}) as run:
        run.journal.record("rollout/1", 1, int, stage="rollout")
    changed = {"skill": stable_hash("b"), "corpus": stable_hash("c")}
    with pytest.raises(InputError) as raised:
        RunDirectory.open(tmp_path / "run", changed)
    assert "skill: the content has changed" in raised.value.message
    assert "corpus: the content has changed" in raised.value.message
    assert stable_hash("b") not in raised.value.message


async def test_a_run_that_only_probed_its_models_may_change_and_keeps_its_usage(
    tmp_path: Path,
) -> None:
    with RunDirectory.open(tmp_path / "run", {"model": "typo"}) as run:
        run.events.emit(started(model="typo"))
        run.events.emit(Warned(what="of the typo", message=""))
        await run.journal.once(
            "call/judge/probe/1",
            tried,
            returns=int,
            stage="probe",
            usage=lambda _: Usage(calls=1, input=7),
        )
        run.events.emit(
            RunFinished(
                finish_reason="infrastructure", diagnosis="", best_skill="", summary=run_summary()
            )
        )
    with RunDirectory.open(tmp_path / "run", {"model": "right"}) as run:
        assert not run.resumed and run.journal.spent().input == 7
        assert list(run.events.read()) == []
        run.events.emit(started(model="right"))
    with RunDirectory.open(tmp_path / "run", {"model": "right"}) as run:
        assert run.resumed


async def tried() -> int:
    return 1


def test_a_run_that_records_nothing_leaves_no_files(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "runs" / "run", {"secret": "canary"}) as run:
        run.journal.set_fact("minutes", 1)
    assert list((tmp_path / "runs").iterdir()) == []
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".log").write_text("kept")
    RunDirectory.open(tmp_path / "mine", {}).close()
    assert [entry.name for entry in (tmp_path / "mine").iterdir()] == [".log"]


def test_a_lock_file_deleted_by_an_empty_run_does_not_block_the_next_run(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    first.remove()
    assert list(tmp_path.iterdir()) == []
    second = RunLock(tmp_path)
    assert in_use(tmp_path)
    second.release()
    assert not in_use(tmp_path)


def test_force_new_renames_the_old_run_and_deletes_nothing(tmp_path: Path) -> None:
    ids = []
    for seed in (1, 1, 3):
        with RunDirectory.open(tmp_path / "run", {"seed": seed}, force_new=True) as run:
            run.write_text("note.txt", f"run {len(ids)}")
            ids.append(run.run_id)
    assert len(set(ids)) == 3
    assert [
        (tmp_path / name / "note.txt").read_text() for name in ("run.old-1", "run.old-2", "run")
    ] == ["run 0", "run 1", "run 2"]
    with RunDirectory.open(tmp_path / "run.old-1", {"seed": 1}) as old:
        assert old.run_id == ids[0]


def test_a_damaged_run_is_reported_and_can_be_renamed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "journal.sqlite").write_bytes(b"garbage " * 1000)
    with pytest.raises(InputError, match="is damaged") as raised:
        RunDirectory.open(tmp_path / "run", {})
    assert "--force-new" in raised.value.hint
    RunDirectory.open(tmp_path / "run", {}, force_new=True).close()
    assert (tmp_path / "run.old-1" / "journal.sqlite").read_bytes() == b"garbage " * 1000


def test_the_error_for_a_locked_run_names_the_process(tmp_path: Path) -> None:
    code = "import sys; from skillfit.run.directory import RunDirectory\n"
    code += "run = RunDirectory.open(sys.argv[1], {})\n"
    code += "print('open', flush=True); sys.stdin.readline()"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(InputError, match=f"in use by process {holder.pid} on "):
        RunDirectory.open(tmp_path / "run", {})
    with pytest.raises(InputError, match="in use by"):
        RunDirectory.open(tmp_path / "run", {"other": 1}, force_new=True)
    RunDirectory.read(tmp_path / "run").close()  # reading needs no lock
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    RunDirectory.open(tmp_path / "run", {}).close()  # a killed process holds no lock
    holder.stdout.close()
    assert holder.stdin is not None
    holder.stdin.close()


def test_files_are_written_atomically_and_only_when_they_change(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as run:
        run.write_json("steps/a.json", {"text": "é", "n": [1, None], "x": float("nan")})
        target = tmp_path / "run" / "steps" / "a.json"
        assert json.loads(target.read_text(encoding="utf-8")) == {
            "text": "é",
            "n": [1, None],
            "x": None,
        }
        before = target.stat().st_ino
        run.write_json("steps/a.json", {"text": "é", "n": [1, None], "x": float("nan")})
        assert target.stat().st_ino == before
    assert not [entry for entry in (tmp_path / "run").rglob("*") if ".writing" in str(entry)]


def test_readers_see_the_old_or_the_new_file_even_after_a_kill(
    tmp_path: Path,
) -> None:
    program = textwrap.dedent("""
        import sys
        from skillfit.run.directory import RunDirectory
        run = RunDirectory.open(sys.argv[1], {})
        for n in range(1_000_000):
            run.write_text("big.txt", str(n % 10) * 3_000_000)
            print("written", flush=True)
    """)
    big = tmp_path / "run" / "big.txt"
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    for look in range(300):
        if look == 299:
            writer.kill()
            writer.wait()
        text = big.read_text()
        assert len(text) == 3_000_000
        assert text == text[0] * len(text)
    writer.stdout.close()
    RunDirectory.open(tmp_path / "run", {}).close()
    assert sorted(entry.name for entry in (tmp_path / "run").iterdir()) == [
        "big.txt",
        "journal.sqlite",
        "run.lock",
    ]


def test_a_full_disk_is_reported_and_keeps_the_old_file(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import resource, signal, sys
        from skillfit.errors import InputError
        from skillfit.run.directory import RunDirectory
        run = RunDirectory.open(sys.argv[1], {})
        run.write_text("file.txt", "old")
        # Then a write beyond the limit fails like one on a full disk.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            run.write_text("file.txt", "new" * 1_000_000)
        except InputError as error:
            print(error.message)
        run.close()
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("No room left on the disk while writing ")
    assert (tmp_path / "run" / "file.txt").read_text() == "old"
    RunDirectory.open(tmp_path / "run", {}).close()
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_path_that_is_a_file_or_has_other_files_is_refused_unchanged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        RunDirectory.open(tmp_path / "file", {})
    with pytest.raises(InputError, match="Cannot write"):
        RunDirectory.open(tmp_path / "file" / "below", {})
    project = tmp_path / "project"
    project.mkdir()
    (project / "main.py").write_text("")
    with pytest.raises(InputError, match=r"holds other files \(main.py\)"):
        RunDirectory.open(project, {})
    assert [entry.name for entry in project.iterdir()] == ["main.py"]


@pytest.mark.skipif(
    not Path("/sys/kernel").is_dir(), reason="needs a place where even root may not write"
)
def test_a_folder_without_permission_is_reported() -> None:
    with pytest.raises(InputError, match="No permission to write /sys/kernel/run"):
        RunDirectory.open("/sys/kernel/run", {})


def test_a_read_only_view_follows_a_run(tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as run:
        view = RunDirectory.read(tmp_path / "run")
        assert (view.run_id, view.config.root) == (run.run_id, {})
        assert view.events.last(RunFinished) is None
        run.events.emit(started(seed=1))
        run.events.emit(Warned(what="w", message="m"))
        assert view.config.root == {"seed": 1}
        run.events.emit(
            RunFinished(
                finish_reason="improved",
                diagnosis="",
                best_skill="# B\n",
                summary=run_summary(best_step=1),
            )
        )
        (finished,) = view.events.found(RunFinished)
        assert finished.summary == run_summary(best_step=1)
        assert len(list(view.events.read())) == 3
        view.close()
    with RunDirectory.open(tmp_path / "run", {}):
        assert not RunDirectory.read(tmp_path / "run").events.found(RunFinished)  # it was resumed


def test_reading_a_folder_without_a_run_is_an_error_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run directory"):
        RunDirectory.read(tmp_path)


SETTINGS = settings_identity(load_config({}))
PARTS = {
    "gate": {"python": "MyGate", "source": "1111"},
    "proposer": {"python": "MyProposer", "source": "1111"},
    "sampler": None,
    "agent": {"python": "solve", "source": "1111"},
    "ship_grader": None,
}


def with_sources(**sources: str) -> Identity:
    """An identity with other content of the files of these parts."""
    changed = {kind: {**(PARTS[kind] or {}), "source": source} for kind, source in sources.items()}
    return {"config": SETTINGS, "parts": {**PARTS, **changed}}


def test_a_change_is_named_with_its_key_and_both_values() -> None:
    before = {"train": {"seed": 1}, "tasks": ["a", "b"], "gone": None}
    after = {"train": {"seed": 2}, "tasks": ["a"]}
    changes = [str(change) for change in identity_changes(before, after)]
    assert changes == ['tasks: ["a","b"] -> ["a"]', "train.seed: 1 -> 2"]


def test_moved_files_are_not_a_change() -> None:
    before = {"gate": "/home/one/parts.py:Gate", "all": [{"a": "x/p.py:f"}]}
    after = {"gate": "/srv/parts.py:Gate", "all": [{"a": "y/p.py:f"}]}
    assert identity_changes(before, after) == []
    assert identity_changes(before, {**after, "gate": "/srv/other.py:Gate"})


def test_a_fix_may_change_only_the_failed_part_and_parts_that_decide_again() -> None:
    before = with_sources()
    both = identity_changes(before, with_sources(gate="2222", proposer="2222"))
    assert [change.key for change in both] == ["parts.gate.source", "parts.proposer.source"]
    assert is_fix(before, both, "gate")
    assert not is_fix(before, both, ""), "no part has failed"
    assert not is_fix(before, both, "sampler"), "that part is in no file"
    with_agent = identity_changes(before, with_sources(gate="2222", agent="2222"))
    assert not is_fix(before, with_agent, "gate"), "attempts of the agent are recorded"


async def test_a_setting_that_was_added_since_the_run_started_is_no_change(tmp_path: Path) -> None:
    def now(*overrides: str) -> Identity:
        return {"config": settings_identity(load_config({}, ["train.seed=7", *overrides]))}

    recorded = now()
    assert recorded == {"config": {"train": {"seed": 7}, "model": dict.fromkeys(ROLES)}}
    with RunDirectory.open(tmp_path / "run", recorded) as run:
        run.journal.record("rollout/1", 1, int, stage="rollout")
    with RunDirectory.open(tmp_path / "run", now()) as run:
        assert run.resumed
    with pytest.raises(InputError, match=r"config\.optimizer\.prune_initial: false -> true"):
        RunDirectory.open(tmp_path / "run", now("optimizer.prune_initial=true"))


@pytest.mark.parametrize("reading", [False, True])
def test_a_run_with_another_format_is_refused(tmp_path: Path, reading: bool) -> None:
    with RunDirectory.open(tmp_path / "run", IDENTITY) as run:
        run.write_text("note.txt", "kept")
    with sqlite3.connect(tmp_path / "run" / "journal.sqlite") as journal:
        journal.execute("PRAGMA user_version = 99")
    journal.close()
    with pytest.raises(InputError, match="its format is 99, and this version reads format 1"):
        RunDirectory.read(tmp_path / "run") if reading else RunDirectory.open(
            tmp_path / "run", IDENTITY
        )
    RunDirectory.open(tmp_path / "run", IDENTITY, force_new=True).close()
    assert (tmp_path / "run.old-1" / "note.txt").read_text() == "kept"


def test_speed_and_length_settings_may_change_on_resume() -> None:
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
def test_settings_that_affect_results_may_not_change_on_resume(override: str) -> None:
    base = {"model": {"agent": "openai/a"}}
    assert settings_identity(load_config(base, [override])) != settings_identity(load_config(base))


def test_making_an_identity_does_not_change_the_config() -> None:
    config = Config()
    settings_identity(config)
    assert config == Config()


def _ends(path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), RunDirectory.open(path, IDENTITY) as run:
        run.events.emit(started())
        raise error


def test_a_run_that_stopped_says_why(tmp_path: Path) -> None:
    """Also one whose process is killed, which can write nothing any more."""
    path = tmp_path / "run"
    for error, reason in (
        (Interrupted(path), "A person or another program asked the run to stop."),
        (InputError("The key is wrong.", hint="Set it."), "The key is wrong. Set it."),
        (AnswerPending("One prompt waits."), "It waited for a person."),
        (ZeroDivisionError("oops"), "An unexpected error in skillfit: ZeroDivisionError: oops"),
    ):
        _ends(path, error)
        assert read_record(path).diagnosis == reason
    killed = RunDirectory.open(path, IDENTITY)
    assert read_record(path).diagnosis == "", "it is running"
    killed.journal.close()
    killed.events.close()
    killed._lock.release()
    assert "killed" in read_record(path).diagnosis
