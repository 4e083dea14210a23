"""The user's own login of a coding-agent program, lent to the program in a rollout.

A login holds a refresh token, which works once: whoever uses it gets a new one and must save it,
or the user is logged out. So the programs of parallel rollouts must share one place, in which the
user's own sessions find the new token too.

- A program that can be pointed at a credentials folder (`login_folder`) uses the user's own folder
  directly, with its own locks. Under bubblewrap everything else in that folder is shown as empty.
- For other programs each credential file is a symbolic link in their HOME. If a program replaces
  the link by a file, the new content is saved to the user's file afterwards.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from skillfit.agents.coding_cli.description import Description
from skillfit.models.protocol import AuthFailed
from skillfit.models.secrets import remember_secret
from skillfit.skill.document import write_whole

_TOKEN = re.compile(r"[\w.\-]{20,}")


@dataclass(frozen=True, slots=True)
class Login:
    """The credential files of the user that one rollout may use."""

    user_home: Path
    names: tuple[str, ...]  # relative to HOME
    folder_variable: str
    contents: tuple[bytes, ...]  # of the files, at the start

    @classmethod
    def find(cls, description: Description, user_home: Path) -> Login:
        """The login on this machine. Its tokens are hidden in all output from now on."""
        names = tuple(name for name in description.login if (user_home / name).is_file())
        if not names:
            places = ", ".join(f"~/{name}" for name in description.login)
            raise AuthFailed(
                f"{description.name} has no login here (looked for {places}).",
                hint=f"Start {description.program} once and log in, or export "
                f"{' or '.join(description.keys)}.",
            )
        contents = tuple((user_home / name).read_bytes() for name in names)
        for content in contents:
            for token in _TOKEN.findall(content.decode(errors="replace")):
                remember_secret(token)
        return cls(user_home, names, description.login_folder, contents)

    @property
    def folder(self) -> Path | None:
        """The user's credentials folder, for a program that uses it directly."""
        return (self.user_home / self.names[0]).parent if self.folder_variable else None

    def environment(self) -> dict[str, str]:
        return {self.folder_variable: str(self.folder)} if self.folder is not None else {}

    def writable(self) -> tuple[Path, ...]:
        """What the program must be able to write to."""
        if self.folder is not None:
            return (self.folder,)
        return tuple(self.user_home / name for name in self.names)

    def hidden(self) -> tuple[Path, ...]:
        """What else is in the user's folder and no business of the program in a rollout."""
        if self.folder is None:
            return ()
        own = {Path(name).name for name in self.names}
        return tuple(entry for entry in sorted(self.folder.iterdir()) if not _belongs(entry, own))

    def link_into(self, home: Path) -> None:
        if self.folder is not None:
            return
        for name in self.names:
            link = home / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.user_home / name)

    def save_back(self, home: Path) -> None:
        """Save credentials that the program renewed in its own HOME to the user's file, unless
        that file has changed meanwhile.
        """
        if self.folder is not None:
            return
        for name, before in zip(self.names, self.contents, strict=True):
            renewed, users = home / name, self.user_home / name
            if renewed.is_symlink() or not renewed.is_file():
                continue
            if users.is_file() and users.read_bytes() == before:
                write_whole(users, renewed.read_bytes(), users.stat().st_mode & 0o777)


def _belongs(entry: Path, credentials: set[str]) -> bool:
    """Whether an entry is a credential file, a part of writing one, or a lock."""
    name = entry.name
    return name.endswith(".lock") or any(name.startswith(own) for own in credentials)
