"""The models as `scripted/bench/real/scripted.py:agent` and `:optimizer`, for runs of skillfit in
this process.
"""

from __future__ import annotations

from bench.real import skillfit_run
from skillfit.models.protocol import Request


async def agent(request: Request) -> str:
    system, user = (message.content for message in (request.messages[0], request.messages[-1]))
    return skillfit_run.playing().answer(system, user, request.purpose)


async def optimizer(request: Request) -> str:
    prompt = "\n".join(message.content for message in request.messages)
    return skillfit_run.playing().propose(request.stage, prompt)
