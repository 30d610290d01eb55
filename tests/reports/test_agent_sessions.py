"""The tables of agreement on agent sessions stand on their pages as the published databases give them."""

from __future__ import annotations

import pytest

from reports import agent_sessions_tables as tables

pytestmark = pytest.mark.skipif(not tables.PUBLISHED.is_dir(), reason="no published databases beside the tests")


def test_every_table_stands_on_one_page() -> None:
    found = [name for path in tables.PAGES for name in tables.blocks(path.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(tables.TABLES)


@pytest.mark.parametrize("name", tables.TABLES)
def test_the_page_says_what_the_databases_say(name: str) -> None:
    stands = [tables.blocks(path.read_text(encoding="utf-8")).get(name) for path in tables.PAGES]
    assert tables.TABLES[name]() in stands


@pytest.mark.parametrize("stage", tables.STAGES)
def test_dense_is_nowhere_degenerate_and_no_branch_failed(stage: str) -> None:
    dense = tables.scanners(stage)["dense"]
    assert (dense["empty"], dense["repeating"]) == (0, 0)
    assert tables.figures(stage)["run"]["status"] == "complete"
    assert not [one for one in tables.figures(stage)["exclusions"] if one["reason"].startswith("failed")]
    assert not [one for one in tables.figures(stage)["selections"] if one["unexplained"]]
