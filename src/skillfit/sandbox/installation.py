"""Which files a program needs in order to run: its installation, its interpreter, their links."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

# Folders of the system, which every sandboxed program may read.
SYSTEM = tuple(
    Path(name) for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix")
)
_NETWORK = (
    "resolv.conf",
    "hosts",
    "nsswitch.conf",
    "host.conf",
    "gai.conf",
    "protocols",
    "services",
)
_CERTIFICATES = ("ssl", "pki", "ca-certificates", "ca-certificates.conf")
_BASICS = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "passwd", "group")
SYSTEM_SETTINGS = tuple(
    Path("/etc", name) for name in (*_BASICS, *_NETWORK, *_CERTIFICATES, "localtime", "os-release")
)
_SHEBANG_BYTES = 256
_MOST_LINKS = 40


def python_installation() -> tuple[Path, ...]:
    """What this Python needs: its environment and the installation the environment was made of."""
    found = [Path(sys.prefix), Path(sys.base_prefix), *installation_of(Path(sys.executable), "")]
    return tuple(dict.fromkeys(found))


def installation_of(program: Path, search_path: str) -> tuple[Path, ...]:
    """The folders and files a program outside the system folders needs in order to run.

    `search_path` is the PATH under which the interpreter of a script is looked up.
    """
    needed: list[Path] = []
    for path in _links(program):
        if not is_system(path):
            needed.append(_whole(path))
    real = program.resolve()
    if real.is_file() and (interpreter := _interpreter(real, search_path)) is not None:
        needed += installation_of(interpreter, search_path)
    return tuple(dict.fromkeys(needed))


def is_system(path: Path) -> bool:
    """Whether the path is in a folder that every sandboxed program sees."""
    return any(path.is_relative_to(folder) for folder in SYSTEM)


def _links(path: Path) -> Iterator[Path]:
    """The path, and each path that its last part links to in turn."""
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = Path(os.path.normpath(path.parent / path.readlink()))


def _whole(path: Path) -> Path:
    """The package that a program's file is part of, as far as its place shows it."""
    parts = path.parts
    if "node_modules" in parts:
        return Path(*parts[: parts.index("node_modules") + 1])
    prefix = path.parent.parent
    own_prefix = path.parent.name in ("bin", "sbin") and prefix not in _shared_prefixes()
    return prefix if own_prefix else path


def _shared_prefixes() -> tuple[Path, ...]:
    """Prefixes that hold much besides programs, such as a user's settings and logins."""
    home = Path.home()
    return (Path("/"), home, home / ".local")


def _interpreter(script: Path, search_path: str) -> Path | None:
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
