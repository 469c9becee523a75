"""The links, the names of files and the tables of flags on the pages are right."""

import dataclasses
import math
import re
import runpy
from pathlib import Path

import pytest
from grpc import StatusCode

from headwaiter_server.requests.call import Call
from headwaiter_server.settings.flags import Settings, flag
from headwaiter_server.settings.tenants import Tenant
from tests.support.documents import (
    ARCHITECTURE,
    CONTRIBUTING,
    DOCS,
    INDEX,
    LOG,
    PAGES,
    ROOT,
    SERVER,
    TESTS,
    anchors,
    links,
    table_rows,
)


def test_the_tables_of_flags_are_those_of_the_server() -> None:
    documented = {
        name: default.strip("`")
        for names, default, _ in table_rows(SERVER, "Flags")
        for name in re.findall(r"`(--[a-z-]+)`", names)
    }
    fields = {flag(field.name): field.default for field in dataclasses.fields(Settings) if field.name != "bundle"}
    assert documented.keys() == fields.keys()
    for name, default in fields.items():
        if name == "--front-ends":  # The default depends on the machine.
            continue
        expected = "" if default is None else ",".join(map(str, default)) if isinstance(default, tuple) else default
        assert documented[name] == (f"{expected:g}" if isinstance(expected, float) else str(expected)), name


def test_the_table_of_fields_of_the_log_is_that_of_the_server() -> None:
    documented = {name for names, _ in table_rows(LOG, "Fields") for name in re.findall(r"`(\w+)`", names)}
    call = Call("Encode", 0, math.inf, "ipv4:10.0.0.7:50123", tenant=Tenant("search"), model=("tiny", "3"))
    call.request_id, call.traceparent, call.stages = "r-7", f"00-{'a' * 32}-{'b' * 16}-01", {"queue": 0.5}
    assert call.log_fields(StatusCode.OK).keys() == documented


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "tests" if page == TESTS else page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_index_lists_every_page() -> None:
    listed = {(DOCS / link).resolve() for link in links(INDEX) if "#" not in link}
    assert set(DOCS.glob("*/*.md")) <= listed


@pytest.mark.parametrize(
    ("page", "fewest"),
    [(ARCHITECTURE, 25), (CONTRIBUTING, 20), (TESTS, 60)],
    ids=["architecture", "contributing", "tests"],
)
def test_the_files_that_a_page_for_developers_names_exist(page: Path, fewest: int) -> None:
    files = set(re.findall(r"`((?:[\w.-]+/)*\w+\.py)`", page.read_text("utf-8")))
    assert len(files) >= fewest
    packages = ("proto", "export", "server", "client", "tests", "bench")
    existing = [str(path) for package in packages for path in (ROOT / package).rglob("*.py")]
    for file in files:
        assert any(path.endswith(f"/{file}") for path in existing), file


def test_the_picture_of_a_packed_batch_is_the_one_that_its_script_draws() -> None:
    script = runpy.run_path(str(DOCS / "pictures" / "draw_packed_batch.py"))
    assert script["PICTURE"].read_text("utf-8") == script["svg"]()
