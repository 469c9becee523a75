"""The command `headwaiter-export`.

Its commands `checkpoint`, `onnx`, `module` and `preset` differ in how they read the encoder. All end in `write_bundle`.
"""

import argparse
import importlib.util
import json
import re
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from headwaiter_export.config.choices import ROW_POOLINGS, Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.config.field_checks import ConfigError, WeightsError
from headwaiter_export.config.presets import PRESETS
from headwaiter_proto.command_line import CommandParser
from headwaiter_proto.model_source import HubName

if TYPE_CHECKING:
    from torch import nn

    from headwaiter_export.checkpoints.reader import LoadedModel
    from headwaiter_proto.manifest_pb2 import HubSource

# The choices of `--graphs` and `--precision`; `bundle/graphs.py` has the graphs.
GRAPH_KINDS = ("packed-cpu", "packed-cuda", "padded", "portable", "attend")
DEFAULT_PRECISIONS = ("fp32", "fp16", "int8")
PRECISIONS = (*DEFAULT_PRECISIONS, "bf16")
# The choice of `--pooling` for sparse vectors.
SPARSE = "splade"
# The flags of a module with code of its own, as arguments of `export_module`.
_MODULE_FLAGS = ("max_tokens", "vocabulary_size", "feature_width", "pooling", "normalize", "labels")
# Packages of the extra `export` that this command imports.
_REQUIRED_PACKAGES = (
    *("onnx", "onnx_ir", "onnxruntime", "onnxscript", "rich", "safetensors", "tokenizers", "torch", "transformers"),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return its exit status.

    0: the bundle is complete. 1: an error. 130 and 143: interrupted by Ctrl-C or SIGTERM. Wrong usage exits with 2.
    """
    options = _parser().parse_args(arguments)
    if missing := [package for package in _REQUIRED_PACKAGES if importlib.util.find_spec(package) is None]:
        return _print_error(f"{missing[0]} is not installed: pip install 'headwaiter[export]'")
    try:
        # The unfinished bundle is deleted.
        with _signal_handlers({signal.SIGTERM: _end}):
            return _export(options)
    except KeyboardInterrupt:
        _print_error(f"interrupted: {options.output} was not written")
        return 130


def _export(options: argparse.Namespace) -> int:
    # Imported here, so that --help does not wait for torch, and works without the extra.
    from headwaiter_export.bundle.atomic_folder import BundleError
    from headwaiter_export.checkpoints.json_files import CheckpointError

    name = options.default_name(options) if options.name is None else options.name
    try:
        options.export(options, name)
    except (BundleError, CheckpointError, ConfigError, WeightsError, OSError) as error:
        return _print_error(str(error))
    # Without the flag, a server takes fp16 or fp32, or the only precision of an ONNX file.
    flag = "" if "precision" not in options or "fp32" in options.precision else f" --precision {options.precision[0]}"
    print(f"{options.output} is ready: headwaiter-server {options.output}{flag}")
    return 0


def _export_checkpoint(options: argparse.Namespace, name: str) -> None:
    from headwaiter_export.checkpoints.chosen_family import NoFamilyError

    # Before the progress, because huggingface_hub shows its own.
    options.folder, options.source = _fetched(options.folder)
    with _Progress() as progress, _errors_of(options.folder, options.source):
        try:
            _export_encoder(_read_checkpoint, options, name, progress)
        except NoFamilyError as error:
            _export_library_model(options, name, error, progress)


def _export_library_model(options: argparse.Namespace, name: str, no_family: Exception, progress: "_Progress") -> None:
    """Export a checkpoint whose type has no family, with the module of transformers."""
    from headwaiter_export.bundle.own_module import export_encoder
    from headwaiter_export.checkpoints.library_model import read_library_model

    if options.pooling == SPARSE or options.question or options.words or options.route or options.adapter:
        raise no_family
    pooling = None if options.pooling is None else Pooling(options.pooling)
    model = read_library_model(options.folder, no_family, pooling, options.normalize, options.max_tokens)
    given = {
        "head": model.head,
        "source": options.source,
        "image": model.image,
        **_reports(options, progress),
        **model.choices,
    }
    export_encoder(model.module, model.finish, options.output, name, **given)
    for assumption in model.assumptions:
        progress.report(assumption)


def _export_onnx(options: argparse.Namespace, name: str) -> None:
    from headwaiter_export.bundle.onnx_export import export_onnx
    from headwaiter_export.bundle.onnx_folder import OnnxChoices
    from headwaiter_export.checkpoints.onnx_paths import find_onnx
    from headwaiter_export.checkpoints.reader import read_checkpoint

    choices = OnnxChoices(
        dict(options.outputs),
        None if options.pooling is None else Pooling(options.pooling),
        options.normalize,
        options.labels,
        options.max_tokens,
        options.vocabulary_size,
    )
    read = None
    if options.pytorch is not None:
        # Before the progress, as for a checkpoint.
        folder, _ = _fetched(options.pytorch)
        read = partial(read_checkpoint, folder, choices.pooling, choices.normalize)
    with _Progress() as progress, _flags_in_errors():
        export_onnx(find_onnx(options.file), options.output, name, choices, progress.report, progress.step, read)


def _export_module(options: argparse.Namespace, name: str) -> None:
    from headwaiter_export.bundle.own_module import export_module

    with _Progress() as progress:
        if ".py:" in options.config:
            # The flags are checked before the code runs.
            choices = {**_module_choices(options), **_reports(options, progress)}
            with _flags_in_errors():
                export_module(_load_module(options), options.output, name=name, **choices)
        else:
            _export_encoder(_read_module, options, name, progress)


def _export_preset(options: argparse.Namespace, name: str) -> None:
    with _Progress() as progress:
        _export_encoder(_read_preset, options, name, progress)


def _reports(options: argparse.Namespace, progress: "_Progress") -> dict[str, Any]:
    """Return the arguments that `export_module` and `export_encoder` share, with the graphs of modules among others."""
    from headwaiter_export.bundle.graphs import EVERY_GRAPH, PADDED_GRAPHS, chosen_plans

    plans = chosen_plans(options.graphs, options.precision, (*EVERY_GRAPH, *PADDED_GRAPHS))
    return {"report": progress.report, "step": progress.step, "plans": plans}


def _export_encoder(
    read: "Callable[[argparse.Namespace, Callable[[str], object]], LoadedModel]",
    options: argparse.Namespace,
    name: str,
    progress: "_Progress",
) -> None:
    """Export an encoder of ours, which runs without padding."""
    from headwaiter_export.bundle.export import export_model
    from headwaiter_export.bundle.graphs import EVERY_GRAPH, chosen_plans

    def read_checked() -> "LoadedModel":
        model = read(options, progress.report)
        # Only now, because a checkpoint without a family could have padded graphs alone.
        chosen_plans(options.graphs, options.precision)
        return model

    unpadded = [each for each in _reports(options, progress)["plans"] if each in EVERY_GRAPH]
    export_model(read_checked, options.output, name, progress.report, progress.step, unpadded)


class _Progress:
    """Prints results above a line that shows the current step; only a terminal has this line."""

    def __init__(self) -> None:
        # Imported here, so that --help works without the extra.
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

        console = Console(soft_wrap=True, markup=False, highlight=False, emoji=False)
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "_Progress":
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def report(self, line: str) -> None:
        """Print a line."""
        self._bar.console.print(line)

    def step(self, what: str) -> None:
        """Show what begins now."""
        self._bar.reset(self._task, description=what)


@contextmanager
def _signal_handlers(handlers: "Mapping[signal.Signals, Callable[..., object] | signal.Handlers]") -> Iterator[None]:
    """Handle signals in another way until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Only the main thread may set handlers.
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(*_: object) -> None:
    raise SystemExit(143)


def _fetched(checkpoint: str) -> "tuple[Path, HubSource | None]":
    """Return the folder of a checkpoint, fetched from a hub if it is a name there, and the hub's name and commit."""
    from headwaiter_export.checkpoints.model_path import check_model_path

    check_model_path(checkpoint)
    if not (name := HubName.parse(checkpoint)):
        return Path(checkpoint), None
    from headwaiter_export.checkpoints.hub import fetch
    from headwaiter_proto.manifest_pb2 import HubSource

    # huggingface_hub would fetch its files to the end first. It keeps what it has of a file.
    with _signal_handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM), signal.SIG_DFL)):
        folder, commit = fetch(name)
    return folder, HubSource(name=name.name, revision=commit)


def _errors_of(folder: Path, source: "HubSource | None") -> AbstractContextManager[None]:
    """Return the context in which errors name a checkpoint as its user does."""
    from headwaiter_export.checkpoints.hub import errors_of_fetched

    return nullcontext() if source is None else errors_of_fetched(source.name, folder)


@contextmanager
def _flags_in_errors() -> Iterator[None]:
    """Name flags instead of the arguments that they give, in errors about them."""
    try:
        yield
    except ConfigError as error:
        names = re.compile("max_tokens|vocabulary_size|feature_width")
        raise ConfigError(names.sub(lambda name: f"--{name[0].replace('_', '-')}", str(error))) from error


def _name_of_checkpoint(options: argparse.Namespace) -> str:
    """Return the name of the folder, or the name on the hub without its owner."""
    name = HubName.parse(options.folder)
    return name.model if name else Path(options.folder).resolve().name


def _read_checkpoint(options: argparse.Namespace, report: Callable[[str], object]) -> "LoadedModel":
    from headwaiter_export.checkpoints.reader import read_checkpoint
    from headwaiter_export.checkpoints.word_scores import PairQuestion

    sparse = options.pooling == SPARSE
    pooling = None if sparse or options.pooling is None else Pooling(options.pooling)
    question = None
    if options.question or options.words:
        if not (options.question and options.words):
            raise ConfigError("--question and --words belong together: give both")
        if options.pooling == SPARSE:
            raise ConfigError(f"--question scores pairs, and --pooling {SPARSE} makes vectors: choose one of the two")
        if len(options.words) > 2:
            raise ConfigError(f"--words has {len(options.words)} words: give one or two")
        question = PairQuestion(options.question, *options.words)
    checkpoint = read_checkpoint(
        options.folder,
        pooling,
        options.normalize,
        question,
        sparse=sparse,
        route=options.route,
        adapter=options.adapter,
    )
    if options.max_tokens is not None:
        raise ConfigError(
            f"{options.folder} has a family, and takes as many tokens as its config.json says: leave --max-tokens out, "
            "or limit sequences with --max-sequence-tokens of the server"
        )
    if options.source is not None:
        report(f"the checkpoint is {options.source.name} at commit {options.source.revision}")
    for assumption in checkpoint.assumptions:
        report(assumption)
    return replace(checkpoint, source=options.source)


def _load_module(options: argparse.Namespace) -> "nn.Module":
    """Run the function of FILE.py:FUNCTION, and return its module."""
    from torch import nn

    path, _, name = options.config.rpartition(":")
    file = Path(path).resolve()
    # As if Python ran the file: it may import its neighbours.
    sys.path.insert(0, str(file.parent))
    try:
        namespace = runpy.run_path(str(file))
        if not callable(namespace.get(name)):
            raise ConfigError(f"{file} has no function {name}: give FILE.py:FUNCTION")
        module = namespace[name]()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{options.config} fails ({error!r:.300}): correct it") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"{options.config} returns an object of the class {type(module).__name__}: let it return a torch.nn.Module"
        )
    return module


def _module_choices(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `export_module` that flags give."""
    if options.weights is not None or options.compare is not None:
        raise ConfigError(
            "FILE.py:FUNCTION makes a module with its weights: leave WEIGHTS.safetensors and --compare out"
        )
    if options.max_tokens is None:
        raise ConfigError("a module does not say how long a sequence may be: give --max-tokens")
    if (options.vocabulary_size is None) == (options.feature_width is None):
        raise ConfigError("a module takes token ids or features: give either --vocabulary-size or --feature-width")
    given = {name: getattr(options, name) for name in (*_MODULE_FLAGS, "tokenizer")}
    return {name: value for name, value in given.items() if value is not None}


def _read_module(options: argparse.Namespace, report: Callable[[str], object]) -> "LoadedModel":
    from headwaiter_export.checkpoints.json_files import CheckpointJson

    if options.weights is None:
        raise ConfigError(
            f"{options.config} is a configuration: give WEIGHTS.safetensors after it, or FILE.py:FUNCTION"
        )
    if given := [name for name in _MODULE_FLAGS if getattr(options, name) is not None]:
        flag = f"--{given[0].replace('_', '-')}"
        raise ConfigError(f"{flag} belongs to FILE.py:FUNCTION: leave it out, and say the same in {options.config}")
    try:
        config = EncoderConfig.from_dict(CheckpointJson.read(Path(options.config)).values)
    except ConfigError as error:
        raise ConfigError(f"{options.config}: {error}") from None
    model = _load_model(config, options.weights, options.tokenizer, report)
    if options.compare is not None:
        from headwaiter_export.bundle.own_code import compare_with_file

        report(compare_with_file(options.compare, model.encoder))
    return model


def _read_preset(options: argparse.Namespace, report: Callable[[str], object]) -> "LoadedModel":
    config = PRESETS[options.preset](dict(options.set))
    return _load_model(config, options.weights, options.tokenizer, report, options.seed)


def _load_model(
    config: EncoderConfig,
    weights: Path | None,
    tokenizer: Path | None,
    report: Callable[[str], object],
    seed: int = 0,
) -> "LoadedModel":
    from headwaiter_export.checkpoints.reader import LoadedModel
    from headwaiter_export.checkpoints.texts import read_tokenizer
    from headwaiter_export.checkpoints.weights import random_encoder, read_encoder

    if tokenizer is not None and not config.takes_tokens:
        raise ConfigError("--tokenizer needs an encoder of token ids, but this one takes features: set vocabulary_size")
    if tokenizer is not None and config.takes_target:
        raise ConfigError("--tokenizer makes a sequence of a text, but this encoder also needs a target: leave it out")
    text = None if tokenizer is None else read_tokenizer(tokenizer, config)
    if weights is None:
        report(f"the weights are random, drawn from seed {seed}")
        return LoadedModel(random_encoder(config, seed), text)
    return LoadedModel(read_encoder(config, weights), text)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="headwaiter-export", description="Export an encoder as a bundle that headwaiter-server can serve."
    )
    parser.add_version()
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_checkpoint(commands)
    _add_onnx(commands)
    _add_module(commands)
    _add_preset(commands)
    for name, command in commands.choices.items():
        default = {
            "checkpoint": "the name of FOLDER",
            "onnx": "the name of the folder or the file",
            "module": "the name of CONFIG.json or FUNCTION",
            "preset": "NAME",
        }[name]
        operands = {
            "checkpoint": "FOLDER",
            "onnx": "MODEL.onnx",
            "module": "CONFIG.json WEIGHTS.safetensors",
            "preset": "NAME",
        }[name]
        # First in the usage, because --precision and --graphs would take a word after them for one of their values.
        command.usage = f"%(prog)s {operands} -o BUNDLE [OPTION ...]"
        if name == "module":
            command.usage += "\n       %(prog)s FILE.py:FUNCTION --max-tokens N -o BUNDLE [OPTION ...]"
        command.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to create")
        command.add_argument("--name", help=f"name of the model in requests and replies (default: {default})")
        if name == "onnx":
            continue
        command.add_argument(
            "--precision",
            choices=PRECISIONS,
            nargs="+",
            default=DEFAULT_PRECISIONS,
            help="precisions of the graphs to write (default: all but bf16)",
        )
        command.add_argument(
            "--graphs",
            choices=GRAPH_KINDS,
            nargs="+",
            default=GRAPH_KINDS,
            help="graphs to write: for CPUs, for CUDA, with padding for a module that needs it, for other runtimes, or "
            "for attention weights (default: all)",
        )
    return parser


def _add_checkpoint(commands: "argparse._SubParsersAction[CommandParser]") -> None:
    checkpoint = commands.add_parser(
        "checkpoint",
        help="export a checkpoint folder of BERT, T5, Qwen3, ViT, Whisper or one of some thirty other families, or of "
        "another model of texts that transformers knows",
        description="Export a folder saved by transformers or sentence-transformers, with its head if it has one "
        "that classifies.",
    )
    checkpoint.set_defaults(export=_export_checkpoint, default_name=_name_of_checkpoint)
    checkpoint.add_argument(
        "folder",
        metavar="FOLDER",
        help="folder of the checkpoint, or, if there is no such folder, its name on a hub: OWNER/NAME[@REVISION]",
    )
    checkpoint.add_argument(
        "--pooling",
        choices=[each for each in (*Pooling, SPARSE) if each != Pooling.CONCATENATED],
        help=f"how a sequence becomes one vector; {SPARSE}: a sparse vector of a masked language model (default: as "
        "the checkpoint says, otherwise none for a model with a head, and for other models the pooling of their "
        "family)",
    )
    checkpoint.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale pooled vectors to unit length, or leave their length (default: as the checkpoint says)",
    )
    checkpoint.add_argument(
        "--question",
        metavar="TEXT",
        help="for a language model that reranks: the text of a pair, with {query} and {document} in it",
    )
    checkpoint.add_argument(
        "--words",
        nargs="+",
        metavar="WORD",
        help="with --question: the word whose logit scores a pair, or two words, the logit of the second subtracted",
    )
    checkpoint.add_argument(
        "--route", metavar="NAME", help="for a model with a Router: which of its routes to export, such as document"
    )
    checkpoint.add_argument(
        "--adapter",
        metavar="NAME",
        help="for jina-embeddings-v3: the adapter to merge into the weights, such as retrieval.query",
    )
    checkpoint.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="for a type without a family: most tokens of a sequence (default: as config.json says, at most 8,192)",
    )


def _add_onnx(commands: "argparse._SubParsersAction[CommandParser]") -> None:
    command = commands.add_parser(
        "onnx",
        help="export an ONNX file as optimum, sentence-transformers or PyTorch wrote it",
        description="Export an ONNX file, whose results the server gives. The tokenizer, the pooling, prompts, labels "
        "and limits are those of the files beside it, as for `checkpoint`.",
    )
    command.set_defaults(export=_export_onnx, default_name=_name_of_onnx)
    command.add_argument(
        "file", type=Path, metavar="MODEL.onnx", help="the file, or a folder that has it, perhaps in its folder onnx"
    )
    command.add_argument(
        "--pooling",
        choices=(*ROW_POOLINGS, Pooling.NONE),
        help="how hidden rows become one vector (default: as in the file, otherwise as the files beside it say)",
    )
    command.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale pooled vectors to unit length, or leave their length (default: as for --pooling)",
    )
    command.add_argument(
        "--outputs",
        nargs="+",
        type=_kind_and_name,
        default=(),
        metavar="KIND=NAME",
        help="the output to serve, for names of unknown meaning; KIND is hidden, pooled or logits",
    )
    command.add_argument("--labels", nargs="+", default=(), metavar="LABEL", help="names of the labels of logits")
    command.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of a sequence")
    command.add_argument("--vocabulary-size", type=int, metavar="N", help="number of token ids")
    command.add_argument(
        "--pytorch",
        metavar="CHECKPOINT",
        help="the checkpoint that the file was made of, a folder or a name on a hub: its results in PyTorch are "
        "compared with the file's",
    )


def _kind_and_name(text: str) -> tuple[str, str]:
    kind, separator, name = text.partition("=")
    if not (kind and separator and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not KIND=NAME: write, for example, hidden=last_hidden_state")
    return kind, name


def _name_of_onnx(options: argparse.Namespace) -> str:
    from headwaiter_export.checkpoints.onnx_paths import usual_name

    return usual_name(options.file)


def _add_module(commands: "argparse._SubParsersAction[CommandParser]") -> None:
    module = commands.add_parser(
        "module",
        help="export your own encoder from a configuration and weights, or a PyTorch module from its code",
        description="Export your own encoder. CONFIG.json holds an object with fields of EncoderConfig. "
        "WEIGHTS.safetensors holds tensors named as in Encoder.state_dict(). Or export a PyTorch module with its own "
        "code: FUNCTION, without arguments, returns it. docs/reference/encoder-config.md and "
        "docs/how-to/export-a-module.md explain both.",
    )
    module.set_defaults(export=_export_module, default_name=_name_of_module)
    module.add_argument("config", metavar="CONFIG.json or FILE.py:FUNCTION")
    module.add_argument("weights", type=Path, nargs="?", metavar="WEIGHTS.safetensors")
    own = module.add_argument_group("only with FILE.py:FUNCTION")
    own.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of a sequence")
    own.add_argument("--vocabulary-size", type=int, metavar="N", help="number of ids of a module of token ids")
    own.add_argument("--feature-width", type=int, metavar="N", help="width of a row of a module of features")
    own.add_argument(
        "--pooling",
        choices=(*ROW_POOLINGS, Pooling.NONE),
        help="how the rows of a sequence become one vector (default: mean)",
    )
    own.add_argument("--labels", nargs="+", metavar="LABEL", help="names of the labels of a module that gives logits")
    own.add_argument("--normalize", action="store_const", const=True, help="scale pooled vectors to unit length")
    module.add_argument(
        "--compare",
        type=Path,
        metavar="OUTPUTS.npz",
        help="inputs with the outputs of your own code, which the encoder must reproduce",
    )
    _add_tokenizer(module)


def _name_of_module(options: argparse.Namespace) -> str:
    """Return the name of the configuration, or of the function that makes the module."""
    path, _, function = options.config.rpartition(":")
    return function if path.endswith(".py") else Path(options.config).stem


def _add_preset(commands: "argparse._SubParsersAction[CommandParser]") -> None:
    first_lines = [f"  {name:20} {(make.__doc__ or '').partition(chr(10))[0]}" for name, make in PRESETS.items()]
    preset = commands.add_parser(
        "preset",
        help="export a named form of self-attention, with random weights or your own",
        description="Export a named form of self-attention:\n\n" + "\n".join(first_lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    preset.set_defaults(export=_export_preset, default_name=lambda options: options.preset)
    preset.add_argument("preset", choices=PRESETS, metavar="NAME")
    preset.add_argument(
        "--set",
        type=_field_and_value,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="replace a field of EncoderConfig, for example heads=8 or pooling=mean; can be repeated",
    )
    preset.add_argument(
        "--weights",
        type=Path,
        metavar="WEIGHTS.safetensors",
        help="weights with tensors named as for `module` (default: random weights)",
    )
    preset.add_argument("--seed", type=_seed, default=0, help="seed of random weights (default: 0)")
    _add_tokenizer(preset)


def _add_tokenizer(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--tokenizer", type=Path, metavar="TOKENIZER.json", help="tokenizer.json of the model, to accept texts"
    )


def _field_and_value(text: str) -> tuple[str, Any]:
    """Parse FIELD=VALUE, where VALUE is JSON or a bare word."""
    field, separator, value = text.partition("=")
    if not (field and separator):
        raise argparse.ArgumentTypeError(f"{text!r} is not FIELD=VALUE: write, for example, heads=8")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"seed {text!r} is not a whole number from 0 to {2**63 - 1}")
    return int(text)


def _print_error(message: str) -> int:
    print(f"headwaiter-export: {message}", file=sys.stderr)
    return 1
