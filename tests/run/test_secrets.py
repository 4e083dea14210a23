"""No secrets on disk: keys planted in every possible source are in no file of the run directory."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from skillfit.config import load_config
from skillfit.errors import InputError
from skillfit.models.protocol import AuthFailed, Message, Reply, Request, Usage
from skillfit.models.secrets import remember_secret
from skillfit.run.directory import RunDirectory, model_identity
from skillfit.run.events import RunFinished, StepFinished, Warned
from skillfit.run.journal import RecordedModel
from tests.support.records import run_started, run_summary, step_record

VARIABLES = (
    "OPENAI_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "DASHSCOPE_API_KEY",
    "QWEN_API_KEY",
    "MINIMAX_API_KEY",
    "GEMINI_API_KEY",
    "OPENROUTER_API_KEY",
    "MY_OWN_VARIABLE",
)
PLANTED: Mapping[str, str] = {
    name: f"planted{number}/{name.lower()}+Zx9==" for number, name in enumerate(VARIABLES)
}


class KeyEcho:
    """A server that repeats every key it was sent, in its replies or in its errors."""

    id = "openai/blabbing"
    context_window = 1000

    async def complete(self, request: Request) -> Reply:
        text = " ".join(PLANTED.values())
        if request.purpose == "fail":
            raise AuthFailed(f"invalid key: {text}", usage=Usage(calls=1))
        return Reply(text, usage=Usage(calls=1), model=text)


async def test_no_file_of_the_run_directory_contains_a_key_from_any_variable(
    tmp_path: Path,
) -> None:
    keys = [remember_secret(PLANTED[name]) for name in VARIABLES]
    keys.append(remember_secret("url-password-77"))
    secrets_text = " ".join(keys)
    path = tmp_path / "run"
    with RunDirectory.open(
        path,
        {"base_url": "http://me:url-password-77@host/v1", "secrets_text": secrets_text},
    ) as run:
        model = RecordedModel(KeyEcho(), run.journal, "agent")
        await model.complete(Request((Message("user", secrets_text),), stage="rollout"))
        with pytest.raises(AuthFailed):
            await model.complete(
                Request((Message("user", secrets_text),), stage="rollout", purpose="fail")
            )
        run.journal.set_fact("note", secrets_text)
        run.events.emit(
            run_started(config={"secrets_text": secrets_text}, skill=secrets_text, skill_hash="")
        )
        run.events.emit(Warned(what=secrets_text, message=secrets_text))
        run.events.emit(
            StepFinished(
                epoch=1,
                step=1,
                action=secrets_text,
                skill=secrets_text,
                skill_hash="",
                best_skill=secrets_text,
                record=step_record(reason=secrets_text),
            )
        )
        run.events.emit(
            RunFinished(
                finish_reason="",
                diagnosis=secrets_text,
                best_skill=secrets_text,
                summary=run_summary(diagnosis=secrets_text),
            )
        )
        run.write_text("a.txt", secrets_text)
        run.write_json("b.json", {secrets_text: [secrets_text]})
        alive = _bytes(path)
    for found in (alive, _bytes(path)):
        assert [key for key in keys if key.encode() in found] == []
    assert b"[secret]" in alive


@pytest.mark.parametrize(
    "model",
    [
        {"id": "openai/x", "base_url": "https://user:hunter2hunter2@host/v1"},
        {"id": "openai/x", "base_url": "https://hunter2hunter2@host/v1"},
        {"id": "azure/x", "options": {"api_key": "hunter2hunter2"}},
        {"id": "azure/x", "options": {"headers": {"Authorization": "hunter2hunter2"}}},
        {"id": "openai/x", "options": {"extra": "Bearer hunter2hunter2"}},
        {"id": "openai/x", "options": {"extra": ["sk-hunter2hunter2hunter2"]}},
        {"id": "openai/x", "key_env": "sk-hunter2hunter2hunter2"},
        {"id": "openai/x", "options": {"extra_headers": {"X-Api-Key": "hunter2"}}},
        {"id": "openai/x", "options": {"extra_headers": {"X-Gateway-Token": "hunter2"}}},
        {"id": "openai/x", "options": {"extra_headers": {"Cookie": "a=hunter2"}}},
        {"id": "openai/x", "options": {"extra": "sk-hunter2"}},
        {"id": "openai/x", "base_url": "https://host/v1?api-key=hunter2"},
        {"id": "openai/x", "base_url": "https://host/v1?a=b&Access_Token=hunter2#c"},
        {"id": "openai/x", "base_url": "https://host/v1?a=b&api%5Fkey=hunter2"},
    ],
)
def test_a_key_in_a_config_is_refused_with_a_hint_and_not_repeated(
    model: dict[str, object],
) -> None:
    with pytest.raises(InputError) as raised:
        load_config({"model": {"agent": model}})
    assert "key_env" in str(raised.value)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "setting",
    ["options.api_key=hunter2", "base_url=http://h/v1?key=hunter2", "base_url=http://hunter2@h/v1"],
)
def test_a_key_in_an_override_is_refused_and_not_repeated(setting: str) -> None:
    with pytest.raises(InputError, match=r"command-line override model\.agent\.") as raised:
        load_config({"model": {"agent": "openai/x"}}, [f"model.agent.{setting}"])
    assert "hunter2" not in str(raised.value) and "value error" not in str(raised.value)


def test_a_numeric_key_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"model\.agent: keys are read from the environment"
    ) as raised:
        load_config({"model": {"agent": "openai/x"}}, ["model.agent.options.api_key=77123456"])
    assert "77123456" not in str(raised.value)


def test_settings_with_names_similar_to_keys_are_accepted() -> None:
    base = {"id": "openai/x", "base_url": "https://host/v1?api-version=2&keyspace=a"}
    config = load_config(
        {
            "model": {
                "agent": {
                    "id": "openai/x",
                    "key_env": "MY_KEY",
                    "max_tokens": 5,
                    "options": {"api_version": "v1"},
                },
                "judge": base,
            },
            "optimizer": {"max_skill_tokens": 900},
            "budget": {"tokens": 1000},
            "env": {
                "skill": "sk-learn-guide",
                "fields": {"input": "token"},
                "grader": {"json": {"key": "answer"}},
            },
        }
    )
    assert config.model.agent is not None
    assert "key_env" not in (model_identity(config.model.agent) or {"key_env": 1})


def _bytes(path: Path) -> bytes:
    return b"\0".join(file.read_bytes() for file in path.rglob("*") if file.is_file())
