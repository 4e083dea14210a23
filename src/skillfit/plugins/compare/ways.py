"""The ways to get a skill that `skillfit compare` compares.

Each way is a set of settings on top of the user's config, so every one of them is an ordinary
skillfit run, with its journal, its caps and its resume. Other optimizers (`peers.py`) have a run of
their own kind, with the same. No way may use more rollouts than another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from skillfit.errors import InputError
from skillfit.plugins.compare.gate import UnmeasuredGate
from skillfit.plugins.compare.peers import PEERS, Peer
from skillfit.training.schedule import SplitSizes
from skillfit.training.user_parts import GivenParts

REWRITE_ROLLOUTS = 40  # training rollouts that a rewrite of the whole skill reads, at the most
REWRITES = 4  # of `best-of`
FEWEST_READ = 4  # training rollouts of one rewrite

_REWRITE = (
    "optimizer.proposer=reflect",
    "optimizer.skill_update_mode=full_rewrite_minibatch",
    "optimizer.use_slow_update=false",
    "optimizer.use_meta_skill=false",
    "optimizer.use_skill_aware_reflection=false",
    "optimizer.prune_initial=false",
    "gradient.failure_only=true",
    "gradient.deep_reflection=false",
    "evaluation.must_pass=[]",
    "evaluation.ship_test=false",
    "evaluation.eval_test=false",
    "evaluation.preflight=false",
    "budget.rollouts=null",
    "train.num_epochs=1",
    "train.accumulation=1",
)

_PAPER = (
    "recipe=paper",
    "optimizer.proposer=reflect",
    "optimizer.prune_initial=false",
    "evaluation.gate=strict",
)


@dataclass(frozen=True, slots=True)
class Training:
    """One run of a way."""

    name: str  # of its folder
    settings: tuple[str, ...]
    rollouts: int  # that it may use
    parts: GivenParts = field(default_factory=GivenParts)


def _nothing(rollouts: int, sizes: SplitSizes) -> tuple[Training, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to get a skill from a number of rollouts."""

    name: str
    meaning: str
    trainings: Callable[[int, SplitSizes], tuple[Training, ...]] = _nothing
    # Selection rollouts that choose among the skills of several trainings.
    choosing: Callable[[int, SplitSizes], int] = lambda rollouts, sizes: 0
    proves: bool = False  # it tests by itself whether its skill is better
    peer: Peer | None = None  # another optimizer, in place of trainings

    @property
    def trains(self) -> bool:
        return self.trainings is not _nothing or self.peer is not None

    @property
    def folder(self) -> str:
        return self.name.replace(":", "-")


def _one_rewrite(rollouts: int, sizes: SplitSizes) -> tuple[Training, ...]:
    return (_rewrite("rewrite", min(REWRITE_ROLLOUTS, rollouts, sizes.train)),)


def _several_rewrites(rollouts: int, sizes: SplitSizes) -> tuple[Training, ...]:
    """Plan rewrites that read half of the rollouts; the other half chooses among them."""
    read = min(REWRITE_ROLLOUTS, sizes.train, max(FEWEST_READ, rollouts // (2 * REWRITES)))
    return tuple(_rewrite(f"rewrite_{number}", read) for number in range(1, REWRITES + 1))


def _choosing(rollouts: int, sizes: SplitSizes) -> int:
    read = sum(training.rollouts for training in _several_rewrites(rollouts, sizes))
    return max(0, rollouts - read)


def _rewrite(name: str, read: int) -> Training:
    one_batch = ("train.train_size", "train.batch_size", "gradient.minibatch_size")
    settings = (*_REWRITE, *(f"{key}={read}" for key in one_batch))
    return Training(name, settings, read, GivenParts(gate=UnmeasuredGate))


def _trained(*settings: str) -> Callable[[int, SplitSizes], tuple[Training, ...]]:
    def trainings(rollouts: int, sizes: SplitSizes) -> tuple[Training, ...]:
        return (Training("train", (*settings, f"budget.rollouts={rollouts}"), rollouts),)

    return trainings


_WAYS = (
    Way("no-skill", "the agent without a skill"),
    Way("initial", "the initial skill"),
    Way("one-shot", "the optimizer rewrites the skill once", _one_rewrite),
    Way(
        "best-of",
        f"the best of {REWRITES} rewrites on selection items",
        _several_rewrites,
        _choosing,
    ),
    Way("paper", "SkillOpt's rule (recipe: paper)", _trained(*_PAPER)),
    Way("train", "skillfit as the config says", _trained(), proves=True),
)
NAMES = tuple(way.name for way in _WAYS)
_PEERS = tuple(
    Way(name, f"the package {name} with its defaults", peer=peer) for name, peer in PEERS.items()
)


def ways_named(names: Sequence[str]) -> tuple[Way, ...]:
    """Return the ways of these names. `train:PROPOSER` is training with another proposer. Raises
    an error for a peer that is not installed.
    """
    known = {way.name: way for way in (*_WAYS, *_PEERS)}
    found = []
    for name in dict.fromkeys(names):
        kind, _, proposer = name.partition(":")
        if kind == "train" and proposer:
            meaning = f"skillfit with optimizer.proposer: {proposer}"
            settings = f"optimizer.proposer={proposer}"
            found.append(Way(name, meaning, _trained(settings), proves=True))
        elif name in known:
            way = known[name]
            if way.peer is not None:
                way.peer.refuse_missing()
            found.append(way)
        else:
            raise InputError(
                f"--way {name}: unknown.",
                hint=f"There are {', '.join((*NAMES, *PEERS))} and train:PROPOSER, as in "
                "train:corpus.",
            )
    return tuple(found)
