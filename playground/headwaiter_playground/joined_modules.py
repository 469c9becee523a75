"""Join the JavaScript modules of the page to a few files, so that a browser needs few requests for them."""

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{([^}]+)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
# An import while the page runs.
_LATE_IMPORT = re.compile(r'\bimport\("\./([a-z_]+\.js)"\)')
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
# Any other form of an import or an export, which the functions of this file would leave as it is.
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)

# Comments that have lines of their own, and indentation: a browser needs neither. No template literal of the page has
# several lines.
_FOR_READERS = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n|^ +", re.MULTILINE | re.DOTALL)


def joined_modules(sources: Mapping[str, str], entry: str) -> dict[str, str]:
    """Return the module `entry` with all that it imports, without comments, by its file name.

    A module that one of these imports while the page runs, by `import("./file.js")`, has a file of its own, with all
    that it imports and that the first file does not have.

    In a file, each module becomes a function that returns what the module exports, after the modules that it imports.

    Args:
        sources: the text of each module, by its file name.
        entry: the file name of the module that a page would load.

    Raises:
        ValueError: modules import each other in a circle, or use a form of import or export besides those that the page
            needs: `import { a, b } from "./file.js";` and `export function`, `class` or `const` with a name.
    """
    first = _joined(sources, entry, {})
    shared: set[str] = set()
    files = {}
    for late in sorted({found for name in first for found in _LATE_IMPORT.findall(sources[name])}):
        own = _joined(sources, late, first)
        used = {imported for name in own for _, imported in _IMPORT.findall(sources[name])} & first.keys()
        shared |= used
        head = f'import {_braced(used)} from "./{entry}";\n' if used else ""
        exported = ", ".join(_EXPORT.findall(sources[late]))
        files[late] = f"{head}{''.join(own.values())}export const {{ {exported} }} = {_variable(late)};\n"
    return {entry: "".join(first.values()) + (f"export {_braced(shared)};\n" if shared else ""), **files}


def _joined(sources: Mapping[str, str], entry: str, present: Mapping[str, str]) -> dict[str, str]:
    """Return a module and those that it imports, in the order in which they run, without those that are present."""
    joined: dict[str, str] = {}

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in importers:
            circle = " → ".join((*importers, name))
            raise ValueError(f"modules import each other in a circle: {circle}: break the circle")
        if name in joined or name in present:
            return
        for imported in _IMPORT.finditer(sources[name]):
            add(imported[2], (*importers, name))
        joined[name] = _function(name, sources[name])

    add(entry, ())
    return joined


def _function(name: str, source: str) -> str:
    """Return the constant that holds what a module exports."""
    body = _EXPORT.sub("", _IMPORT.sub(_constants, source))
    if other := _OTHER.search(body):
        raise ValueError(
            f'{name} has the line "{other[0]}": write import {{ a, b }} from "./file.js"; or export a name'
        )
    exported = ", ".join(_EXPORT.findall(source))
    return f"const {_variable(name)} = (() => {{\n{_FOR_READERS.sub('', body)}\nreturn {{ {exported} }};\n}})();\n"


def _constants(imported: re.Match[str]) -> str:
    """Return the declaration of the names that an import names; `a as b` becomes `a: b`."""
    return f"const {{{imported[1].replace(' as ', ': ')}}} = {_variable(imported[2])};\n"


def _braced(names: set[str]) -> str:
    """Return the list of the variables of modules, as an import or an export has it."""
    return f"{{ {', '.join(map(_variable, sorted(names)))} }}"


def _variable(name: str) -> str:
    """Return the variable that holds what a module exports."""
    return f"module_{name.removesuffix('.js')}"
