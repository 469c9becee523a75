"""The command `headwaiter`: `headwaiter serve MODEL` exports a model, unless an earlier start has, and serves it.

The export runs in a process of its own, and the server takes the place of this process.
"""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

from headwaiter_proto.command_line import CommandParser

# With -P, no module in the current folder counts.
_PYTHON = (sys.executable, "-P", "-m")
# The variables of huggingface_hub with a token, which only the export needs.
_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
# The flags of `headwaiter-export checkpoint` and `onnx` that say what the files of a model do not; all other flags are
# those of the server.
EXPORT_FLAGS = (
    *("--pooling", "--normalize", "--no-normalize", "--max-tokens", "--question", "--words", "--route", "--adapter"),
    *("--outputs", "--labels", "--vocabulary-size"),
)


def main() -> int:
    """Become the server of a model.

    Returns:
        The exit status if there is nothing to serve: 2 after wrong usage, otherwise that of the export.
    """
    options = _parser().parse_args()
    export_flags, flags = _split(options.flags)
    # Imported here, so that --help is fast and needs no extra.
    from headwaiter_export.bundle.atomic_folder import BundleError
    from headwaiter_export.checkpoints.json_files import CheckpointError
    from headwaiter_serve.bundle_cache import cached_bundle
    from headwaiter_serve.ports import PortInUse, check_ports
    from headwaiter_server.settings.flags import SettingsError, read_settings

    try:
        # A wrong flag is found before the export, which takes a minute or more.
        settings = read_settings([options.model, *flags], os.environ)
        if (Path(options.model) / "manifest.json").is_file():
            if export_flags:
                return _fail(f"{options.model} is a bundle, which {export_flags[0]} cannot change: leave it out", 2)
            return _become_server(options.model, flags)
        check_ports(settings)
        with cached_bundle(options.model, settings, export_flags) as (bundle, export):
            if bundle.is_dir():
                print(f"headwaiter: {options.model} was exported by an earlier start: {bundle}", file=sys.stderr)
            elif status := _run_export(export):
                return status
    except SettingsError as error:
        return _fail(error, 2)
    except (BundleError, CheckpointError, PortInUse) as error:
        return _fail(error, 1)
    except OSError as error:
        return _fail(f"{error.filename} cannot be read or written ({error.strerror}): let this user do so", 1)
    except KeyboardInterrupt:
        return 130
    return _become_server(str(bundle), flags)


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the flags of the export, and those of the server; each is followed by its values."""
    export, server = list[str](), list[str]()
    part = server
    for word in words:
        if word.startswith("--"):
            part = export if word.partition("=")[0] in EXPORT_FLAGS else server
        part.append(word)
    return export, server


def _become_server(bundle: str, flags: list[str]) -> NoReturn:
    environment = {name: value for name, value in os.environ.items() if name not in _TOKENS}
    command = [*_PYTHON, "headwaiter_server", bundle, *flags]
    os.execve(sys.executable, command, environment)  # noqa: S606 - no shell is needed


def _run_export(arguments: list[str]) -> int:
    """Run headwaiter-export, and return its exit status as a shell gives it."""
    with subprocess.Popen([*_PYTHON, "headwaiter_export", *arguments]) as export:  # noqa: S603 - our own command
        signal.signal(signal.SIGTERM, lambda *_: export.terminate())
        # A terminal sends Ctrl-C to both processes, and the export ends.
        signal.signal(signal.SIGINT, lambda *_: None)
        status = export.wait()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return status if status >= 0 else 128 - status


def _fail(error: object, status: int) -> int:
    print(f"headwaiter: {error}", file=sys.stderr)
    return status


class _Parser(CommandParser):
    """Takes every word after MODEL as a flag of the server, so that what it does not recognize is before MODEL."""

    def _suggestion(self, flag: str) -> str:
        return f": give MODEL first, headwaiter serve MODEL {flag} …"


def _parser() -> CommandParser:
    parser = _Parser(prog="headwaiter", description="Serve a model with one command.")
    parser.add_version()
    serve = parser.add_subparsers(required=True, metavar="COMMAND").add_parser(
        "serve",
        help="export a model, unless an earlier start has, and serve it",
        usage="headwaiter serve MODEL [FLAGS]",
        description="Serve a bundle, or export a checkpoint into the cache and serve it. A second start with the same "
        "checkpoint exports nothing. headwaiter-server --help lists the flags of the server. The flags "
        f"{', '.join(EXPORT_FLAGS)} are those of headwaiter-export checkpoint and onnx.",
    )
    serve.add_argument(
        "model",
        metavar="MODEL",
        help="folder of a bundle or of a checkpoint, an ONNX file, or a name on a hub, OWNER/NAME[@REVISION]",
    )
    flags = serve.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="FLAGS", help="flags of the server and of the export"
    )
    # Otherwise, an error about a missing MODEL would name FLAGS too.
    flags.required = False
    return parser
