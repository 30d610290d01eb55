"""The report in headless Chromium: it loads nothing and complains of nothing, its viewer answers to keys, and hostile
session text stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reports.browser import Browser, executable

from leadline.database import Results
from leadline.records import Exclusion
from leadline.reports.contents import Contents, gather
from leadline.reports.html import html
from leadline.reports.viewer import write_pages
from reports import factory

HOSTILE = (
    "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'></pre></article></details>{{ 7*7 }} \"'><svg "
    "onload=window.pwned=3><a href='javascript:window.pwned=4'>x</a><style>*{display:none}</style></script><!-- "
    "\x1b[31m \u202egnp.exe &lt;script&gt; needle-in-hostile-text"
)
STAGES = {"transfer": 320.0, "scan": 128.0, "top-k": 64.0, "row fetch": 64.0, "GEMM": 32.0, "other": 32.0}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def gathered(path: Path) -> Contents:
    with Results.open(path, read_only=True) as results:
        return gather(results)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four sessions of three steps, timed on a GPU; one word is special to one step."""
    folder = tmp_path_factory.mktemp("report")

    def changes(label: str, index: int, step: int) -> dict[str, Any]:
        special = " unmistakable" if (index, step) == (2, 9) else ""
        text = f"run the tests of step {step}{special} with care"
        if label == "sparq:r=16":
            text = text.replace("with", "without")
        return {"text": text, "gpu_ms": 640.0, "gpu_stage_ms": STAGES, "timer": "profiler", "repeating": index == 3}

    def agreement(label: str, index: int, step: int) -> float:
        return 1.0 if label == "exact" else round(0.3 + 0.1 * index + 0.02 * step + 0.01 * len(label), 3)

    factory.fill(
        folder / "results.sqlite",
        sessions=4,
        steps=(4, 9, 11),
        changes=changes,
        agreement=agreement,
        exclusions=[Exclusion(path="a.json", session_sha256=None, step=1, reason="shorter than 8k")],
        run_environment=factory.environment(gpu="a test GPU"),
    )
    page = folder / "report.html"
    page.write_text(html(gathered(folder / "results.sqlite")), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    sessions = [
        factory.session(0, HOSTILE, id=HOSTILE, path=HOSTILE, notes=((HOSTILE, HOSTILE, HOSTILE),)),
        factory.session(1),
    ]
    factory.fill(
        folder / "results.sqlite",
        sessions=sessions,
        changes=lambda label, index, step: {"text": f"{label} {HOSTILE} {step}"},
        point_changes={"recorded_text": HOSTILE, "prompt_tail": HOSTILE},
        exclusions=[Exclusion(path=HOSTILE, session_sha256=None, step=3, reason=HOSTILE)],
        run_model=factory.model(id=HOSTILE),
        run_environment=factory.environment(cpu=HOSTILE, packages={HOSTILE: HOSTILE}),
        command=HOSTILE,
    )
    contents = gathered(folder / "results.sqlite")
    (folder / "report.html").write_text(html(contents), encoding="utf-8")
    write_pages(contents, folder / "viewer")
    return folder


def point(index: int, step: int) -> str:
    return f"s{factory.session(index).sha256[:12]}-{step}"


def shown(browser: Browser) -> list[str]:
    """The branch points on view."""
    visible = "[...document.querySelectorAll('.point')].filter(p => p.checkVisibility())"
    found: list[str] = browser.run(f"{visible}.map(p => p.id)")
    return found


def quiet(browser: Browser, page: Path) -> None:
    assert browser.complaints() == []
    assert [url.split("#")[0] for url in browser.requests()] == [page.resolve().as_uri()]


@pytest.mark.parametrize(
    ("width", "phone", "dark"), [(1280, False, False), (390, True, True)], ids=["desktop-light", "phone-dark"]
)
def test_it_stands_complete_and_loads_nothing(
    browser: Browser, report: Path, width: int, phone: bool, dark: bool
) -> None:
    browser.view(width, 900, dark=dark, phone=phone)
    browser.open(report)
    quiet(browser, report)
    assert browser.run("document.documentElement.scrollWidth") <= width, "the page itself must not scroll sideways"
    plots: dict[str, list[float]] = browser.run(
        "Object.fromEntries([...document.querySelectorAll('[id^=figure-]')].map(f => {"
        " const b = f.querySelector('svg').getBBox();"
        " return [f.id, [b.width, b.height, f.querySelectorAll('text').length]] }))"
    )
    assert set(plots) == {
        f"figure-{name}" for name in ("pareto", "pareto-gpu", "forest", "slopes", "kl", "survival", "layers", "stages")
    }
    assert all(w > 100 and h > 80 and texts >= 5 for w, h, texts in plots.values()), plots
    rows: dict[str, int] = browser.run(
        "Object.fromEntries([...document.querySelectorAll('main > section')].map("
        "s => [s.id, s.querySelectorAll('tbody tr').length]))"
    )
    assert rows["agreement"] == 5
    assert rows["sessions"] == 4
    assert rows["difference-agreement"] == 2
    assert rows["degenerate"] == 3
    assert rows["stages"] == rows["time"] == 5
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 150) == dark


def test_the_policy_forbids_what_the_page_does_not_bring(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.run(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.pwned = 9';"
        " const image = document.createElement('img'); image.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACw=';"
        " document.body.append(script, image); document.body.setAttribute('style', 'opacity: .5'); })()"
    )
    browser.settle()
    assert browser.run("window.pwned") is None
    assert browser.run("getComputedStyle(document.body).opacity") == "1"
    assert len([text for text in browser.complaints() if "Content Security Policy" in text]) >= 3


def test_keys_walk_steps_sessions_and_scanners(browser: Browser, report: Path) -> None:
    browser.view(1280, 900)
    browser.open(report)
    assert shown(browser) == [point(0, 4)]
    walked = []
    for key in ("j", "j", "j", "k", "J", "J", "K", "k"):
        browser.press(key)
        assert len(shown(browser)) == 1
        walked += shown(browser)
    places = [(0, 9), (0, 11), (1, 4), (0, 11), (1, 4), (2, 4), (1, 4), (0, 11)]
    assert walked == [point(*place) for place in places]
    assert browser.run("location.hash") == f"#{point(0, 11)}"
    current = browser.run("[...document.querySelectorAll('.picker [aria-current]')].map(a => a.hash)")
    assert current == [f"#{point(0, 11)}"]

    browser.press("n", "n")
    assert browser.run("location.hash").startswith(f"#{point(0, 11)}-")
    assert browser.run("document.querySelector('.branch.here h4').textContent").startswith("dense")
    browser.press("p")
    assert browser.run("document.querySelector('.branch.here h4').textContent").startswith("exact")
    top = browser.run("document.querySelector('.branch.here').getBoundingClientRect().top")
    assert -1 <= top < 900
    quiet(browser, report)


def test_the_first_and_the_last_step_are_ends(browser: Browser, report: Path) -> None:
    browser.open(report, point(3, 11))
    browser.press("j", "J")
    assert shown(browser) == [point(3, 11)]
    browser.open(report)
    browser.press("k", "K")
    assert shown(browser) == [point(0, 4)]


def test_the_search_box_finds_a_step_by_its_text(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.press("/")
    assert browser.run("document.activeElement.type") == "search"
    browser.press(*"unmistakable")
    assert browser.run("document.querySelector('.controls output').textContent") == "1 step found"
    links = "[...document.querySelectorAll('.picker a')].filter(a => a.checkVisibility()).map(a => a.hash)"
    assert browser.run(links) == [f"#{point(2, 9)}"]
    browser.press("Enter")
    assert shown(browser) == [point(2, 9)]
    assert browser.run("CSS.highlights.get('found').size") > 0
    browser.press("j")  # the only match is the last one too
    assert shown(browser) == [point(2, 9)]
    browser.press("/", "Escape")
    assert len(browser.run(links)) == 12
    browser.press("j")
    assert shown(browser) == [point(2, 11)]

    browser.press("/", *"session-3 without")
    assert browser.run("document.querySelector('.controls output').textContent") == "3 steps found"
    browser.press(*" xyzzy")
    assert browser.run("document.querySelector('.controls output').textContent") == "0 steps found"
    quiet(browser, report)


def test_keys_in_the_search_box_are_text(browser: Browser, report: Path) -> None:
    browser.open(report)
    browser.press("/", "j", "k")
    assert browser.run("document.querySelector('.controls input').value") == "jk"
    assert shown(browser) == [point(0, 4)]


def test_a_fragment_opens_its_step_and_its_scanner(browser: Browser, report: Path) -> None:
    browser.open(report, point(2, 9))
    assert shown(browser) == [point(2, 9)]
    fragment = f"{point(1, 11)}-{factory.sha('scanner sparq:r=16')[:8]}"
    browser.open(report, fragment)
    assert shown(browser) == [point(1, 11)]
    said = browser.run(f"document.getElementById('{fragment}').querySelector('pre').innerText")
    assert "with" in said
    assert "without" in said
    browser.run("document.querySelector('.point.current .steps a:last-child').click()")
    browser.settle()
    assert shown(browser) == [point(2, 4)]
    browser.run("history.back()")
    browser.settle()
    browser.run("document.querySelector('.picker a').click()")
    browser.settle()
    assert shown(browser) == [point(0, 4)]
    browser.run("history.back()")
    browser.settle()
    assert shown(browser) == [point(1, 11)]


def test_a_fragment_of_nothing_is_no_error(browser: Browser, report: Path) -> None:
    for fragment in ("%E0%A4%A", "s000000000000-1", "agreement", "a b<c>"):
        browser.open(report, fragment)
        assert shown(browser) == [point(0, 4)]
        quiet(browser, report)


def test_without_its_script_a_link_still_opens_its_step(browser: Browser, report: Path, tmp_path: Path) -> None:
    page = tmp_path / "plain.html"
    page.write_text(re.sub("<script>.*</script>", "", report.read_text(encoding="utf-8"), flags=re.DOTALL))
    browser.open(page)
    assert shown(browser) == [point(0, 4)]
    browser.open(page, point(2, 9))
    assert shown(browser) == [point(2, 9)]
    browser.open(page, f"{point(1, 11)}-{factory.sha('scanner sparq:r=16')[:8]}")
    assert shown(browser) == [point(1, 11)]


def test_hostile_text_shows_as_text(browser: Browser, hostile: Path) -> None:
    pages = [hostile / "report.html", *sorted((hostile / "viewer").iterdir())]
    assert len(pages) == 4
    for page in pages:
        browser.open(page)
        assert browser.run("window.pwned") is None
        assert browser.run("document.querySelectorAll('img, iframe, object, embed, form, link, base').length") == 0
        assert browser.run("document.querySelectorAll('script').length") == 1
        assert browser.run("document.querySelectorAll('style').length") == 1
        hrefs: list[str] = browser.run("[...document.querySelectorAll('[href]')].map(a => a.getAttribute('href'))")
        assert not [href for href in hrefs if ":" in href]
        names = "[...document.querySelectorAll('*')].flatMap(e => [...e.attributes].map(a => a.name))"
        assert browser.run(f"{names}.filter(name => name.startsWith('on') || name === 'style')") == []
        quiet(browser, page)
    browser.open(hostile / "report.html")
    for text in browser.run("[...document.querySelectorAll('.point.current pre')].map(pre => pre.textContent)"):
        assert "<script>window.pwned=1</script><img src=x onerror='window.pwned=2'></pre></article>" in text
        assert "{{ 7*7 }}" in text
        assert "<U+202E>gnp.exe &lt;script&gt;" in text
        assert "<U+001B>[31m" in text
    browser.press("/", *"needle-in-hostile", "Enter", "j", "n", "J")
    browser.press("/", "Escape", "/", *"<script>")
    assert browser.run("window.pwned") is None
    quiet(browser, hostile / "report.html")


def test_the_folder_of_pages_is_walked_by_keys_and_searched(browser: Browser, hostile: Path) -> None:
    index = hostile / "viewer" / "index.html"
    browser.open(index)
    links = "[...document.querySelectorAll('.picker a')].filter(a => a.checkVisibility()).length"
    assert browser.run(links) == 4
    browser.press("/", *"repository-1")
    assert browser.run(links) == 2
    browser.press("Enter")
    browser.settle()
    assert browser.run("location.pathname").endswith(f"session-{factory.session(1).sha256[:12]}.html")
    assert shown(browser) == [point(1, 4)]
    browser.press("j")
    assert shown(browser) == [point(1, 9)]
    browser.press("K")
    browser.settle()
    assert browser.run("location.pathname").endswith(f"session-{factory.session(0).sha256[:12]}.html")
    assert len(shown(browser)) == 1


def test_it_prints_what_is_on_view_in_full(browser: Browser, report: Path) -> None:
    browser.open(report, point(1, 9))
    browser.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert shown(browser) == [point(1, 9)]
        assert browser.run("document.querySelector('.picker').checkVisibility()") is False
        assert browser.run("document.querySelector('.sql').checkVisibility()") is False
        assert browser.run("document.querySelector('#agreement table').checkVisibility()") is True
    finally:
        browser.call("Emulation.setEmulatedMedia", media="")


def test_a_missing_browser_is_an_error_in_ci_and_a_skip_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_CHROMIUM", "no-such-browser")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt-get install chromium"):
        executable()
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="no Chromium found"):
        executable()
