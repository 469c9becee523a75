"""Say what is wrong with what a user names as a checkpoint, before anything reads it."""

import re
from pathlib import Path

from headwaiter_export.checkpoints.json_files import CheckpointError, is_present
from headwaiter_proto.model_source import HubName, is_onnx

_URL = re.compile(r"https?://[^/]+/([\w.-]+/[\w.-]+?)(?:/tree/(\S+?))?/?", re.ASCII)
_CODE = re.compile(r"(.+\.py)(?::(\w*))?")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
# One of these is in the folder of every checkpoint and of every bundle.
_SETTINGS = ("config.json", "modules.json", "manifest.json")


def check_model_path(text: str) -> None:
    """Check that a text names a folder of a checkpoint or a bundle, an ONNX file, or a checkpoint on a hub.

    Raises:
        CheckpointError: the text names something else; the message says what to give instead.
    """
    path = Path(text)
    if HubName.parse(text) or is_onnx(text) or (path.is_dir() and any(is_present(path / name) for name in _SETTINGS)):
        return
    raise CheckpointError(f"{text} {_remedy(text, path)}")


def _remedy(text: str, path: Path) -> str:
    """Return what a path is instead of a model, and what to give."""
    if url := _URL.fullmatch(text):
        name, revision = url.groups()
        return f"is a URL: give the name on the hub, {name}{f'@{revision}' if revision else ''}"
    if code := _CODE.fullmatch(text):
        file, function = code.groups()
        return (
            f"is code: run headwaiter-export module {file}:{function or 'FUNCTION'} --max-tokens N --vocabulary-size N "
            "-o BUNDLE, and serve BUNDLE"
        )
    if path.is_dir():
        if any(path.glob("*.onnx")) or any(path.glob("onnx/*.onnx")):
            return f"has an ONNX file, but no config.json: run headwaiter-export onnx {text} -o BUNDLE"
        found = sorted(each.parent for name in _SETTINGS[:2] for each in path.glob(f"*/{name}"))
        given = f"give {found[0]}" if found else "give the folder that save_pretrained wrote, or OWNER/NAME on a hub"
        return f"has {'neither config.json nor modules.json' if any(path.iterdir()) else 'no files'}: {given}"
    if path.suffix in _WEIGHTS and path.is_file():
        if is_present(path.with_name("config.json")):
            return f"has weights alone: give its folder, {path.parent.resolve()}"
        return (
            "has weights alone: give the folder of a checkpoint, with config.json; for an encoder of your own, run "
            f"headwaiter-export module CONFIG.json {text} -o BUNDLE, and serve BUNDLE"
        )
    if path.exists():
        return "is no folder: give the folder of a checkpoint, an ONNX file, or OWNER/NAME on a hub"
    if path.name == text:
        return (
            "is neither here nor a name on a hub: give the path of a folder, or OWNER/NAME, such as "
            f"sentence-transformers/{text} (https://huggingface.co/models?search={text} finds the owner)"
        )
    return "does not exist: correct the path, or give OWNER/NAME on a hub"
