"""The session viewer: inside the report as far as its size allows, or as a folder of pages, one per session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from leadline.reports.branches import SessionSteps, by_session, short
from leadline.reports.contents import Contents
from leadline.reports.pages import environment, shared

EMBEDDED_BYTES = 2_400_000  # of the 3 MB that a report may have; tables and figures take the rest


@dataclass(frozen=True)
class Embedded:
    """The part of the viewer that stands in the report: sessions shown, their markup, and how many did not fit."""

    groups: tuple[SessionSteps, ...]
    articles: Markup
    omitted: int


def embedded(contents: Contents, limit: int = EMBEDDED_BYTES) -> Embedded:
    """As many whole sessions, in order, as `limit` bytes of markup hold; at least the first."""
    article = environment().get_template("viewer.html.j2").module.article  # type: ignore[attr-defined]
    groups, size = by_session(contents), 0
    parts: list[Markup] = []
    for group, around in zip(groups, neighbours(groups), strict=True):
        places = zip(group.points, around, strict=True)
        text = Markup("").join(article(group.session, point, *ends) for point, ends in places)
        size += len(text.encode())
        if size > limit and parts:
            break
        parts.append(text)
    return Embedded(tuple(groups[: len(parts)]), Markup("").join(parts), len(groups) - len(parts))


def neighbours(groups: Sequence[SessionSteps]) -> list[list[tuple[str | None, str | None]]]:
    """For every point of every session the ids of the points before and after it, across sessions."""
    ids = [None, *(point.id for group in groups for point in group.points), None]
    ends = iter(zip(ids, ids[2:], strict=False))
    return [[next(ends) for _ in group.points] for group in groups]


def pages(contents: Contents) -> Iterator[tuple[str, str]]:
    """(file name, text) of the viewer's pages: the index, then one page per session with branch points."""
    template = environment().get_template("viewer_page.html.j2")
    groups = by_session(contents)
    names = [_page(group) for group in groups]
    values = {"contents": contents, **shared()}
    nothing = {"here": None, "before": None, "after": None}
    yield "index.html", template.render(title="Sessions", groups=groups, page=_page, **nothing, **values)
    for place, group in enumerate(groups):
        around = {
            "before": names[place - 1] if place else None,
            "after": names[place + 1] if place + 1 < len(names) else None,
        }
        articles = list(zip(group.points, neighbours([group])[0], strict=True))
        own = {"title": group.session.id, "groups": [group], "page": lambda _: "", "here": group, "articles": articles}
        yield names[place], template.render(**own, **around, **values)


def write_pages(contents: Contents, folder: Path) -> Path:
    """Write the pages into `folder` (made where missing); returns the path of the index."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(contents):
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "index.html"


def _page(group: SessionSteps) -> str:
    return f"session-{short(group.session.sha256)}.html"
