"""The joined script does what the modules do, or is refused."""

import shutil
import subprocess
from pathlib import Path

import pytest

from headwaiter_playground.joined_modules import joined_modules

MODULES = {
    "main.js": """import {
    add,
    Counter as Clock,
} from "./sums.js";
import { LIMIT } from "./limits.js";

/** A sentence
 * about a constant. */
const hidden = 1;
// A sentence about what follows.
console.log(add(2, 3), new Clock().next(), LIMIT, hidden);
void import("./late.js").then(({ late }) => console.log(late()));
""",
    "late.js": """import { add } from "./sums.js";
import { LIMIT } from "./limits.js";
import { own } from "./own.js";

export function late() {
    return [add(0, 1), LIMIT, own];
}
""",
    "own.js": "export const own = 7;\n",
    "sums.js": """import { LIMIT } from "./limits.js";

const hidden = 40;

export function add(a, b) {
    return Math.min(a + b + hidden, LIMIT);
}

export class Counter {
    next() {
        return hidden;
    }
}
""",
    "limits.js": 'console.log("once");\nexport const LIMIT = 44;\n',
}


@pytest.mark.usefixtures("starts_processes")
def test_modules_run_once_in_order_and_keep_their_names_to_themselves(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing: install Node.js 20 or newer")
    files = {**joined_modules(MODULES, "main.js"), "package.json": '{"type": "module"}'}
    assert files.keys() == {"main.js", "late.js", "package.json"}
    for name, text in files.items():
        assert "entence" not in text
        (tmp_path / name).write_text(text)
    run = subprocess.run([node, tmp_path / "main.js"], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "once\n44 40 44 1\n[ 41, 44, 7 ]\n"


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"limits.js": 'import { add } from "./sums.js";\nexport const LIMIT = add(1, 2);\n'}, "main.js → sums.js"),
        ({"limits.js": "export default 44;\n"}, "limits.js has .*export default 44"),
        ({"limits.js": 'import * as all from "./sums.js";\n'}, r"limits.js has .*import \* as all"),
    ],
)
def test_what_cannot_be_joined_is_refused(changed: dict[str, str], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        joined_modules({**MODULES, **changed}, "main.js")
