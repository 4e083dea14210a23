"""The mode `multi`: the model writes a program, sees what happens when it runs, and may correct it.

The feedback is the same for all splits and never uses the expected workbook: an error, or that the
program ran. The rounds end with the first program that runs and saves a workbook.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from skillfit.benchmarks.dialogue import Dialogue, required_model, system_message
from skillfit.benchmarks.spreadsheetbench.programs_on_workbooks import (
    WorkbookGrader,
    cases_in,
    executed,
    program_in,
)
from skillfit.models.protocol import Message, Model
from skillfit.skill import Skill
from skillfit.tasks.item import Attempt, Item, Score, Step
from skillfit.tasks.task import Evaluator

_FEEDBACK = """Your program was run on the workbook:

{problem}

Reply with the whole corrected program in one ```python block."""


@dataclass(frozen=True)
class CodeRounds(Evaluator):
    needs_model: ClassVar[bool] = True

    model: Model | None
    prompt: str
    grader: WorkbookGrader
    max_turns: int

    async def __call__(self, skill: Skill, item: Item, seed: int) -> tuple[Attempt, Score]:
        dialogue = Dialogue(required_model(self.model, "spreadsheetbench"), item, seed)
        messages = (system_message(self.prompt, skill), *item.messages)
        workbook = cases_in(Path(str(item.content()["workbooks"])))[0].input
        answer = ""
        for _ in range(self.max_turns):
            reply = await dialogue.ask(messages)
            answer = reply.text
            program = program_in(answer)
            async with executed(program, workbook, self.grader.program_timeout) as result:
                problem = result.problem
            outcome = problem or "The program ran and saved output.xlsx."
            dialogue.steps.append(Step("tool_result", outcome, role="tool", name="run"))
            if not problem:
                break
            feedback = Message("user", _FEEDBACK.format(problem=problem))
            messages = (*messages, Message("assistant", answer), feedback)
        else:
            dialogue.note(f"Ended after {self.max_turns} programs, none of which ran.")
        attempt = Attempt(answer, tuple(dialogue.steps), usage=dialogue.usage)
        return attempt, await self.grader.grade(item, attempt)

    def describe(self) -> dict[str, Any]:
        return {
            "mode": "multi",
            "max_turns": self.max_turns,
            "prompt": self.prompt,
            "grader": self.grader.describe(),
            "model": self.model.id if self.model else "",
        }
