"""Draws the pictures of the samples of docvqa, mathverse, babyvision and mmrb, and writes the rows
that go with them. Run it after changing what a sample shows:

    python -m bench.samples.pictures

The results are committed. Everything in them is made up.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

import skillfit.plugins.benchmarks

ROOT = Path(skillfit.plugins.benchmarks.__file__).parent
Rows = Sequence[Mapping[str, Any]]
Point = tuple[float, float]


def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


def canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("L", (width, height), 255)
    return image, ImageDraw.Draw(image)


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.quantize(8).save(path, optimize=True)


def write(name: str, splits: Mapping[str, Rows]) -> None:
    for split, rows in splits.items():
        path = ROOT / name / "sample" / split / "items.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def fresh(name: str) -> Path:
    folder = ROOT / name / "sample"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


# docvqa: pages with a letterhead, lines and perhaps a table

PAGES: dict[str, tuple[str, Sequence[str], Sequence[Sequence[str]]]] = {
    "d101": (
        "HARBOUR LIGHT & POWER CO.",
        ["INVOICE No. 48-2217", "Date: March 14, 1978", "To: Oakley Fisheries, Pier 9"],
        [
            ["Item", "Units", "Amount"],
            ["Meter rent", "3", "$41.25"],
            ["Energy", "1,960", "$88.20"],
            ["TOTAL DUE", "", "$129.45"],
        ],
    ),
    "d102": (
        "MEMORANDUM",
        [
            "From: R. T. Castellan",
            "To: All laboratory staff",
            "Subject: Fume hood inspection",
            "The annual inspection of the fume hoods takes place",
            "on Tuesday, 9 June, from 7:30 a.m.",
            "Please clear Room 214 the evening before.",
        ],
        [],
    ),
    "d103": (
        "WILLOW CREEK DAIRY",
        ["Weekly tank record", "Tank supervisor: Ines Volkova"],
        [
            ["Day", "Temp (F)", "Gallons"],
            ["Monday", "38.5", "412"],
            ["Tuesday", "39.0", "398"],
            ["Wednesday", "37.2", "455"],
            ["Thursday", "38.1", "430"],
        ],
    ),
    "d104": (
        "PROGRAM OF THE SPRING MEETING",
        [
            "Hotel Belvedere, Blue Ballroom",
            "9:00  Opening words, Dr. Amara Njoku",
            "9:30  Soil moisture and late frost",
            "11:00  Coffee",
            "11:20  Grafting old apple varieties",
            "Registration fee: 12 shillings",
        ],
        [],
    ),
    "d105": (
        "EXPENSE REPORT",
        ["Employee: Julian P. Marsh", "Period: Sept. 1 - Sept. 15, 1969"],
        [
            ["Purpose", "City", "Cost"],
            ["Train fare", "Utica", "14.60"],
            ["Hotel", "Utica", "22.00"],
            ["Taxi", "Albany", "3.75"],
        ],
    ),
}
QUESTIONS = {
    "train": [
        ("d101", "What is the invoice number?", ["48-2217"], "form"),
        ("d101", "What is the total due?", ["$129.45", "129.45"], "table"),
        ("d102", "Who wrote the memorandum?", ["R. T. Castellan"], "free text"),
        ("d103", "Which day had the highest number of gallons?", ["Wednesday"], "table"),
        ("d104", "Who gives the opening words?", ["Dr. Amara Njoku", "Amara Njoku"], "list"),
        ("d105", "How much did the hotel cost?", ["22.00"], "table"),
    ],
    "val": [
        ("d101", "To which company is the invoice addressed?", ["Oakley Fisheries"], "form"),
        ("d102", "Which room has to be cleared?", ["Room 214", "214"], "free text"),
        ("d103", "What was the temperature on Tuesday?", ["39.0", "39.0 F"], "table"),
        ("d104", "In which hotel is the meeting?", ["Hotel Belvedere", "Belvedere"], "list"),
        ("d105", "What is the name of the employee?", ["Julian P. Marsh"], "form"),
    ],
    "test": [
        ("d102", "What is the subject of the memorandum?", ["Fume hood inspection"], "free text"),
        ("d103", "Who supervises the tank?", ["Ines Volkova"], "form"),
        ("d104", "What is the registration fee?", ["12 shillings"], "list"),
    ],
}  # fmt: skip


def docvqa() -> None:
    folder = fresh("docvqa")
    for name, (title, lines, cells) in PAGES.items():
        image, draw = canvas(560, 420)
        draw.rectangle((12, 12, 548, 408), outline=120)
        draw.text((40, 32), title, font=font(22), fill=0)
        draw.line((40, 64, 520, 64), fill=0, width=2)
        for at, line in enumerate(lines):
            draw.text((40, 80 + 26 * at), line, font=font(16), fill=20)
        top = 100 + 26 * len(lines)
        for at, row in enumerate(cells):
            for column, text in enumerate(row):
                draw.text((50 + 170 * column, top + 30 * at), text, font=font(16), fill=20)
            draw.line((40, top + 30 * at + 25, 520, top + 30 * at + 25), fill=160)
        save(image, folder / "images" / f"{name}.png")
    write(
        "docvqa",
        {
            split: [
                {
                    "questionId": f"{split}{at:02d}",
                    "docId": page.removeprefix("d"),
                    "question": question,
                    "answers": answers,
                    "image_path": f"images/{page}.png",
                    "topic": topic,
                }
                for at, (page, question, answers, topic) in enumerate(questions, 1)
            ]
            for split, questions in QUESTIONS.items()
        },
    )


# mathverse: diagrams with labels


def triangle(draw: ImageDraw.ImageDraw, labels: Mapping[Point, str]) -> None:
    draw.polygon([(30, 170), (210, 170), (30, 40)], outline=0, width=2)
    draw.rectangle((30, 158, 42, 170), outline=0)
    place(draw, labels)


def rectangle(draw: ImageDraw.ImageDraw, labels: Mapping[Point, str]) -> None:
    draw.rectangle((40, 60, 200, 150), outline=0, width=2)
    place(draw, labels)


def circle(draw: ImageDraw.ImageDraw, labels: Mapping[Point, str]) -> None:
    draw.ellipse((50, 30, 190, 170), outline=0, width=2)
    draw.line((120, 100, 190, 100), fill=0, width=2)
    draw.ellipse((117, 97, 123, 103), fill=0)
    place(draw, labels)


def angles(draw: ImageDraw.ImageDraw, labels: Mapping[Point, str]) -> None:
    draw.line((20, 150, 220, 150), fill=0, width=2)
    draw.line((120, 150, 190, 50), fill=0, width=2)
    place(draw, labels)


def place(draw: ImageDraw.ImageDraw, labels: Mapping[Point, str]) -> None:
    for where, text in labels.items():
        draw.text(where, text, font=font(16), fill=0)


LEGS: Sequence[Point] = ((110, 174), (8, 100))
PROBLEMS: dict[str, list[tuple[Any, dict[Point, str], str, str, str, str]]] = {
    "train": [
        (triangle, {LEGS[0]: "8", LEGS[1]: "6"}, "Find the length of the hypotenuse.",
         "The triangle is right-angled with legs 8 and 6.", "10", "Plane Geometry"),
        (rectangle, {(112, 154): "12", (16, 96): "5"}, "Find the area of the rectangle.",
         "The sides of the rectangle are 12 and 5.", "60", "Area"),
        (circle, {(145, 80): "r = 7"}, "Find the diameter of the circle.",
         "The radius of the circle is 7.", "14", "Plane Geometry"),
        (angles, {(140, 128): "55°", (90, 128): "x"},
         "Find the angle x.\nChoices:\nA:35°\nB:55°\nC:125°\nD:145°",
         "The angles 55° and x lie on a straight line.", "C", "Angle"),
        (rectangle, {(112, 154): "9", (16, 96): "4"},
         "Find the perimeter.\nChoices:\nA:13\nB:26\nC:36\nD:52",
         "The sides of the rectangle are 9 and 4.", "B", "Length"),
    ],
    "val": [
        (triangle, {LEGS[0]: "12", LEGS[1]: "5"}, "How long is the longest side?",
         "The triangle is right-angled with legs 12 and 5.", "13", "Plane Geometry"),
        (circle, {(145, 80): "r = 3"}, "Give the area of the circle in terms of π.",
         "The radius of the circle is 3.", "9π", "Area"),
        (angles, {(140, 128): "70°", (90, 128): "y"},
         "What is the size of angle y?\nChoices:\nA:20°\nB:70°\nC:110°\nD:180°",
         "The angles 70° and y lie on a straight line.", "C", "Angle"),
        (rectangle, {(112, 154): "x", (16, 96): "3"}, "The area is 24. Find x.",
         "The sides of the rectangle are x and 3.", "8", "Area"),
        (triangle, {LEGS[0]: "10", LEGS[1]: "4"},
         "What is the area of the triangle?\nChoices:\nA:14\nB:20\nC:28\nD:40",
         "The triangle is right-angled with legs 10 and 4.", "B", "Area"),
    ],
    "test": [
        (circle, {(145, 80): "r = 5"}, "Find the circumference in terms of π.",
         "The radius of the circle is 5.", "10π", "Length"),
        (rectangle, {(112, 154): "8", (16, 96): "6"}, "How long is a diagonal?",
         "The sides of the rectangle are 8 and 6.", "10", "Length"),
        (angles, {(140, 128): "62°", (90, 128): "z"}, "Find z in degrees.",
         "The angles 62° and z lie on a straight line.", "118", "Angle"),
    ],
}  # fmt: skip


def mathverse() -> None:
    folder = fresh("mathverse")
    splits: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for split, problems in PROBLEMS.items():
        for shape, labels, question, words, answer, field in problems:
            number += 1
            image, draw = canvas(240, 200)
            shape(draw, labels)
            name = f"image_{number}.png"
            save(image, folder / "images" / name)
            kind = "multi-choice" if "Choices" in question else "free-form"
            for version, text in (
                ("Text Lite", question),
                ("Text Dominant", f"{words} {question}"),
            ):
                splits.setdefault(split, []).append(
                    {
                        "sample_index": str(len(splits.get(split, [])) + 1),
                        "problem_index": f"{split}-{number}",
                        "problem_version": version,
                        "question": text,
                        "image": name,
                        "answer": answer,
                        "question_type": kind,
                        "metadata": {"subject": "Plane Geometry", "subfield": field},
                    }
                )
    write("mathverse", splits)


# babyvision: odd one out, counting, following lines


def shape(draw: ImageDraw.ImageDraw, kind: str, x: float, y: float, size: float) -> None:
    if kind == "circle":
        draw.ellipse((x - size, y - size, x + size, y + size), fill=60)
        return
    corners = {"triangle": 3, "square": 4, "star": 5}[kind]
    points = []
    steps = corners * (2 if kind == "star" else 1)
    for at in range(steps):
        radius = size * (0.45 if kind == "star" and at % 2 else 1)
        angle = math.pi * 2 * at / steps - math.pi / 2 + (math.pi / 4 if kind == "square" else 0)
        points.append((x + radius * math.cos(angle), y + radius * math.sin(angle)))
    draw.polygon(points, fill=60)


def grid_puzzle(seed: int, path: Path) -> str:
    """A grid of equal shapes with one other; the answer is (row, column)."""
    luck = random.Random(seed)
    usual, other = luck.sample(["circle", "triangle", "square", "star"], 2)
    place_of_other = (luck.randrange(4), luck.randrange(5))
    image, draw = canvas(260, 210)
    for row in range(4):
        for column in range(5):
            kind = other if (row, column) == place_of_other else usual
            shape(draw, kind, 30 + 50 * column, 28 + 50 * row, 16)
    save(image, path)
    return f"({place_of_other[0] + 1}, {place_of_other[1] + 1})"


def count_puzzle(seed: int, path: Path) -> tuple[str, str]:
    """Shapes of two kinds; the answer is how many there are of the first."""
    luck = random.Random(seed)
    wanted, other = luck.sample(["circle", "triangle", "square", "star"], 2)
    count = luck.randrange(4, 9)
    places = [(row, column) for row in range(4) for column in range(5)]
    luck.shuffle(places)
    image, draw = canvas(260, 210)
    for at, (row, column) in enumerate(places[: count + 6]):
        kind = wanted if at < count else other
        x, y = 30 + 50 * column + luck.randrange(-8, 9), 28 + 50 * row + luck.randrange(-6, 7)
        shape(draw, kind, x, y, 14)
    save(image, path)
    return wanted, str(count)


def line_puzzle(seed: int, path: Path) -> tuple[str, int]:
    """Letters joined with numbers by lines; the answer is where the line from one letter ends."""
    luck = random.Random(seed)
    ends = [0, 1, 2]
    luck.shuffle(ends)
    image, draw = canvas(260, 180)
    for start, end in enumerate(ends):
        y, z = 35 + 55 * start, 35 + 55 * end
        draw.line((40, y, 110, y, 170, z, 225, z), fill=40, width=2)
        draw.text((14, y - 10), "PQR"[start], font=font(20), fill=0)
        draw.text((234, z - 10), str(z // 55 + 1), font=font(20), fill=0)
    asked = luck.randrange(3)
    save(image, path)
    return "PQR"[asked], ends[asked]


def babyvision() -> None:
    folder = fresh("babyvision")
    kinds = {"train": "gclgc", "val": "lgcgc", "test": "clg"}
    splits: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for split, letters in kinds.items():
        for letter in letters:
            number += 1
            name = f"{number:03d}.png"
            path = folder / "images" / name
            row: dict[str, Any] = {"taskId": number, "image": name}
            if letter == "g":
                row |= {
                    "type": "Fine-grained Discrimination",
                    "subtype": "Find the different",
                    "question": "One shape differs from all others. Give its place as "
                    "(row, column), counted from the top left.",
                    "ansType": "blank",
                    "blankAns": grid_puzzle(number, path),
                }
            elif letter == "c":
                wanted, count = count_puzzle(number, path)
                row |= {
                    "type": "Visual Pattern Recognition",
                    "subtype": "Count shapes",
                    "question": f"How many {wanted}s are in the picture?",
                    "ansType": "blank",
                    "blankAns": count,
                }
            else:
                start, end = line_puzzle(number, path)
                row |= {
                    "type": "Visual Tracking",
                    "subtype": "Connect the lines",
                    "question": f"To which number does the line from {start} lead?",
                    "ansType": "choice",
                    "options": ["1", "2", "3"],
                    "choiceAns": end,
                }
            row["coT"] = "Go through the picture from the top left and compare place by place."
            splits.setdefault(split, []).append(row)
    write("babyvision", splits)


# mmrb: three frames, and what comes next or which one differs


def clock(path: Path, hour: int) -> None:
    image, draw = canvas(110, 110)
    draw.ellipse((8, 8, 102, 102), outline=0, width=2)
    for at in range(12):
        angle = math.pi * 2 * at / 12
        x, y = 55 + 40 * math.sin(angle), 55 - 40 * math.cos(angle)
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=0)
    angle = math.pi * 2 * hour / 12
    draw.line((55, 55, 55 + 26 * math.sin(angle), 55 - 26 * math.cos(angle)), fill=0, width=4)
    draw.line((55, 55, 55, 20), fill=90, width=2)
    save(image, path)


def dots(path: Path, count: int) -> None:
    image, draw = canvas(110, 110)
    for at in range(count):
        x, y = 20 + 24 * (at % 4), 20 + 24 * (at // 4)
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), fill=50)
    save(image, path)


def mmrb() -> None:
    folder = fresh("mmrb")
    plan = {
        "train": [("clock", (2, 4, 6)), ("dots", (3, 6, 9)), ("clock", (1, 4, 7)),
                  ("dots", (2, 4, 6)), ("dots", (12, 9, 6))],
        "val": [("dots", (1, 3, 5)), ("clock", (3, 4, 5)), ("dots", (10, 8, 6)),
                ("clock", (6, 8, 10)), ("clock", (11, 9, 7))],
        "test": [("clock", (5, 6, 7)), ("dots", (4, 8, 12)), ("dots", (11, 8, 5))],
    }  # fmt: skip
    splits: dict[str, list[dict[str, Any]]] = {}
    number = 0
    for split, entries in plan.items():
        for kind, values in entries:
            number += 1
            names = [f"{kind}_{number}_{frame}.png" for frame in range(1, 4)]
            for name, value in zip(names, values, strict=True):
                (clock if kind == "clock" else dots)(folder / "images" / name, value)
            following = values[2] + values[1] - values[0]
            row: dict[str, Any] = {
                "source": "drawn",
                "subtask": "Next clock" if kind == "clock" else "Next count",
                "index": number,
                "image_paths": [f"images/{name}" for name in names],
                "reasoning_steps": ["The same difference separates neighbouring images."],
            }
            if kind == "clock":
                hours = sorted({following, following - 1, following + 1, values[0]} - {0})[:4]
                row["question"] = (
                    "{image#1}{image#2}{image#3} The clocks follow a rule. Which full hour would "
                    "a fourth clock show?"
                )
                row["options"] = [
                    f"({letter}) {hour} o'clock"
                    for letter, hour in zip("ABCD", hours, strict=False)
                ]
                row["answer"] = "ABCD"[hours.index(following)]
            else:
                row["question"] = (
                    "{image#1}{image#2}{image#3} The number of dots follows a rule. How many dots "
                    "would a fourth picture have?"
                )
                row["options"] = []
                row["answer"] = str(following)
            splits.setdefault(split, []).append(row)
    write("mmrb", splits)


if __name__ == "__main__":
    for draw_sample in (docvqa, mathverse, babyvision, mmrb):
        draw_sample()
