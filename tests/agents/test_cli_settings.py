"""Settings of coding-agent programs: where files are looked up, what is refused at the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from skillfit.agents import build_agent
from skillfit.agents.cli_agent import CliAgent
from skillfit.agents.cli_programs import load_description, read_output
from skillfit.config import load_config
from skillfit.config.schema import AgentSection
from skillfit.errors import InputError
from skillfit.models import ModelSpec, connect
from skillfit.models.failures import policy
from skillfit.models.protocol import AuthFailed
from tests.agents.stand_in import DESCRIPTION, StandIn


def test_files_that_options_name_are_relative_to_the_config_file(
    fake: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "fake.yaml").write_text(yaml.safe_dump(DESCRIPTION))
    (project / "agent.sh").write_text("#!/bin/sh\n")
    (project / "agent.sh").chmod(0o755)
    options = {"file": "fake.yaml", "program": "./agent.sh", "readable": "data"}
    agent = {"id": "cli/fake", "options": options}
    (project / "skillfit.yaml").write_text(yaml.safe_dump({"model": {"agent": agent}}))
    monkeypatch.chdir(elsewhere)

    spec = load_config(project / "skillfit.yaml").model.agent
    assert spec is not None
    built = build_agent(AgentSection(agent="cli"), spec, None, environ=fake.environ)

    assert isinstance(built, CliAgent)
    assert built.command.program() == str(project / "agent.sh")
    assert spec.options["readable"] == [str(project / "data")]


def test_a_program_in_a_description_is_relative_to_the_description(
    fake: StandIn, tmp_path: Path
) -> None:
    fake.describe(program="./programs/bin/fake-agent")
    fake.environ["PATH"] = "/usr/bin:/bin"

    assert fake.agent().command.program() == str(fake.program)


def test_a_missing_description_file_is_named(fake: StandIn) -> None:
    with pytest.raises(InputError, match=r"nothing\.yaml does not exist"):
        fake.agent(options={"file": "nothing.yaml"})


@pytest.mark.parametrize("name", ["claude", "codex", "cursor"])
def test_a_program_without_key_or_login_is_an_error_at_the_start(fake: StandIn, name: str) -> None:
    options = {"program": str(fake.program)}
    del fake.environ["OPENAI_API_KEY"]
    with pytest.raises(AuthFailed, match=f"No key for cli/{name}"):
        build_agent(
            AgentSection(agent="cli"),
            ModelSpec(id=f"cli/{name}", options=options),
            None,
            environ=fake.environ,
        )


def test_codex_output_about_a_missing_key_is_an_auth_failure() -> None:
    from skillfit.agents.cli_programs import failure_of
    from skillfit.models import Usage

    text = "Missing environment variable: `OPENAI_API_KEY`."
    failure = failure_of(load_description("codex"), 1, text, Usage(), auth_hint="")

    assert failure.kind == "auth" and policy("auth").fatal


def test_opencode_without_ripgrep_is_an_error_at_the_start(fake: StandIn) -> None:
    fake.environ["PATH"] = str(fake.program.parent)
    spec = ModelSpec(id="cli/opencode", options={"program": str(fake.program)})

    with pytest.raises(InputError, match="opencode needs rg, which is not installed"):
        build_agent(AgentSection(agent="cli"), spec, None, environ=fake.environ)

    downloaded = fake.home / ".cache" / "opencode" / "bin" / "rg"
    downloaded.parent.mkdir(parents=True)
    downloaded.write_text("#!/bin/sh\n")
    downloaded.chmod(0o755)
    build_agent(AgentSection(agent="cli"), spec, None, environ=fake.environ)


def test_a_program_as_a_model_supports_reflection(fake: StandIn) -> None:
    model = connect(fake.spec("/big"), role="optimizer", run_id="r", environ=fake.environ)

    assert model.context_window == 128_000


def test_zero_dollars_for_some_tokens_is_an_unknown_price() -> None:
    """opencode reports cost 0 for every model at a base_url."""
    tokens = '{"input": 15, "output": 7, "reasoning": 0, "cache": {"read": 5, "write": 0}}'
    event = f'{{"type": "step_finish", "part": {{"tokens": {tokens}, "cost": 0}}}}'
    usage = read_output(load_description("opencode"), event).usage

    assert (usage.input, usage.output, usage.usd) == (20, 7, None)


def test_invalid_usage_counts_as_zero_and_is_never_negative(fake: StandIn) -> None:
    event = (
        '{"type": "result", "tokens": {"read": -30, "cached": 1e400, "written": "7"}, '
        '"cost": -0.25}'
    )
    usage = read_output(load_description(str(fake.description)), event).usage

    assert (usage.input, usage.cached, usage.output, usage.usd) == (0, 0, 0, None)


def test_a_description_with_mistakes_is_refused_with_a_message_for_each(tmp_path: Path) -> None:
    described = tmp_path / "mine.yaml"
    described.write_text("name: mine\nprogram: mine\nargv: run\nskils: x\n")

    with pytest.raises(InputError) as raised:
        load_description(str(described))
    assert raised.value.message == (
        f"{described} does not describe a command-line agent: argv = 'run' is not valid: it should "
        "be a list. skills is missing. unknown key skils."
    )
