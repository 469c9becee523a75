"""Fetch a checkpoint from a hub, with huggingface_hub: its cache, token and variables (HF_ENDPOINT, …) count."""

import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.needed_files import WEIGHTS, has_weights, needed_files
from headwaiter_proto.model_source import HubName

# The end of an error about a folder that its owner can save again.
_SAVE_AGAIN = re.compile(r": save (?:[a-z ]*again\b.*|the whole model)$")


def resolve(name: HubName) -> str:
    """Return the commit that a name stands for; without a connection, the one at the last connection.

    Raises:
        CheckpointError: the hub has no such name or revision, refuses this caller, or cannot be reached.
    """
    with _clear_errors(name):
        from huggingface_hub import HfApi

        return HfApi().resolve_revision(name.name, revision=name.revision).resolved


def fetch(name: HubName) -> tuple[Path, str]:
    """Return a folder in the cache of huggingface_hub that has the files of a checkpoint, and their commit.

    Files that are in the cache are not fetched again.

    Raises:
        CheckpointError: the same errors as `resolve`; or the name is that of something else than a checkpoint.
    """
    commit, folder = resolve(name), Path()

    def bring(files: list[str]) -> Path:
        nonlocal folder
        with _clear_errors(name):
            folder = _snapshot(name.name, commit, files)
        if not (folder / "config.json").is_file() and not (folder / "modules.json").is_file():
            raise CheckpointError(
                f"{name} has neither config.json nor modules.json: give a checkpoint of transformers or "
                "sentence-transformers"
            )
        return folder

    needed_files(bring)
    return folder, commit


@contextmanager
def errors_of_fetched(name: str, folder: Path) -> Iterator[None]:
    """Name a checkpoint as on the hub in the errors about its folder, with remedies for users that cannot save it.

    Raises:
        CheckpointError: an error of the block.
    """
    try:
        yield
    except CheckpointError as error:
        message = str(error).replace(str(folder), name)
        if _SAVE_AGAIN.search(message):
            message = _SAVE_AGAIN.sub(f": {_remedy(name, folder)}", message)
        raise CheckpointError(message) from error


def _remedy(name: str, folder: Path) -> str:
    """Return what the user of a checkpoint can do about a file that is damaged or missing."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "unset HF_HUB_OFFLINE, so that missing files are fetched"
    if not has_weights(folder):
        local = name.partition("/")[2]
        return (
            "choose another model; if this one has an ONNX file, run "
            f"hf download {name} --local-dir {local}, and give the folder {local}"
        )
    return f"choose another model or revision; if the download is damaged, delete {folder.parents[1]}"


def _snapshot(name: str, commit: str, files: list[str]) -> Path:
    """Return the folder of a commit in the cache, with those of the files that exist; show the progress of weights."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import logging
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            # None shows the bar on a terminal alone.
            options["disable"] = None if set(WEIGHTS) & set(files) else True
            super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]

    patterns = [escape(file) for file in files]
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # It warns if no file matches, and `fetch` says what is missing.
    try:
        folder = snapshot_download(name, revision=commit, allow_patterns=patterns, tqdm_class=Bar)
    finally:
        logging.set_verbosity(verbosity)
    # The bars are drawn a last time when they are deleted: let this be now.
    gc.collect()
    return Path(folder)


@contextmanager
def _clear_errors(name: HubName) -> Iterator[None]:
    """Turn the errors of huggingface_hub into one sentence that says what to do."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CheckpointError(f"{error.name} is not installed: pip install 'headwaiter[export]'") from None
    except Exception as error:
        raise CheckpointError(_sentence(name, error)) from error


def _sentence(name: HubName, error: Exception) -> str:
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else 0
    match error:
        case errors.HFValidationError():
            return f"{name.name} is neither a folder here nor a name that a hub allows: correct it"
        case errors.GatedRepoError():
            return (
                f"{hub} gives {name.name} only to accounts with access: ask for access at {hub}/{name.name}, and set "
                "HF_TOKEN to a token of the account"
            )
        case errors.RepositoryNotFoundError():
            return (
                f"{name.name} is neither a folder here nor a model that {hub} shows to this caller: correct the name, "
                "or set HF_TOKEN for a private model"
            )
        case errors.RevisionNotFoundError():
            return f"{name.name} has no revision {name.revision}: give a branch, a tag or a commit of {hub}/{name.name}"
    if status in (401, 403):
        if os.environ.get("HF_TOKEN"):
            return f"{hub} refuses the token in HF_TOKEN with status {status}: set it to a valid token, or unset it"
        if Path(constants.HF_TOKEN_PATH).is_file():
            return (
                f"{hub} refuses the token in {constants.HF_TOKEN_PATH} with status {status}: replace it with hf auth "
                "login, or delete the file"
            )
        return f"{hub} refuses a caller without a token with status {status}: set HF_TOKEN to a valid token"
    if status == 429:
        return f"{hub} has had too many requests from this address: wait some minutes, or set HF_TOKEN to a token"
    if constants.HF_HUB_OFFLINE:
        return (
            f"{name} is not complete in {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set: unset it, or give a folder"
        )
    reason = f"status {status}" if status else str(error.__cause__ or error).strip().partition("\n")[0]
    return (
        f"{name} cannot be fetched from {hub} ({reason}): check the connection, HF_ENDPOINT, and the room in "
        f"{constants.HF_HUB_CACHE}"
    )
