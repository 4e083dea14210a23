"""The process of another optimizer (gepa, skillopt): a script that imports nothing of skillfit.

It is started by peers.py and talks to it in lines of JSON over one socket that it inherits. It is
told the initial skill, the inputs of the training items, and how many selection items there are.
Rollouts and calls of the optimizer's model are asked for over the socket. Of selection items only
scores come back.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any


class Stopped(BaseException):
    """The rollouts are used up. No `except Exception` of a package may catch it."""


class PeerLink:
    """Questions to skillfit; threads may ask at the same time."""

    def __init__(self, descriptor: int) -> None:
        self._replies = os.fdopen(os.dup(descriptor), encoding="utf-8")
        self._questions = os.fdopen(descriptor, "w", encoding="utf-8")
        self._lock = threading.Lock()
        self._waiting: dict[int, SimpleQueue[dict[str, Any]]] = {}
        self._asked = 0

    def begin(self) -> dict[str, Any]:
        """Return the work, and listen for replies from now on."""
        work: dict[str, Any] = json.loads(self._replies.readline())
        threading.Thread(target=self._listen, daemon=True).start()
        return work

    def _listen(self) -> None:
        for line in self._replies:
            reply = json.loads(line)
            self._waiting.pop(reply["id"]).put(reply)
        os._exit(1)  # skillfit is gone

    def ask(self, **question: Any) -> Any:
        answer: SimpleQueue[dict[str, Any]] = SimpleQueue()
        with self._lock:
            self._asked += 1
            self._waiting[self._asked] = answer
            self._questions.write(json.dumps({"id": self._asked, **question}) + "\n")
            self._questions.flush()
        reply = answer.get()
        if reply.get("stop"):
            raise Stopped
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def roll_out(self, skill: str, items: Sequence[str]) -> list[dict[str, Any] | None]:
        """Return a result per item; None for a rollout that failed and so has no score."""
        results: list[dict[str, Any] | None] = self.ask(do="roll_out", skill=skill, items=items)
        return results

    def complete(self, messages: Sequence[dict[str, str]], max_tokens: int | None = None) -> str:
        return str(self.ask(do="complete", messages=messages, max_tokens=max_tokens))

    def best(self, skill: str) -> None:
        """Say which skill is the best one so far."""
        self.ask(do="best", skill=skill)


def run_gepa(link: PeerLink, work: dict[str, Any]) -> None:
    """Call `gepa.optimize` with its defaults; the skill is the one text that it changes."""
    import gepa
    from gepa.core.adapter import EvaluationBatch

    class GepaAdapter:
        propose_new_texts = None

        def evaluate(
            self,
            batch: list[dict[str, str]],
            candidate: dict[str, str],
            capture_traces: bool = False,
        ) -> Any:
            results = link.roll_out(candidate["skill"], [data["id"] for data in batch])
            hard = [result["hard"] for result in results if result is not None]
            # gepa needs a number for each item: the mean of the others changes no mean.
            neutral = sum(hard) / len(hard)
            scores = [neutral if result is None else result["hard"] for result in results]
            return EvaluationBatch(
                outputs=results,
                scores=scores,
                trajectories=list(zip(batch, results, strict=True)) if capture_traces else None,
            )

        def make_reflective_dataset(
            self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
        ) -> dict[str, list[dict[str, str]]]:
            records = [
                {
                    "Inputs": data["input"],
                    "Generated Outputs": result["trajectory"],
                    "Feedback": f"{result['verdict']}{result['expected']}",
                }
                for data, result in eval_batch.trajectories
                if result is not None
            ]
            return dict.fromkeys(components_to_update, records)

    class BestCandidate:
        def on_valset_evaluated(self, event: Any) -> None:
            if event["is_best_program"]:
                link.best(event["candidate"]["skill"])

    def reflect(prompt: str | list[dict[str, str]]) -> str:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        return link.complete(messages)

    result = gepa.optimize(
        seed_candidate={"skill": work["skill"]},
        trainset=work["train"],
        valset=[{"id": item} for item in work["selection"]],
        adapter=GepaAdapter(),
        reflection_lm=reflect,
        max_metric_calls=work["rollouts"],
        callbacks=[BestCandidate()],
        seed=work["seed"],
    )
    link.best(result.best_candidate["skill"])


_SKILLOPT: dict[str, Any] = {  # its defaults, and the names that it asks for
    "accumulation": 1,
    "minibatch_size": 8,
    "merge_batch_size": 8,
    "failure_only": False,
    "edit_budget": 4,
    "min_edit_budget": 2,
    "lr_scheduler": "cosine",
    "lr_control_mode": "fixed",
    "skill_update_mode": "patch",
    "use_slow_update": True,
    "slow_update_samples": 20,
    "slow_update_gate_with_selection": False,
    "longitudinal_pair_policy": "mixed",
    "use_meta_skill": True,
    "use_gate": True,
    "gate_metric": "hard",
    "test_env_num": 0,
    "eval_test": False,
    "env": "skillfit",
    "optimizer_model": "optimizer",
    "target_model": "agent",
    "optimizer_backend": "openai_chat",
    "target_backend": "openai_chat",
    "analyst_workers": 16,
    "reasoning_effort": "",
    "rewrite_reasoning_effort": "",
}


def run_skillopt(link: PeerLink, work: dict[str, Any]) -> None:
    """Run SkillOpt's trainer with its defaults, for as many epochs as fit into the rollouts."""
    import skillopt.engine.trainer as trainer
    import skillopt.model.azure_openai as model
    from skillopt.datasets.base import SplitDataLoader
    from skillopt.envs.base import EnvAdapter

    out, start = Path("out").absolute(), Path("skill.md").absolute()
    start.write_text(work["skill"], encoding="utf-8")
    selection = [{"id": item} for item in work["selection"]]
    size = len(selection)  # of a step too
    steps = math.ceil(len(work["train"]) / size)
    epochs = max(1, math.ceil((work["rollouts"] - size) / (2 * size * steps)))

    class SkilloptLoader(SplitDataLoader):  # type: ignore[misc]
        def setup(self, cfg: dict[str, Any]) -> None:
            self._splits = {"train": work["train"], "val": selection, "test": []}

    class SkilloptAdapter(EnvAdapter):  # type: ignore[misc]
        analyst_workers = _SKILLOPT["analyst_workers"]
        failure_only = _SKILLOPT["failure_only"]
        minibatch_size = _SKILLOPT["minibatch_size"]
        edit_budget = _SKILLOPT["edit_budget"]

        def __init__(self) -> None:
            self._loader = SkilloptLoader(seed=work["seed"])

        def setup(self, cfg: dict[str, Any]) -> None:
            super().setup(cfg)
            self._loader.setup(cfg)

        def get_dataloader(self) -> SplitDataLoader:
            return self._loader

        def build_env_from_batch(self, batch: Any, **kwargs: Any) -> list[dict[str, str]]:
            return list(batch.payload or [])

        def build_train_env(self, batch_size: int, seed: int, **kwargs: Any) -> Any:
            return self._loader.build_train_batch(batch_size, seed).payload

        def build_eval_env(self, env_num: int, split: str, seed: int, **kwargs: Any) -> Any:
            return self._loader.build_eval_batch(env_num, split, seed).payload

        def get_task_types(self) -> list[str]:
            return sorted({item["type"] for item in work["train"]})

        def rollout(
            self, env_manager: Any, skill_content: str, out_dir: str, **kwargs: Any
        ) -> list[dict[str, Any]]:
            report_best()
            results = link.roll_out(skill_content, [item["id"] for item in env_manager])
            scored = zip(env_manager, results, strict=True)
            # Its means are over the results that it gets, so a failed rollout is left out.
            return [_written(item, one, out_dir) for item, one in scored if one is not None]

        def reflect(self, *args: Any, **kwargs: Any) -> list[Any]:
            # They come as the analysts end. In a fixed order a repeated run asks the same again.
            return sorted(super().reflect(*args, **kwargs), key=json.dumps)

    def report_best() -> None:
        if (out / "best_skill.md").exists():
            link.best((out / "best_skill.md").read_text(encoding="utf-8"))
        elif (out / "runtime_state.json").exists():  # the initial skill was measured
            link.best(work["skill"])

    def chat_optimizer(
        system: str, user: str, max_completion_tokens: int = 16384, **settings: Any
    ) -> tuple[str, dict[str, int]]:
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return link.complete(messages, max_completion_tokens), {}

    all_pairs = trainer.build_comparison_pairs

    def build_comparison_pairs(
        before: list[dict[str, Any]], now: list[dict[str, Any]], items: list[Any], **more: Any
    ) -> list[dict[str, Any]]:
        """Leave out items without a score, which it would take for failures of the skill."""
        both = {one["id"] for one in before} & {one["id"] for one in now}
        pairs: list[dict[str, Any]] = all_pairs(
            before, now, [item for item in items if item["id"] in both], **more
        )
        return pairs

    model.chat_optimizer = chat_optimizer
    trainer.build_comparison_pairs = build_comparison_pairs
    settings = {
        **_SKILLOPT,
        "num_epochs": epochs,
        "batch_size": size,
        "sel_env_num": size,
        "seed": work["seed"],
        "out_root": str(out),
        "skill_init": str(start),
    }
    trainer.ReflACTTrainer(settings, SkilloptAdapter()).train()
    report_best()


def _written(item: dict[str, str], result: dict[str, Any], out_dir: str) -> dict[str, Any]:
    """Return the result as the trainer reads it; its trajectory is written to a file."""
    folder = Path(out_dir, "predictions", item["id"])
    folder.mkdir(parents=True, exist_ok=True)
    told = {"role": "agent", "content": result["trajectory"]}
    (folder / "conversation.json").write_text(json.dumps([told]), encoding="utf-8")
    return {
        "id": item["id"],
        "hard": result["hard"],
        "soft": result["soft"],
        "task_description": item.get("input", ""),
        "task_type": item.get("type", ""),
        "fail_reason": "" if result["hard"] >= 1 else result["verdict"],
        "reference_text": result["expected"],
        "n_turns": result["turns"],
    }


def main() -> None:
    link = PeerLink(int(sys.argv[1]))
    work = link.begin()
    sys.path[:0] = work["path"]  # so that the package is the one that skillfit found
    with suppress(Stopped):
        {"gepa": run_gepa, "skillopt": run_skillopt}[work["peer"]](link, work)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads of the package


if __name__ == "__main__":
    main()
