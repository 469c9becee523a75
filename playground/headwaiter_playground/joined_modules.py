"""Join the JavaScript modules of the page to one file, so that a browser needs one request for them."""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
# Any other form of an import or an export, which the functions of this file would leave as it is.
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)

# Comments that have lines of their own, and indentation: a browser needs neither. No template literal of the page has
# several lines.
_FOR_READERS = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n|^ +", re.MULTILINE | re.DOTALL)


def joined_modules(sources: Mapping[str, str], entry: str) -> str:
    """Return a script that does what the module `entry` does, with all that it imports, without comments.

    Each module becomes a function that returns what the module exports, after the modules that it imports.

    Args:
        sources: the text of each module, by its file name.
        entry: the file name of the module that a page would load.

    Raises:
        ValueError: modules import each other in a circle, or use a form of import or export besides the two that the
            page needs: `import { a, b } from "./file.js";` and `export function`, `class` or `const` with a name.
    """
    joined: dict[str, str] = {}
    _add(sources, entry, (), joined)
    return '"use strict";\n' + "".join(joined.values())


def _add(sources: Mapping[str, str], name: str, importers: tuple[str, ...], joined: dict[str, str]) -> None:
    """Add a module after those that it imports, unless it is there."""
    if name in importers:
        raise ValueError(f"modules import each other in a circle: {' → '.join((*importers, name))}: break the circle")
    if name in joined:
        return
    source = sources[name]
    for imported in _IMPORT.finditer(source):
        _add(sources, imported[2], (*importers, name), joined)
    exported = [found[1] for found in _EXPORT.finditer(source)]
    body = _EXPORT.sub("", _IMPORT.sub(_constants, source))
    if other := _OTHER.search(body):
        raise ValueError(
            f'{name} has the line "{other[0]}": write import {{ a, b }} from "./file.js"; or export a name'
        )
    body = _FOR_READERS.sub("", body)
    joined[name] = f"const {_variable(name)} = (() => {{\n{body}\nreturn {{ {', '.join(exported)} }};\n}})();\n"


def _constants(imported: re.Match[str]) -> str:
    """Return the declaration of the names that an import names; `a as b` becomes `a: b`."""
    return f"const {{{imported[1].replace(' as ', ': ')}}} = {_variable(imported[2])};\n"


def _variable(name: str) -> str:
    """Return the variable that holds what a module exports."""
    return f"module_{name.removesuffix('.js')}"
