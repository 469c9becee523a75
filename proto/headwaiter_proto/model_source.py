"""What a user may name as a model besides a folder: a checkpoint on a hub, or an ONNX file."""

import re
from dataclasses import dataclass
from pathlib import Path

# Tells names from paths; the hub itself decides which names are valid.
_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@(\S+))?", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """The name of a checkpoint on a hub, OWNER/NAME[@REVISION].

    Attributes:
        name: OWNER/NAME.
        revision: a branch, a tag or a commit; None for the default branch.
    """

    name: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName | None":
        """Return a text as a name; None if a file or a folder has this path, or if the text is another path."""
        found = None if is_onnx(text) or Path(text).exists() else _NAME.fullmatch(text)
        return found and cls(*found.groups())

    @property
    def model(self) -> str:
        """The name without the owner."""
        return self.name.partition("/")[2]

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def is_onnx(text: str) -> bool:
    """Return whether a text is the path of an ONNX file."""
    return text.endswith(".onnx")
