"""A whole run of skillopt 0.2.0 on the items in a folder: its trainer with its own defaults, on its
SearchQA environment. The wheel has no prompt files; `bench.parity.reference.ready` puts stand-ins
in their place.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.throughput.world import settings, trained

url, seed, concurrency, folder = settings()
rollouts, batch, selection = map(int, sys.argv[5:8])
os.environ |= {
    "AZURE_OPENAI_AUTH_MODE": "openai_compatible",
    "AZURE_OPENAI_ENDPOINT": url,
    "AZURE_OPENAI_API_KEY": "none",
}

from skillopt.engine.trainer import ReflACTTrainer  # noqa: E402
from skillopt.envs.searchqa.adapter import SearchQAAdapter  # noqa: E402

items = folder / "items"
unused = json.loads((items / "val" / "items.json").read_text())[:1]
(items / "test").mkdir()
(items / "test" / "items.json").write_text(json.dumps(unused))
SKILL = (folder / "skill.md").read_text()
# Each step rolls out a batch and the selection items.
training_items = len(json.loads((items / "train" / "items.json").read_text()))
steps_per_epoch = math.ceil(training_items / batch)
per_epoch = steps_per_epoch * (batch + selection)
epochs = math.ceil((rollouts - selection) / per_epoch)
out = folder / "out"
config = {
    "num_epochs": epochs,
    "batch_size": batch,
    "accumulation": 1,
    "seed": seed,
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
    "sel_env_num": selection,
    "test_env_num": 0,
    "eval_test": False,
    "env": "searchqa",
    "out_root": str(out),
    "skill_init": str(folder / "skill.md"),
    "split_mode": "split_dir",
    "split_dir": str(items),
    "optimizer_model": "optimizer",
    "target_model": "agent",
    "optimizer_backend": "openai_chat",
    "target_backend": "openai_chat",
    "analyst_workers": 16,
    "reasoning_effort": "",
    "rewrite_reasoning_effort": "",
    "workers": concurrency,
}
wanted = "split_dir split_mode workers analyst_workers failure_only minibatch_size edit_budget seed"
adapter = SearchQAAdapter(**{name: config[name] for name in wanted.split()})
made, curve, rollout = 0, [(0, SKILL)], adapter.rollout


def counted(items, skill, out_dir, **more):
    """Count rollouts, and note when the best skill on disk has changed."""
    global made
    best = out / "best_skill.md"
    if best.exists() and best.read_text() != curve[-1][1]:
        curve.append((made, best.read_text()))
    made += len(items)
    return rollout(items, skill, out_dir, **more)


adapter.rollout = counted
begun, cpu = time.perf_counter(), time.process_time()
ReflACTTrainer(config, adapter).train()
seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
curve.append((made, (out / "best_skill.md").read_text()))
trained(seconds, cpu, curve)
