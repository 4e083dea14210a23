"""Writes the sample games of alfworld: small houses in the format of the ALFRED planning domain,
and a sequence of actions that wins each game. Run it after changing the plan below:

    python -m bench.samples.houses

The results are committed. The domain's rules are not: they come with the alfworld package.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import skillfit.plugins.benchmarks

SAMPLE = Path(skillfit.plugins.benchmarks.__file__).parent / "alfworld" / "sample"
OPENABLE = ("Fridge", "Cabinet", "Microwave", "Drawer", "Safe")
WASHABLE = ("Apple", "Tomato", "Mug", "Plate", "Potato", "Cup")
WARMABLE = ("Apple", "Tomato", "Mug", "Potato", "Cup")
# Types that the rules of the domain name: every problem has to declare them.
NAMED_KINDS = ("Knife", "ButterKnife")
NAMED_PLACES = ("SinkBasin", "Microwave", "Fridge")


@dataclass(frozen=True)
class House:
    """`things`: what lies where, as (object, number of the receptacle)."""

    task_type: str
    thing: str
    goal: str  # type of the receptacle to put it in; for lamps: DeskLamp
    receptacles: tuple[str, ...]
    things: tuple[tuple[str, int], ...]

    @property
    def description(self) -> str:
        thing, goal = self.thing.lower(), self.goal.lower()
        return {
            "pick_and_place_simple": f"put a {thing} in the {goal}.",
            "pick_clean_then_place_in_recep": f"put a clean {thing} in the {goal}.",
            "pick_heat_then_place_in_recep": f"put a hot {thing} in the {goal}.",
            "pick_cool_then_place_in_recep": f"put a cool {thing} in the {goal}.",
            "pick_two_obj_and_place": f"put two {thing}s in the {goal}.",
            "look_at_obj_in_light": f"look at the {thing} under the desklamp.",
        }[self.task_type]

    def receptacle_id(self, number: int) -> str:
        kind = self.receptacles[number]
        return f"Sink_bar_{number}_bar_SinkBasin" if kind == "SinkBasin" else f"{kind}_bar_{number}"

    def receptacle_name(self, number: int) -> str:
        """As the game shows it: a kind is counted down in the order of the ids."""
        kind = self.receptacles[number]
        same = [at for at, other in enumerate(self.receptacles) if other == kind]
        ids = sorted(same, key=lambda at: self.receptacle_id(at).lower())
        return f"{kind.lower()} {len(ids) - ids.index(number)}"

    def thing_name(self, number: int) -> str:
        kind = self.things[number][0]
        same = [at for at, (other, _) in enumerate(self.things) if other == kind]
        ids = sorted(same, key=lambda at: f"{kind}_bar_{at}".lower())
        return f"{kind.lower()} {len(ids) - ids.index(number)}"

    def problem(self) -> str:
        kinds = sorted({kind for kind, _ in self.things})
        places = sorted(set(self.receptacles))
        objects = ["agent1 - agent"]
        objects += [f"{kind}Type - otype" for kind in sorted({*kinds, *NAMED_KINDS})]
        objects += [f"{place}Type - rtype" for place in sorted({*places, *NAMED_PLACES})]
        facts = ["(atLocation agent1 loc_0)"]
        for at, (kind, where) in enumerate(self.things):
            name = f"{kind}_bar_{at}"
            objects.append(f"{name} - object")
            facts += [f"(objectType {name} {kind}Type)"]
            facts += [f"(inReceptacle {name} {self.receptacle_id(where)})"]
            facts += [f"(objectAtLocation {name} loc_{where + 1})"]
            if kind == "DeskLamp":
                facts.append(f"(toggleable {name})")
                continue
            facts.append(f"(pickupable {name})")
            facts += [f"(cleanable {name})"] if kind in WASHABLE else []
            facts += [f"(heatable {name})", f"(coolable {name})"] if kind in WARMABLE else []
        for number, place in enumerate(self.receptacles):
            name = self.receptacle_id(number)
            objects.append(f"{name} - receptacle")
            facts += [f"(receptacleType {name} {place}Type)"]
            facts += [f"(receptacleAtLocation {name} loc_{number + 1})"]
            facts += [f"(openable {name})"] if place in OPENABLE else []
        objects += [f"loc_{number} - location" for number in range(len(self.receptacles) + 1)]
        facts += [f"(canContain {place}Type {kind}Type)" for place in places for kind in kinds]
        lines = ["(define (problem house)", "  (:domain alfred)", "  (:objects"]
        lines += [f"    {line}" for line in objects]
        lines += ["  )", "  (:init", *(f"    {fact}" for fact in facts), "  )"]
        return "\n".join([*lines, f"  (:goal {self._goal()})", ")", ""])

    def _goal(self) -> str:
        if self.task_type == "look_at_obj_in_light":
            return (
                "(exists (?lamp - object ?a - agent ?l - location ?o - object) (and "
                "(objectType ?lamp DeskLampType) (isToggled ?lamp) (objectAtLocation ?lamp ?l) "
                f"(atLocation ?a ?l) (objectType ?o {self.thing}Type) (holds ?a ?o)))"
            )
        placed = f"(objectType {{0}} {self.thing}Type) (inReceptacle {{0}} ?r)"
        where = f"(receptacleType ?r {self.goal}Type)"
        if self.task_type == "pick_two_obj_and_place":
            both = f"{placed.format('?o')} {placed.format('?p')} (not (= ?o ?p))"
            return f"(exists (?r - receptacle ?o - object ?p - object) (and {where} {both}))"
        state = {"clean": "(isClean ?o)", "heat": "(isHot ?o)", "cool": "(isCool ?o)"}
        wanted = next((fact for word, fact in state.items() if word in self.task_type), "")
        inner = f"{where} {placed.format('?o')} {wanted}".strip()
        return f"(exists (?r - receptacle ?o - object) (and {inner}))"

    def walkthrough(self) -> list[str]:
        moves: list[str] = []
        wanted = [at for at, (kind, _) in enumerate(self.things) if kind == self.thing]
        count = 2 if self.task_type == "pick_two_obj_and_place" else 1
        opened: set[int] = set()
        for thing in wanted[:count]:
            where = self.things[thing][1]
            moves += self._reach(where, opened)
            moves.append(f"take {self.thing_name(thing)} from {self.receptacle_name(where)}")
            moves += self._treat(thing, opened)
        return moves

    def _treat(self, thing: int, opened: set[int]) -> list[str]:
        name = self.thing_name(thing)
        if self.task_type == "look_at_obj_in_light":
            lamp = next(at for at, (kind, _) in enumerate(self.things) if kind == "DeskLamp")
            return [*self._reach(self.things[lamp][1], opened), f"use {self.thing_name(lamp)}"]
        moves: list[str] = []
        tools = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
        for word, place in tools.items():
            if f"_{word}_" in self.task_type:
                at = self.receptacles.index(place)
                moves.append(f"go to {self.receptacle_name(at)}")
                moves.append(f"{word} {name} with {self.receptacle_name(at)}")
        target = self.receptacles.index(self.goal)
        moves += self._reach(target, opened)
        return [*moves, f"move {name} to {self.receptacle_name(target)}"]

    def _reach(self, number: int, opened: set[int]) -> list[str]:
        moves = [f"go to {self.receptacle_name(number)}"]
        if self.receptacles[number] in OPENABLE and number not in opened:
            opened.add(number)
            moves.append(f"open {self.receptacle_name(number)}")
        return moves


PLACE, LOOK = "pick_and_place_simple", "look_at_obj_in_light"
CLEAN, HEAT, COOL = (f"pick_{word}_then_place_in_recep" for word in ("clean", "heat", "cool"))
TWO = "pick_two_obj_and_place"
KITCHEN = ("CounterTop", "Fridge", "Cabinet", "SinkBasin", "Microwave", "Shelf")
STUDY = ("Desk", "Drawer", "Shelf", "Safe", "Bed")
HOUSES: dict[str, list[House]] = {
    "train": [
        House(PLACE, "Mug", "Shelf", KITCHEN, (("Mug", 2), ("Apple", 0))),
        House(CLEAN, "Apple", "Fridge", KITCHEN, (("Apple", 0), ("Cup", 5))),
        House(HEAT, "Potato", "CounterTop", KITCHEN, (("Potato", 1), ("Mug", 0))),
        House(LOOK, "Book", "DeskLamp", STUDY, (("Book", 4), ("DeskLamp", 0))),
        House(TWO, "Pen", "Drawer", STUDY, (("Pen", 0), ("Pen", 2), ("Book", 4))),
    ],
    "val": [
        House(COOL, "Tomato", "CounterTop", KITCHEN, (("Tomato", 5), ("Plate", 2))),
        House(PLACE, "Book", "Safe", STUDY, (("Book", 0), ("Pen", 1))),
        House(CLEAN, "Plate", "Cabinet", KITCHEN, (("Plate", 3), ("Apple", 1))),
        House(LOOK, "Pen", "DeskLamp", STUDY, (("Pen", 1), ("DeskLamp", 2), ("Book", 0))),
        House(HEAT, "Mug", "Cabinet", KITCHEN, (("Mug", 0), ("Tomato", 1))),
    ],
    "test": [
        House(COOL, "Apple", "Microwave", KITCHEN, (("Apple", 2), ("Cup", 0))),
        House(TWO, "Cup", "Shelf", KITCHEN, (("Cup", 0), ("Cup", 1), ("Mug", 4))),
        House(PLACE, "Potato", "Fridge", KITCHEN, (("Potato", 5), ("Plate", 0))),
    ],
}


def main() -> None:
    shutil.rmtree(SAMPLE, ignore_errors=True)
    for split, houses in HOUSES.items():
        rows = []
        for number, house in enumerate(houses, 1):
            name = f"{house.task_type}-{house.thing}-None-{house.goal}-{number}"
            folder = SAMPLE / "games" / split / name / f"trial_{number:02d}"
            folder.mkdir(parents=True)
            (folder / "initial_state.pddl").write_text(house.problem())
            trajectory = {
                "task_type": house.task_type,
                "turk_annotations": {"anns": [{"task_desc": house.description}]},
                "walkthrough": house.walkthrough(),
            }
            (folder / "traj_data.json").write_text(json.dumps(trajectory, indent=1) + "\n")
            rows.append(
                {
                    "id": f"{split}:{number:04d}",
                    "gamefile": f"../games/{split}/{name}/trial_{number:02d}",
                    "task_type": house.task_type,
                }
            )
        (SAMPLE / split).mkdir()
        (SAMPLE / split / "items.json").write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
