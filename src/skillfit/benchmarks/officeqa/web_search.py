"""The search mode `custom_search`: the model searches the web through a search service.

The service gets {"query", "provider", "max_results"} as JSON by POST and answers with a list of
results, or {"results": […]}, each with `title`, `url` and `snippet` or `content`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import httpx

from skillfit.benchmarks.dialogue import Dialogue, required_model, system_message
from skillfit.models.protocol import Message, Model, Tool, ToolCall
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Grader, Item, Score, Step, TaskFailure
from skillfit.tasks.task import Evaluator

_RESULT_CHARS = 2000
SEARCH = Tool(
    "search",
    "Search the web.",
    {
        "type": "object",
        "properties": {"queries": {"type": "array", "items": {"type": "string"}}},
        "required": ["queries"],
        "additionalProperties": False,
    },
)


@dataclass(frozen=True, slots=True)
class SearchService:
    url: str
    auth_env: str = ""  # name of the environment variable with the token
    provider: str = ""
    max_results: int = 4
    timeout: float = 20.0

    async def find(self, query: str) -> str:
        """The results as text. Raises `TaskFailure` when the service does not answer."""
        token = os.environ.get(self.auth_env, "") if self.auth_env else ""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        body = {"query": query, "provider": self.provider, "max_results": self.max_results}
        try:
            async with httpx.AsyncClient(timeout=self.timeout) as client:
                response = await client.post(self.url, json=body, headers=headers)
                response.raise_for_status()
                answer = response.json()
        except (httpx.HTTPError, ValueError) as error:
            raise TaskFailure("search", f"the search service at {self.url}: {error}") from error
        results = answer.get("results", []) if isinstance(answer, Mapping) else answer
        return "\n\n".join(_shown(result) for result in results[: self.max_results]) or "no results"


def _shown(result: Any) -> str:
    if not isinstance(result, Mapping):
        return str(result)[:_RESULT_CHARS]
    parts = (result.get(name) for name in ("title", "url", "snippet", "content"))
    return "\n".join(str(part) for part in parts if part)[:_RESULT_CHARS]


@dataclass(frozen=True)
class SearchRounds(Evaluator):
    """The model may search in each turn; its first reply without a search is the answer."""

    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    grader: Grader
    service: SearchService
    max_turns: int
    max_queries: int

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        dialogue = Dialogue(required_model(self.model, "officeqa"), item, seed)
        messages = (system_message(self.prompt, skill), *item.messages)
        answer = ""
        for _ in range(self.max_turns):
            reply = await dialogue.ask(messages, (SEARCH,))
            answer = reply.text
            if not reply.tool_calls:
                break
            said = Message("assistant", reply.text, tool_calls=reply.tool_calls)
            results = [await self._search(call, dialogue) for call in reply.tool_calls]
            messages = (*messages, said, *results)
        else:
            dialogue.note(f"Ended after {self.max_turns} turns.")
        attempt = Attempt(answer, tuple(dialogue.steps), usage=dialogue.usage)
        return attempt, await self.grader.grade(item, attempt)

    async def _search(self, call: ToolCall, dialogue: Dialogue) -> Message:
        dialogue.steps.append(Step("tool_call", call.arguments, name=call.name))
        queries = _queries(call)
        if queries:
            found = [
                f"## {query}\n\n{await self.service.find(query)}"
                for query in queries[: self.max_queries]
            ]
            text = "\n\n".join(found)
        else:
            text = 'error: call search with {"queries": ["…"]}'
        dialogue.steps.append(Step("tool_result", text, role="tool", name=call.name))
        return Message("tool", text, tool_call_id=call.id)

    def describe(self) -> dict[str, Any]:
        return {
            "search_mode": "custom_search",
            "url": self.service.url,
            "provider": self.service.provider,
            "max_results": self.service.max_results,
            "max_turns": self.max_turns,
            "max_queries": self.max_queries,
            "prompt": self.prompt,
            "grader": self.grader.describe(),
            "model": self.model.id if self.model else "",
        }


def _queries(call: ToolCall) -> list[str]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except json.JSONDecodeError:
        return []
    queries = arguments.get("queries") if isinstance(arguments, dict) else None
    return [str(query) for query in queries if query] if isinstance(queries, list) else []
