"""What the sandbox prevents, under every isolation that this machine has. Programs end with
skillfit, and the next start removes what an earlier one left.
"""

from __future__ import annotations

import asyncio
import asyncio.unix_events
import os
import pickle
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skillfit.errors import InputError, TaskFailure
from skillfit.sandbox import file_view
from skillfit.sandbox.file_view import Access
from skillfit.sandbox.programs import (
    ISOLATIONS,
    MARK,
    Isolation,
    Launch,
    Limits,
    ProcessResult,
    SandboxNotStarted,
    best_isolation,
    choose_isolation,
    new_folder,
    remove_abandoned,
    remove_folder,
    run_process,
    run_sandboxed,
    run_untrusted,
    works,
)
from tests.sandbox.processes import is_gone, is_running, leaving_a_child, wait_for
from tests.support.small_disk import needs_small_disk, on_small_disk

AVAILABLE = [isolation for isolation in ISOLATIONS if works(isolation)]
BUBBLEWRAP = ISOLATIONS[0]

each = pytest.mark.parametrize("isolation", AVAILABLE, ids=lambda isolation: isolation.name)
with_bubblewrap = pytest.mark.skipif(
    BUBBLEWRAP not in AVAILABLE, reason="bubblewrap does not work on this machine"
)


async def python(
    code: str, cwd: Path, isolation: Isolation, timeout: float = 30, **options: Any
) -> ProcessResult:
    argv = [sys.executable, "-c", code]
    return await run_untrusted(argv, cwd=cwd, timeout=timeout, isolation=isolation, **options)


@each
async def test_a_program_runs_in_its_folder_and_reports_its_isolation(
    tmp_path: Path, isolation: Isolation
) -> None:
    code = "import os, sys; open('out', 'w').write(sys.stdin.read()); print(os.getcwd())"
    done = await python(code, tmp_path, isolation, stdin=b"hi")

    assert (done.code, done.stdout.strip(), done.isolation) == (0, str(tmp_path), isolation.name)
    assert (tmp_path / "out").read_text() == "hi"


@each
async def test_the_environment_of_skillfit_is_not_passed_on(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    done = await python("import os; print(dict(os.environ))", tmp_path, isolation)

    assert "sk-secret" not in done.stdout
    assert f"'HOME': '{tmp_path}'" in done.stdout


@each
@pytest.mark.parametrize("network", [True, False], ids=["with network", "without"])
async def test_the_network_is_blocked_as_documented(
    tmp_path: Path, isolation: Isolation, network: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = ("127.0.0.1", server.getsockname()[1])
        code = f"import socket; socket.create_connection({address}, 5); print('reached')"
        done = await python(code, tmp_path, isolation, network=network)

    assert ("reached" in done.stdout) == (network or not isolation.cuts_network)


LOOK_FOR_KEYS = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        variables = path.read_text().split(chr(0))
    except OSError:
        continue
    print(*(line for line in variables if line.startswith("A_KEY_OF_OURS=")))
"""


@each
async def test_the_environment_of_other_processes_is_hidden_as_documented(
    tmp_path: Path, isolation: Isolation
) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "600", env={"A_KEY_OF_OURS": "sesame"})
    try:
        done = await python(LOOK_FOR_KEYS, tmp_path, isolation)
    finally:
        other.kill()
        await other.wait()

    assert done.code == 0
    assert ("sesame" in done.stdout) != isolation.hides_processes


@each
async def test_other_files_are_hidden_as_documented(tmp_path: Path, isolation: Isolation) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("sesame")
    code = f"print(open({str(tmp_path / 'secret')!r}).read())"
    done = await python(code, tmp_path / "in", isolation)

    assert ("sesame" in done.stdout) != isolation.hides_files


@each
async def test_readable_folders_can_be_read_but_not_written(
    tmp_path: Path, isolation: Isolation
) -> None:
    work, corpus = tmp_path / "work", tmp_path / "corpus"
    work.mkdir()
    corpus.mkdir()
    (corpus / "page.txt").write_text("sesame")
    read = await python(
        f"print(open({str(corpus / 'page.txt')!r}).read())", work, isolation, readable=(corpus,)
    )
    await python(f"open({str(corpus / 'new')!r}, 'w')", work, isolation, readable=(corpus,))

    assert read.stdout == "sesame\n"
    assert (corpus / "new").exists() != isolation.hides_files


@each
async def test_files_may_be_moved_between_folders(tmp_path: Path, isolation: Isolation) -> None:
    code = "import os; os.mkdir('d'); open('f', 'w').close(); os.rename('f', 'd/f')"
    done = await python(code, tmp_path, isolation)

    assert (done.code, done.stderr) == (0, "")
    assert (tmp_path / "d" / "f").exists()


def test_the_best_isolation_is_the_first_that_works() -> None:
    assert best_isolation() == AVAILABLE[0]


@with_bubblewrap
async def test_under_bubblewrap_an_entry_of_a_visible_folder_can_be_shown_empty(
    tmp_path: Path,
) -> None:
    login = tmp_path / "login"
    (login / "history").mkdir(parents=True)
    for name in ("credentials", "settings", "history/chat"):
        (login / name).write_text(f"sesame {name}")
    access = Access(
        (tmp_path / "work", login), empty=(login / "history", login / "settings"), network=False
    )
    (tmp_path / "work").mkdir()
    done = await run_sandboxed(
        ["/bin/sh", "-c", f"cd {login}; cat credentials settings && ls history; echo new > token"],
        cwd=tmp_path / "work",
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
        access=access,
        isolation=BUBBLEWRAP,
    )

    assert done.stdout == "sesame credentials", done.stderr
    assert (login / "token").read_text() == "new\n"


@with_bubblewrap
async def test_a_bubblewrap_that_fails_at_run_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "bin" / "bwrap"
    broken.parent.mkdir()
    broken.write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")

    with pytest.raises(SandboxNotStarted, match="setting up uid map") as failed:
        await python("print(1)", tmp_path, BUBBLEWRAP)
    assert "docs/isolation.md" in failed.value.hint


SANDBOXED_SUM = """
import asyncio, sys, tempfile
from pathlib import Path
from skillfit.sandbox.programs import ISOLATIONS, run_untrusted, works

async def main():
    with tempfile.TemporaryDirectory() as folder:
        for isolation in filter(works, ISOLATIONS):
            argv = [sys.executable, "-c", "import json; print(6 * 7)"]
            done = await run_untrusted(argv, cwd=Path(folder), timeout=30, isolation=isolation)
            print(isolation.name, done.stdout.strip(), done.stderr)

asyncio.run(main())
"""


def test_a_python_environment_reached_through_a_symbolic_link_works(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(Path(sys.prefix).parent)
    (tmp_path / "b").symlink_to("a")
    interpreter = tmp_path / "b" / Path(sys.executable).relative_to(Path(sys.prefix).parent)
    done = subprocess.run(
        [str(interpreter), "-c", SANDBOXED_SUM],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    assert done.stdout.split() == [word for each in AVAILABLE for word in (each.name, "42")]


@each
async def test_a_program_that_is_not_visible_is_an_error(
    tmp_path: Path, isolation: Isolation
) -> None:
    with pytest.raises(SandboxNotStarted, match="nothing-here"):
        await run_untrusted(
            [str(tmp_path / "nothing-here")], cwd=tmp_path, timeout=20, isolation=isolation
        )


@each
async def test_the_time_limit_ends_every_process(tmp_path: Path, isolation: Isolation) -> None:
    word = f"skillfit-limit-{os.getpid()}-{isolation.name}"
    done = await python(leaving_a_child(word, "time.sleep(600)"), tmp_path, isolation, timeout=3)

    assert done.timed_out and done.code is None and done.stdout.strip() == "up"
    assert await is_gone(word)


@each
async def test_processes_left_after_a_normal_end_are_killed(
    tmp_path: Path, isolation: Isolation
) -> None:
    word = f"skillfit-left-{os.getpid()}-{isolation.name}"
    done = await python(leaving_a_child(word, "pass"), tmp_path, isolation)

    assert (done.code, done.stdout.strip()) == (0, "up")
    assert await is_gone(word)


@each
async def test_cancelling_ends_the_program(tmp_path: Path, isolation: Isolation) -> None:
    word = f"skillfit-cancel-{os.getpid()}-{isolation.name}"
    argv = [sys.executable, "-c", "import time; time.sleep(600)", word]
    running = asyncio.ensure_future(
        run_untrusted(argv, cwd=tmp_path, timeout=600, isolation=isolation)
    )
    while not is_running(word):  # noqa: ASYNC110  # another process comes up; there is no event
        await asyncio.sleep(0.02)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert await is_gone(word)


@each
async def test_cancelling_during_the_start_leaves_no_process(
    tmp_path: Path, isolation: Isolation
) -> None:
    word = f"skillfit-early-{os.getpid()}-{isolation.name}"
    argv = [sys.executable, "-c", "import time; time.sleep(600)", word]
    for milliseconds in range(0, 60, 6):
        running = asyncio.ensure_future(
            run_untrusted(argv, cwd=tmp_path, timeout=600, isolation=isolation)
        )
        await asyncio.sleep(milliseconds / 1000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert await is_gone(word)


@each
async def test_memory_is_limited(tmp_path: Path, isolation: Isolation) -> None:
    code = "x = bytearray(800 << 20); print('got it')"
    done = await python(code, tmp_path, isolation, memory=512 << 20)

    assert done.code != 0 and "MemoryError" in done.stderr


@each
async def test_the_number_of_processes_is_limited(tmp_path: Path, isolation: Isolation) -> None:
    word = f"skillfit-many-{os.getpid()}-{isolation.name}"
    code = f"""
import subprocess, sys, time
for number in range(200):
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)", "{word}"])
print("started them all")
time.sleep(600)
"""
    done = await python(code, tmp_path, isolation, processes=30, timeout=60)

    assert "started them all" not in done.stdout
    assert done.killed == "process limit" or "BlockingIOError" in done.stderr
    assert await is_gone(word)


@each
async def test_output_is_capped_and_the_program_is_not_blocked(
    tmp_path: Path, isolation: Isolation
) -> None:
    code = "import sys; print('x' * 3_000_000); print('y' * 3_000_000, file=sys.stderr)"
    done = await python(code, tmp_path, isolation, max_output=1000)

    assert (done.code, len(done.stdout), len(done.stderr)) == (0, 1000, 1000)


def test_the_setting_off_means_no_isolation() -> None:
    assert choose_isolation("off", "env.sandbox").name == "none"


def test_the_setting_require_is_refused_without_full_isolation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weak = next(isolation for isolation in ISOLATIONS if not isolation.full)
    monkeypatch.setattr("skillfit.sandbox.programs.best_isolation", lambda: weak)

    with pytest.raises(InputError, match=r"env\.sandbox is require.*no full isolation") as refused:
        choose_isolation("require", "env.sandbox")
    assert refused.value.hint.endswith("or set env.sandbox to auto.")
    assert choose_isolation("auto", "env.sandbox") == weak


DRIVER = """
import asyncio, sys
from skillfit.sandbox.programs import ISOLATIONS, new_folder, run_untrusted

async def main(name, code):
    isolation = next(each for each in ISOLATIONS if each.name == name)
    await run_untrusted([sys.executable, "-c", code], cwd=new_folder("work"), timeout=600,
                        isolation=isolation)

asyncio.run(main(sys.argv[2], sys.argv[1]))
"""


def start_driver(folder: Path, isolation: str, word: str) -> subprocess.Popen[bytes]:
    """Start a process that runs a program, which has a child with `word` as its last argument."""
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = leaving_a_child(word, "time.sleep(600)")
    return subprocess.Popen([sys.executable, "-c", DRIVER, code, isolation], env=environment)


@pytest.mark.parametrize("isolation", [isolation.name for isolation in AVAILABLE])
async def test_no_process_outlives_a_killed_skillfit(tmp_path: Path, isolation: str) -> None:
    word = f"skillfit-orphan-{os.getpid()}-{isolation}"
    driver = start_driver(tmp_path, isolation, word)
    try:
        wait_for(word)
    finally:
        driver.kill()
        driver.wait()

    assert await is_gone(word)


async def test_no_process_outlives_a_supervisor_that_gets_many_signals(tmp_path: Path) -> None:
    """The kernel sends the parent-death signal once for every thread of skillfit that ends."""
    word = f"skillfit-signals-{os.getpid()}"
    program = [sys.executable, "-S", "-c", leaving_a_child(word, "time.sleep(600)")]
    supervised = Launch().command(program, status=-1)
    for _ in range(30):
        supervisor = subprocess.Popen(supervised, cwd=tmp_path)  # noqa: ASYNC220
        wait_for(word)
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not os.waitid(os.P_PID, supervisor.pid, ended):  # noqa: ASYNC222
            os.kill(supervisor.pid, signal.SIGTERM)

        assert supervisor.wait() == 128 + signal.SIGTERM
        assert await is_gone(word)


async def test_the_next_start_removes_folders_and_processes_of_a_killed_skillfit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"skillfit-abandoned-{os.getpid()}"
    driver = start_driver(tmp_path, "none", word)
    wait_for(word)
    (root,) = tmp_path.glob("skillfit-*")
    driver.kill()
    driver.wait()
    assert await is_gone(word)
    left = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", "import time; time.sleep(600)", word],
        env={MARK: f"{root.name}/0123"},
        start_new_session=True,
    )
    wait_for(word)  # a process that has just been started has no readable environment yet
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    remove_abandoned()

    assert left.wait(timeout=30) == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


async def test_folders_of_a_running_process_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"skillfit-living-{os.getpid()}"
    driver = start_driver(tmp_path, "none", word)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    try:
        wait_for(word)
        remove_abandoned()
        assert len(list(tmp_path.glob("skillfit-*/work-*"))) == 1
        assert is_running(word)
    finally:
        driver.terminate()
        driver.wait()
    assert await is_gone(word)


def test_removing_the_last_folder_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, second = new_folder("one"), new_folder("two")
    (first / "locked").mkdir(mode=0o000)

    remove_folder(first)
    assert second.is_dir() and not first.exists()
    remove_folder(second)
    remove_folder(tmp_path)

    assert tmp_path.is_dir() and list(tmp_path.iterdir()) == []


async def test_a_missing_program_is_an_infrastructure_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(SandboxNotStarted, match="/no/such/program"):
        await run_process(["/no/such/program"], cwd=tmp_path, timeout=20, env={})


async def test_a_program_may_ignore_its_input(tmp_path: Path) -> None:
    done = await run_process(
        ["/bin/sh", "-c", "exit 3"], cwd=tmp_path, timeout=20, env={}, stdin=b"x" * 1_000_000
    )

    assert done.code == 3


async def test_a_closed_pipe_ends_a_program_with_sigpipe(tmp_path: Path) -> None:
    """Python ignores SIGPIPE; the programs it starts must not inherit that."""
    done = await run_process(
        ["/bin/sh", "-c", "yes | head -n 1"],
        cwd=tmp_path,
        timeout=20,
        env={"PATH": "/usr/bin:/bin"},
    )

    assert (done.code, done.stdout, done.stderr) == (0, "y\n", "")


def test_the_clean_up_does_not_follow_links_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every user may write there. A link to a folder is not a folder that skillfit made."""
    scratch, mine = tmp_path / "tmp", tmp_path / "mine"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    mine.mkdir()
    (mine / ".owner").touch()
    (mine / "kept").mkdir(mode=0o500)
    (scratch / "skillfit-planted").symlink_to(mine)
    remove_abandoned()
    assert (mine / "kept").is_dir() and stat.S_IMODE((mine / "kept").stat().st_mode) == 0o500


hiding = pytest.mark.parametrize(
    "isolation",
    [isolation for isolation in AVAILABLE if isolation.hides_files],
    ids=lambda isolation: isolation.name,
)
with_namespaces = pytest.mark.parametrize(
    "isolation",
    [isolation for isolation in AVAILABLE if isolation.own_namespaces],
    ids=lambda isolation: isolation.name,
)
SETTINGS = ("mime.types", "localtime", "passwd", "group", "hosts", "nsswitch.conf", "resolv.conf",
            "services", "protocols", "gitconfig", "locale.alias", "fonts/fonts.conf", "inputrc",
            "ssl/openssl.cnf", "ssl/certs/ca-certificates.crt", "os-release", "magic")  # fmt: skip


@hiding
async def test_the_settings_that_every_user_may_read_can_be_read(
    tmp_path: Path, isolation: Isolation
) -> None:
    paths = [Path("/etc", name) for name in SETTINGS]
    here = [str(path) for path in paths if path.is_file() and path.stat().st_mode & 0o004]
    code = f"""
import mimetypes, os, pwd, ssl
for path in {here}:
    open(path, "rb").close()
mimetypes.init()
pwd.getpwuid(os.getuid())
ssl.create_default_context()
assert "passwd" in os.listdir("/etc")
print("all of them")
"""
    done = await python(code, tmp_path, isolation)

    assert len(here) > 3
    assert (done.stdout, done.stderr) == ("all of them\n", "")


@hiding
async def test_settings_that_are_not_for_everybody_are_hidden(
    tmp_path: Path, isolation: Isolation
) -> None:
    """Also from root, who may read them outside."""
    code = """
import os
for path in ("/etc/shadow", "/etc/gshadow", "/etc/environment", "/etc/ssl/private"):
    try:
        print(os.listdir(path) if os.path.isdir(path) else open(path).read(), end="")
    except OSError:
        continue
"""
    done = await python(code, tmp_path, isolation)

    assert (done.code, done.stdout.replace("[]", "")) == (0, "")


def test_a_folder_is_shown_without_its_private_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in {
        "a": 0o644,
        "key": 0o640,
        "d/b": 0o604,
        "d/key": 0o600,
        "e/f": 0o644,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        (tmp_path / name).chmod(mode)
    (tmp_path / "locked").mkdir(mode=0o750)
    (tmp_path / "link").symlink_to("key")
    tmp_path.chmod(0o755)
    private = set(file_view._not_read_by_all(tmp_path))

    assert {path.relative_to(tmp_path).as_posix() for path in private} == {"key", "d/key", "locked"}
    shown = file_view._without(tmp_path, private)
    assert [path.relative_to(tmp_path).as_posix() for path in shown] == ["a", "d/b", "e"]


@hiding
@pytest.mark.parametrize("network", [True, False], ids=["with network", "without"])
async def test_unix_sockets_outside_cannot_be_reached(
    tmp_path: Path, isolation: Isolation, network: bool
) -> None:
    (tmp_path / "in").mkdir()
    code = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for made in (lambda: socket.socket(socket.AF_UNIX, kind),
                 lambda: socket.socketpair(socket.AF_UNIX, kind)[0]):
        try:
            made().connect(sys.argv[1])
            print("reached")
        except OSError:
            continue
"""
    with (
        socket.socket(socket.AF_UNIX) as listening,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        for number, one in enumerate((listening, datagrams)):
            one.bind(str(tmp_path / f"socket{number}"))
        listening.listen()
        for number in range(2):
            argv = [sys.executable, "-c", code, str(tmp_path / f"socket{number}")]
            done = await run_untrusted(
                argv, cwd=tmp_path / "in", timeout=30, isolation=isolation, network=network
            )
            assert (done.code, done.stdout) == (0, "")


@hiding
async def test_what_programs_need_of_sockets_and_shared_memory_works(
    tmp_path: Path, isolation: Isolation
) -> None:
    code = """
import asyncio, multiprocessing, tempfile
asyncio.run(asyncio.sleep(0))
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(abs, [-1, 2]))
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
"""
    done = await python(code, tmp_path, isolation)

    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


@pytest.mark.parametrize("isolation", [i for i in AVAILABLE if i.name == "landlock"], ids=str)
async def test_no_datagram_leaves_under_landlock_alone(
    tmp_path: Path, isolation: Isolation
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving:
        receiving.bind(("127.0.0.1", 0))
        receiving.settimeout(1)
        code = f"""
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", {receiving.getsockname()})
"""
        await python(code, tmp_path, isolation)
        with pytest.raises(TimeoutError):
            receiving.recv(1)


@with_namespaces
async def test_temporary_files_and_shared_memory_are_not_shared(
    tmp_path: Path, isolation: Isolation
) -> None:
    name = f"skillfit-test-{os.getpid()}"
    write = f"for top in ('/tmp', '/dev/shm'): open(f'{{top}}/{name}', 'w').write('x')"
    look = "import os; print(os.listdir('/dev/shm'), os.environ['TMPDIR'])"
    wrote = await python(write, tmp_path, isolation)
    saw = await python(look, tmp_path, isolation)

    assert (wrote.code, wrote.stderr, saw.stdout) == (0, "", "[] /tmp\n")
    assert not [top for top in ("/tmp", "/dev/shm") if Path(top, name).exists()]


@each
async def test_the_disk_use_of_a_program_is_limited(tmp_path: Path, isolation: Isolation) -> None:
    code = "import time; open('big', 'wb').write(b'x' * 30_000_000); time.sleep(60)"
    done = await run_sandboxed(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        timeout=60,
        env={},
        access=Access((tmp_path,)),
        limits=Limits(disk=20 << 20),
        isolation=isolation,
    )

    assert done.killed == "disk limit" and done.code is None


@pytest.mark.parametrize(
    "isolation", [i for i in AVAILABLE if i.name.startswith("namespaces")], ids=lambda i: i.name
)
async def test_the_time_to_set_up_the_isolation_does_not_count(
    tmp_path: Path, isolation: Isolation, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "bin" / "unshare"
    slow.parent.mkdir()
    slow.write_text(f'#!/bin/sh\nsleep 3\nexec {shutil.which("unshare")} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    done = await python("print('done')", tmp_path, isolation, timeout=2.5)

    assert (done.killed, done.stdout) == ("", "done\n")


@each
async def test_files_can_be_used_whatever_the_umask(tmp_path: Path, isolation: Isolation) -> None:
    before = os.umask(0o777)
    try:
        folder = new_folder("work")
        code = "open('a', 'w').write('b'); print(open('a').read())"
        done = await python(code, folder, isolation)
    finally:
        os.umask(before)
        remove_folder(folder)

    assert (done.stdout, done.stderr) == ("b\n", "")


async def test_too_few_file_descriptors_are_a_failure_with_its_cause(tmp_path: Path) -> None:
    best_isolation()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        for descriptor in taken[-3:]:
            os.close(descriptor)
        del taken[-3:]
        with pytest.raises(TaskFailure, match="Too many open files") as failed:
            await python("print(1)", tmp_path, best_isolation())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in taken:
            os.close(descriptor)

    assert failed.value.kind == "sandbox" and "ulimit -n" in failed.value.hint
    assert pickle.loads(pickle.dumps(failed.value)).message == failed.value.message


ON_A_FULL_DISK = """
import asyncio, sys
from skillfit.errors import TaskFailure
from skillfit.sandbox.programs import new_folder, run_untrusted

async def main():
    work = new_folder("work")
    print((await run_untrusted(["/bin/true"], cwd=work, timeout=20)).code)
    with open(work / "big", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    try:
        await run_untrusted(["/bin/true"], cwd=work, timeout=20)
    except TaskFailure as failure:
        print(failure.kind, failure)

asyncio.run(main())
"""


@needs_small_disk
def test_a_full_disk_is_a_failure_with_its_cause(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    done = subprocess.run(
        on_small_disk(disk, 4000, [sys.executable, "-c", ON_A_FULL_DISK]),
        env={**os.environ, "TMPDIR": str(disk), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.stdout.startswith(f"0\nsandbox The disk with {disk}/"), done
    assert "is full" in done.stdout and "set TMPDIR" in done.stdout


async def test_a_program_that_ends_at_its_limit_leaves_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio collects the exit code in a thread, which may be late."""
    watcher = asyncio.unix_events.ThreadedChildWatcher
    collect = watcher._do_waitpid

    def late(*arguments: Any) -> None:
        time.sleep(1)
        collect(*arguments)

    monkeypatch.setattr(watcher, "_do_waitpid", late)
    await run_process(["/bin/true"], cwd=tmp_path, timeout=0.3, env={})

    assert "Unknown child process" not in caplog.text
