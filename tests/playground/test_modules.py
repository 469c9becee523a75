"""The page's modules that need no browser, tested in Node.js; and the numbers that the page repeats from the server."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.runtime.numeric_tolerances import TOLERANCES

pytestmark = pytest.mark.usefixtures("starts_processes")

STATIC = Path(__file__).parents[2] / "playground" / "headwaiter_playground" / "static"
NODE = shutil.which("node")


@pytest.fixture
def node() -> str:
    if NODE is None:
        pytest.skip("Node.js is missing: install Node.js 20 or newer")
    return NODE


def test_the_modules_compute_what_they_say(node: str) -> None:
    tests = Path(__file__).with_name("modules.test.mjs")
    run = subprocess.run([node, "--test", str(tests)], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout


def test_the_page_shows_the_tolerances_that_the_server_enforces(node: str) -> None:
    program = f"import {{ TOLERANCES }} from '{STATIC}/tolerances.js'; console.log(JSON.stringify(TOLERANCES))"
    command = [node, "--input-type=module", "--eval", program]
    shown = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert shown == {
        pb.Precision.Name(precision): {
            "pooled": tolerance.pooled,
            "hidden": tolerance.hidden,
            "minCosine": tolerance.min_cosine,
            "maxRelative": tolerance.max_relative,
        }
        for precision, tolerance in TOLERANCES.items()
    }


def test_no_module_reads_a_text_as_html_or_as_code() -> None:
    modules = list(STATIC.glob("*.js"))
    assert len(modules) > 10
    for module in modules:
        text = module.read_text("utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|srcdoc", text
        ), module
        assert len(text.splitlines()) < 300
        assert text.startswith("// ")
