"""Presses the buttons of a page with what its forms hold, as a browser does."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

import httpx


@dataclass(slots=True)
class Form:
    action: str
    values: dict[str, str] = field(default_factory=dict)
    buttons: set[tuple[str, str]] = field(default_factory=set)


class _Forms(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[Form] = []
        self._open = False
        self._select = self._area = ""
        self._named_by_text = False  # an option without a value: its text is sent
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = True
            self.found.append(Form(attributes.get("action", "")))
        if not self._open:
            return
        form, name, value = self.found[-1], attributes.get("name", ""), attributes.get("value", "")
        if tag == "button":
            form.buttons.add((name, value))
        elif tag == "select":
            self._select = name
        elif tag == "textarea":
            self._area = name
            form.values[name] = ""
        elif tag == "option" and ("selected" in attributes or self._select not in form.values):
            form.values[self._select] = value
            self._named_by_text = "value" not in attributes
        elif tag == "input" and name and self._is_sent(attributes):
            form.values[name] = value

    @staticmethod
    def _is_sent(attributes: dict[str, str]) -> bool:
        return attributes.get("type") not in ("checkbox", "radio") or "checked" in attributes

    def handle_data(self, data: str) -> None:
        if self._area:
            self.found[-1].values[self._area] += data
        elif self._named_by_text:
            self.found[-1].values[self._select] = data.strip()
            self._named_by_text = False

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = False
        elif tag == "textarea":
            self._area = ""


def press(client: httpx.Client, page: str, do: str, **given: str) -> str:
    """Send the form of `page` whose button does `do`, with `given` in its fields; the answer."""
    shown = client.get(page)
    assert shown.status_code == 200, f"{page}: {shown.status_code}\n{shown.text}"
    return press_shown(client, shown.text, do, **given)


def press_shown(client: httpx.Client, shown: str, do: str, **given: str) -> str:
    """Send the form with the button that does `do`, of a page that was shown; the answer.

    A form whose hidden `target` is not the given one is another form.
    """
    for form in _Forms(shown).found:
        fits = form.values.get("target", "") in ("", given.get("target", ""))
        if fits and (("do", do) in form.buttons or form.values.get("do") == do):
            reply = client.post(form.action, data={**form.values, "do": do, **given})
            assert reply.status_code == 200, f"{do}: {reply.status_code}\n{reply.text}"
            return reply.text
    raise AssertionError(f"No button for {do}:\n{shown}")
