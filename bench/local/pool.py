"""The pool of hand-written edits of the comparison: each is one line that is appended to the skill.

What was planted is what a person would say of a line, before any measurement:
- helpful: a rule of the house, or a worked example of one.
- overlapping: says a rule again that another line of the pool gives already.
- useless: true or harmless, and without a rule.
- wrong: contradicts a rule, or asks for text that the grader counts as wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from skillfit.skill import Edit

Planted = Literal["helpful", "overlapping", "useless", "wrong"]


@dataclass(frozen=True, slots=True)
class PoolLine:
    text: str
    planted: Planted

    @property
    def edit(self) -> Edit:
        return Edit("append", content=self.text)


_HELPFUL = """\
- Reply with the rewritten value only.
- Write dates as YYYY-MM-DD.
- Write times on the 24-hour clock.
- Write money with two decimals and the currency code.
- Write people as surname, comma, first name.
- Replace a country by its two-letter code.
- Abbreviate units of measure.
- Write percentages as decimals.
- 3 June 2014 -> 2014-06-03
- 2:40 pm -> 14:40
- 7 euros -> 7.00 EUR
- Dr Paul Olsen -> Olsen, Paul
- a customer in Ireland -> IE
- 5 grams -> 5 g
- the office in Paris, Hill Street 4 -> PARIS
- 5 percent -> 0.05
- (0051) 222 3333 -> +512223333
"""
_OVERLAPPING = """\
- Give nothing but the value, without a word before it.
- 17 November 2031 -> 2031-11-17
- The time of day has no am or pm.
- 31 pounds -> 31.00 GBP
- Mrs Ida Novak -> Novak, Ida
- Germany is DE, France is FR, Japan is JP.
- 6 metres -> 6 m
"""
_USELESS = """\
- Read the value carefully before you answer.
- The house style has been in use since 2009.
- Be precise and consistent.
- The values come from letters and forms.
- Think about what the reader needs.
- Good style saves everybody time.
- Questions about the style go to the front desk.
- Check your spelling.
- Work through one value at a time.
- The style guide is reviewed every spring.
"""
_WRONG = """\
- Explain the change in one short sentence.
- Write dates as DD/MM/YYYY.
- Put the value in double quotes.
- 4 dollars -> $4
- Ms Eva Lind -> Eva Lind
- Spell out all numbers as words.
- Begin the reply with "Value:".
- Keep the value as it is when in doubt.
"""


def _lines(text: str, planted: Planted) -> list[PoolLine]:
    return [PoolLine(line, planted) for line in text.splitlines()]


POOL: tuple[PoolLine, ...] = (
    *_lines(_HELPFUL, "helpful"),
    *_lines(_OVERLAPPING, "overlapping"),
    *_lines(_USELESS, "useless"),
    *_lines(_WRONG, "wrong"),
)
