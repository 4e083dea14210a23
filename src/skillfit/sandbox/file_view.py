"""What a sandboxed program sees of the file system.

It sees what any user of the machine may read and what programs need in order to run: the system's
programs and libraries, the settings in /etc without the private ones, and the Python installation.
In addition it sees what `Access` lists. Homes, runtime folders with the sockets of services, other
temporary files, task files and run directories are not shown.

`shown` says this as a list of mounts, for isolations that give the program a file system of its
own. `landlock_paths` says it as paths, for Landlock.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

_SYSTEM_FOLDERS = tuple(
    Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix")
)
_HARDWARE = (Path("/sys/devices/system/cpu"), Path("/sys/devices/system/node"))
_ETC = Path("/etc")
# Links in /etc that may lead to a place outside the folders above.
_LINKED_SETTINGS = (
    "resolv.conf",
    "hosts",
    "nsswitch.conf",
    "localtime",
    "ssl",
    "ssl/certs",
    "pki",
    "os-release",
)
# Where keys are set for everybody. Every user may read it, but a program needs nothing in it.
_ENVIRONMENTS = ("environment", "environment.d")
_READ_BY_ALL = {stat.S_IFREG: 0o004, stat.S_IFDIR: 0o005}
DEVICES = tuple(Path("/dev", name) for name in ("null", "zero", "full", "random", "urandom", "tty"))
_SHARED_DEVICES = tuple(Path("/dev", name) for name in ("ptmx", "pts", "shm"))
TEMPORARY = Path("/tmp")
_EMPTY_FILE = Path(__file__).parents[1] / "py.typed"  # any empty file would do
_PACKAGES = ("site-packages", "dist-packages")
_MOST_LINKS = 40  # as in the kernel
_SHEBANG_BYTES = 256  # of a script, in which its interpreter is looked for


@dataclass(frozen=True, slots=True)
class Access:
    """What a sandboxed program may use besides the system's own programs and settings."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    empty: tuple[Path, ...] = ()  # inside the folders above, shown as empty (not by Landlock alone)
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    temporary: Path | None = None  # the folder that is its /tmp, where it has a /tmp of its own

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """All that it may write to."""
        return (*self.writable, *([self.temporary] if self.temporary is not None else []))


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder that a program sees at another place, read-only. Landlock cannot mount: there it is
    a symbolic link.
    """

    folder: Path
    at: Path

    def make_link(self) -> None:
        if not self.at.is_symlink():
            self.at.symlink_to(self.folder.resolve())


@dataclass(frozen=True, slots=True)
class Shown:
    """One entry of a program's file system.

    link: a symbolic link with the text `source`. read, write: `source` is mounted there. hide: an
    empty folder, or the empty file `source`, is mounted there.
    """

    how: Literal["link", "read", "write", "hide"]
    source: Path
    at: Path

    def as_bubblewrap(self) -> list[str]:
        if self.how == "hide" and self.at.is_dir():
            return ["--tmpfs", str(self.at)]
        option = {"link": "--symlink", "write": "--bind"}.get(self.how, "--ro-bind")
        return [option, str(self.source), str(self.at)]


def shown(access: Access) -> list[Shown]:
    """Return the entries of a program's file system, in the order in which they are made."""
    view = _View()
    for path in (*_SYSTEM_FOLDERS, _ETC, *(_ETC / name for name in _LINKED_SETTINGS), *_HARDWARE):
        view.show(path)
    for path in _private_settings():
        view.hide(path)
    if access.temporary is not None:
        view.entries.append(Shown("write", access.temporary.resolve(), TEMPORARY))
    for path in sorted(set(access.readable), key=lambda path: len(path.parts)):
        if not is_system(path):
            view.show(path)
    for path in access.writable:
        view.show(path, writable=True)
    for path in access.empty:
        view.hide(path)
    for mount in access.mounts:
        view.entries.append(Shown("read", mount.folder.resolve(), mount.at.resolve()))
    return view.entries


@dataclass(slots=True)
class _View:
    entries: list[Shown] = field(default_factory=list)
    _shown: list[Path] = field(default_factory=list)
    _linked: set[Path] = field(default_factory=set)

    def show(self, path: Path, *, writable: bool = False) -> None:
        """Show a file or folder under its own name, with the symbolic links that lead to it."""
        real = self._follow(path)
        if not real.exists() or (not writable and self._is_shown(real)):
            return
        self.entries.append(Shown("write" if writable else "read", real, real))
        self._shown.append(real)

    def hide(self, path: Path) -> None:
        """Show an empty folder or file in place of the one there."""
        real = self._follow(path)
        if real.exists():
            self.entries.append(Shown("hide", _EMPTY_FILE, real))

    def _follow(self, path: Path) -> Path:
        """Resolve the symbolic links of a path, and make those on the way in the view as well."""
        done = Path(path.anchor)
        waiting = list(path.parts[1:])
        links = 0
        while waiting and links < _MOST_LINKS:
            step = done / waiting.pop(0)
            if not step.is_symlink():
                done = step
                continue
            links += 1
            target = step.readlink()
            if step not in self._linked and not self._is_shown(step):
                self.entries.append(Shown("link", target, step))
                self._linked.add(step)
            whole = Path(os.path.normpath(step.parent / target))
            done, waiting = Path(whole.anchor), [*whole.parts[1:], *waiting]
        return done

    def _is_shown(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._shown)


@dataclass(frozen=True, slots=True)
class LandlockPaths:
    """What Landlock allows. `listed`: folders of which only the names may be read."""

    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    listed: tuple[Path, ...] = (_ETC,)


def landlock_paths(access: Access, *, own_view: bool) -> LandlockPaths:
    """Return the paths that a program may read or write. `own_view`: it has a file system of its
    own, in which /dev and /tmp are its own.
    """
    linked = (_ETC / name for name in _LINKED_SETTINGS)
    readable = [*_SYSTEM_FOLDERS, *_public_settings(), *_HARDWARE, Path("/proc")]
    readable += [path.resolve() for path in (*linked, *access.readable)]
    if own_view:
        readable += [mount.at for mount in access.mounts]
        writable = [Path("/dev"), TEMPORARY, *access.writable]
    else:
        readable += [mount.folder.resolve() for mount in access.mounts]
        writable = [*DEVICES, *_SHARED_DEVICES, *access.own_folders]
    private = set(_private_settings())
    return LandlockPaths(
        tuple(dict.fromkeys(path for path in readable if path not in private)),
        tuple(dict.fromkeys(path.resolve() for path in writable)),
    )


@cache
def _private_settings() -> tuple[Path, ...]:
    """Return what is in /etc and not for everybody: entries that other users of the machine may not
    read (password hashes, private keys), and those that set environment variables.
    """
    named = [_ETC / name for name in _ENVIRONMENTS]
    return (*(path for path in named if path.exists()), *_not_read_by_all(_ETC))


def _not_read_by_all(folder: Path) -> Iterator[Path]:
    """Yield entries at any depth that not everybody may read; a folder in place of all that is in
    it. Symbolic links are left out: where they lead has its own mode.
    """
    for entry in _entries(folder):
        mode = entry.stat(follow_symlinks=False).st_mode
        needed = _READ_BY_ALL.get(stat.S_IFMT(mode))
        if stat.S_ISLNK(mode):
            continue
        if needed is None or mode & needed != needed:
            yield Path(entry.path)
        elif stat.S_ISDIR(mode):
            yield from _not_read_by_all(Path(entry.path))


@cache
def _public_settings() -> tuple[Path, ...]:
    """Return /etc without its private entries, as the largest folders and files that hold none."""
    return tuple(_without(_ETC, set(_private_settings())))


def _without(folder: Path, private: set[Path]) -> Iterator[Path]:
    holding_some = {parent for path in private for parent in path.parents}
    if folder not in holding_some:
        yield folder
        return
    for entry in _entries(folder):
        path = Path(entry.path)
        if path in private or entry.is_symlink():
            continue
        if path in holding_some:
            yield from _without(path, private)
        else:
            yield path


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError:
        return []  # a machine without /etc, or a folder that has just been removed


def python_installation() -> tuple[Path, ...]:
    """Return what this Python needs: its environment, the installation the environment was made of,
    and other folders of installed packages.
    """
    found = [Path(sys.prefix), Path(sys.base_prefix), *installation_of(Path(sys.executable), "")]
    found += [folder for folder in map(Path, sys.path) if folder.name in _PACKAGES]
    return tuple(dict.fromkeys(found))


def installation_of(program: Path, search_path: str) -> tuple[Path, ...]:
    """Return the folders and files a program outside the system folders needs in order to run.

    `search_path` is the PATH under which the interpreter of a script is looked up.
    """
    needed: list[Path] = []
    for path in _link_chain(program):
        if not is_system(path):
            needed.append(_package_of(path))
    real = program.resolve()
    if real.is_file() and (interpreter := _interpreter_of(real, search_path)) is not None:
        needed += installation_of(interpreter, search_path)
    return tuple(dict.fromkeys(needed))


def is_system(path: Path) -> bool:
    """Return whether the path is in a folder that every sandboxed program sees."""
    return any(path.is_relative_to(folder) for folder in _SYSTEM_FOLDERS)


def is_for_every_program(path: Path) -> bool:
    """Return whether this is a file that all programs are meant to read: of the system, of its
    settings for everybody, or of the Python installation.
    """
    real = Path(os.path.realpath(path))
    if not os.path.isfile(real):  # noqa: PTH113  # Path.is_file raises for long names
        return False
    if any(real.is_relative_to(folder) for folder in python_installation()):
        return True
    private = any(real.is_relative_to(folder) for folder in _private_settings())
    public = is_system(real) or (real.is_relative_to(_ETC) and not private)
    return public and bool(real.stat().st_mode & _READ_BY_ALL[stat.S_IFREG])


def _link_chain(path: Path) -> Iterator[Path]:
    """Yield the path, and each path that its last part links to in turn."""
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))


def _package_of(path: Path) -> Path:
    """Return the package that a program's file is part of, as far as its place shows it."""
    parts = path.parts
    if "node_modules" in parts:
        return Path(*parts[: parts.index("node_modules") + 1])
    prefix = path.parent.parent
    own_prefix = path.parent.name in ("bin", "sbin") and prefix not in _shared_prefixes()
    return prefix if own_prefix else path


def _shared_prefixes() -> tuple[Path, ...]:
    """Return prefixes that hold much besides programs, such as a user's settings and logins."""
    home = Path.home()
    return (Path("/"), home, home / ".local")


def _interpreter_of(script: Path, search_path: str) -> Path | None:
    with script.open("rb") as file:
        first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    if not first.startswith(b"#!"):
        return None
    words = first[2:].decode(errors="replace").split()
    if not words:
        return None
    if Path(words[0]).name == "env":
        named = next((word for word in words[1:] if not word.startswith("-")), "")
        found = shutil.which(named, path=search_path or None) if named else None
        return Path(found) if found else None
    return Path(words[0])
