"""`ci init` writes a GitHub workflow, and `skill install` lets a coding agent use skillfit."""

from __future__ import annotations

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillfit import __version__
from skillfit.atomic_write import write_whole
from skillfit.cli.output import Json, relative_to_here, show
from skillfit.cli.train import ConfigFile
from skillfit.errors import InputError

if TYPE_CHECKING:
    from skillfit.config import Config

ci_app = typer.Typer(
    help="Check skills in continuous integration.", no_args_is_help=True, add_completion=False
)
skill_app = typer.Typer(
    help="Let your coding agent use skillfit.", no_args_is_help=True, add_completion=False
)
_SKILL = "improve-skill"


@ci_app.command("init")
def ci_init_command(
    config: ConfigFile,
    record: Annotated[
        Path | None,
        typer.Option(help="A record of `verify --save`. Default: record.json beside the config."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Default: .github/workflows/skill.yml of the repository.")
    ] = None,
    package: Annotated[str, typer.Option(help="What pip installs; default: this version.")] = "",
    as_json: Json = False,
) -> None:
    """Write a GitHub workflow for the skill of a config. On pull requests it lints the skill,
    measures with and without it, verifies it against its record, and comments. Never overwrites a
    file.

    Example: skillfit ci init skillfit.yaml
    """
    from skillfit.config import load_config
    from skillfit.skill.parts import trained_path

    settings = load_config(config)
    trained = trained_path(settings.env.skill)
    folder = config.resolve().parent
    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    record = record or config.with_name("record.json")
    out = out or root / ".github" / "workflows" / "skill.yml"
    if out.exists():
        raise InputError(f"{out} exists already.", hint="Name another file with --out.")
    paths = [_inside(path, root) for path in (trained, config, record)]
    watched = [f"{paths[0]}/**" if trained.is_dir() else paths[0], *paths[1:]]
    keys = _keys(settings)
    secrets = {key: f"${{{{ secrets.{key} }}}}" for key in keys}
    text = (files("skillfit.cli") / "workflow.yml").read_text(encoding="utf-8")
    for name, value in (
        ("paths", watched),
        *zip(("skill", "config", "record"), paths, strict=True),
        ("keys", secrets),
        ("package", package or f"skillfit=={__version__}"),
    ):
        text = text.replace(f"@{name}@", json.dumps(value))
    write_whole(out, text.encode())
    lines = [f"Wrote {relative_to_here(out)}. Commit it."]
    if keys:
        lines.append(f"Set the repository's secrets {', '.join(keys)}.")
    if not record.exists():
        lines.append(
            f"There is no {record} yet, so nothing is verified. After a run: "
            f"skillfit verify RUN --save {record}"
        )
    show({"workflow": str(out), "secrets": keys}, "\n".join(lines), as_json)


def _inside(path: Path, root: Path) -> str:
    """Return a path as seen from the root of the repository."""
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError as error:
        raise InputError(
            f"{path} is outside of the repository {root}.",
            hint="Move it, or its config, or set env.skill.",
        ) from error


def _keys(config: Config) -> list[str]:
    """Return the environment variables with the keys that a measurement needs."""
    from skillfit.models import known_providers
    from skillfit.models.registry import split_id

    providers = {one.name: one for one in known_providers()}
    keys = []
    for spec in (config.model.agent, config.model.judge):
        if spec is not None:
            known = providers.get(split_id(spec.id)[0])
            keys += [spec.key_env] if spec.key_env else list(known.keys[:1]) if known else []
    return list(dict.fromkeys(keys))


@skill_app.command("install")
def skill_install_command(
    program: Annotated[
        list[str] | None,
        typer.Option(
            help="claude, codex, copilot, cursor, gemini or opencode; may be given again. Default: "
            "those that are installed."
        ),
    ] = None,
    user: Annotated[
        bool, typer.Option("--user", help="For all of your projects, not only this folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Install the skill improve-skill for your coding agent. Then ask it: improve my skill. It
    checks, estimates, trains and reports, and asks before it spends anything. A newer version
    replaces an older one.

    Example: skillfit skill install --program claude --user
    """
    from skillfit.agents.cli_programs import DESCRIPTIONS, load_description

    known = {file.stem: load_description(file.stem) for file in sorted(DESCRIPTIONS.glob("*.yaml"))}
    chosen = program or [name for name, one in known.items() if shutil.which(one.program)]
    if unknown := [name for name in chosen if name not in known]:
        raise InputError(f"--program {unknown[0]}: unknown.", hint=f"Known: {', '.join(known)}.")
    if not chosen:
        raise InputError(
            "No coding agent was found on the PATH.", hint="Name one, as in --program claude."
        )
    base = Path.home() if user else Path()
    folders = sorted({base / known[name].skills / _SKILL for name in chosen})
    with as_file(files("skillfit.plugins.agentskills") / "plugin" / "skills" / _SKILL) as source:
        for folder in folders:
            shutil.copytree(source, folder, dirs_exist_ok=True)
    written = [str(folder) for folder in folders]
    text = f"Installed {', '.join(written)}. Now ask your agent: improve my skill."
    show({"installed": written}, text, as_json)
