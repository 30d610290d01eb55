"""A page as a strict reader sees it: tags, attributes, tables and text, every tag closed in order."""

from __future__ import annotations

from html.parser import HTMLParser

ADDRESSES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction", "xlink:href", "cite"}


class Page(HTMLParser):
    """What a browser would see: tags, attributes, and text per tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in ("meta", "wbr", "br", "img", "input"):
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))
        if {"th", "td"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def all_text(self) -> str:
        return "".join(data for tag, data in self.text if tag not in ("style", "script"))
