"""The program on the page about bundles gives the vectors of a server."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import BUNDLE, blocks
from tests.support.e2e.in_process_server import connect, serving
from tests.support.export.helpers import cosines

TEXTS = ["The bread is fresh.", "two tables for rain", "HELLO", "1,234.56 €", ""]


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        {
            "prompts": [{"name": "query", "text": "rain on ", "tokens": 3}, {"name": "document"}],
            "defaultPrompt": "query",
        },
    ],
    ids=["no prompt", "a default prompt"],
)
async def test_the_program_of_the_page_gives_the_vectors_of_a_server(
    prompts: dict[str, Any], text_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Path(shutil.copytree(text_bundle, tmp_path / "my-bundle"))
    manifest = bundle / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | prompts))
    monkeypatch.chdir(tmp_path)
    program: dict[str, Any] = {}
    (block,) = blocks(BUNDLE, "python")
    exec(compile(block, BUNDLE.name, "exec"), program)
    async with serving(bundle) as server, connect(server) as client:
        encoding = await client.encode(TEXTS)
    assert cosines(program["encode"](TEXTS), encoding.pooled).min() >= 0.999999
