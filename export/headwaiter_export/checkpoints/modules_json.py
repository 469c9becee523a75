"""Read the modules of a `sentence-transformers` model: modules.json, and the folder of each module."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from headwaiter_export.checkpoints.activations import DENSE_ACTIVATIONS
from headwaiter_export.checkpoints.adapters import adapter_names
from headwaiter_export.checkpoints.json_files import CheckpointError, CheckpointJson, path_inside, read_json
from headwaiter_export.checkpoints.texts import transformer_settings
from headwaiter_export.checkpoints.weights import read_tensors, take_tensor
from headwaiter_export.config.after_pooling import DenseActivation, ModuleKind, PooledModule
from headwaiter_export.config.choices import Pooling

# Names of poolings in new versions of `sentence-transformers`, in the order in which it concatenates those of flags.
_POOLINGS = {
    "cls": Pooling.CLS,
    "max": Pooling.MAX,
    "mean": Pooling.MEAN,
    "mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "weightedmean": Pooling.WEIGHTED_MEAN,
    "lasttoken": Pooling.LAST,
}
# Old versions have a flag for each pooling, with this prefix and, for some poolings, another name.
_FLAG_PREFIX = "pooling_mode_"
_FLAG_NAMES = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "weightedmean_tokens": "weightedmean"}
_POOLING_FIELDS = ("pooling_mode", "include_prompt", "embedding_dimension", "word_embedding_dimension")
# Settings that PyLate saves, and that MultiVectorEncoder saves in other files.
_OWN_FIELDS_OF_COLBERT = {
    *("query_prefix", "document_prefix", "query_length", "document_length", "query_expansion", "do_query_expansion"),
    *("attend_to_expansion_tokens", "attend_to_mask_tokens", "skiplist_words"),
}
# What to do with a model of several vectors that other code than sentence-transformers saved.
CONVERT_COLBERT = (
    "load the model with MultiVectorEncoder of sentence-transformers 6.2, save it, and export the saved folder"
)
# Gives texts of different tasks, such as queries and documents, to different modules.
_ROUTER, _ROUTES_FILE = "Router", "router_config.json"
# The transformer of the code of jina-embeddings-v3, which differs from that of sentence-transformers in its adapters.
_ADAPTED_TRANSFORMER = "custom_st.Transformer"
# A module that changes vectors only in training.
_DROPOUT = "Dropout"
_DENSE_FIELDS = ("in_features", "out_features", "bias", "activation_function")
# The supported values of fields of `sentence-transformers` that could change results.
_NAME_FIELDS = ("module_input_name", "module_output_name")
_VECTOR, _ROWS = "sentence_embedding", "token_embeddings"
_MODEL_TYPE = {"SentenceTransformer": True}
_SPARSE_MODEL_TYPE = {"SparseEncoder": True}
_MULTI_VECTOR_MODEL_TYPE = {"MultiVectorEncoder": True}
_SPLADE_FIELDS = ("pooling_strategy", "activation_function", "embedding_dimension", "word_embedding_dimension")
_CROSS_ENCODER_FIELDS = {"model_type": "CrossEncoder", "prompts": None, "default_prompt_name": None}
_LOGIT_SCORE_FIELDS = {"module_input_name": "causal_logits"}


@dataclass(frozen=True)
class ModuleFolder:
    """A module after pooling, or one that transforms each hidden row.

    Attributes:
        folder: folder of the module.
        module: what the module computes.
        width_field: the field of `config_json` that has the width of the module's input; empty without such a field.
        config_json: settings of the module.
    """

    folder: Path
    module: PooledModule
    width_field: str
    config_json: CheckpointJson


@dataclass(frozen=True)
class Modules:
    """The modules of a `sentence-transformers` model; the defaults are those of a plain `transformers` folder.

    Attributes:
        transformer: folder of the transformer.
        pooling: pooling of the model; None if the folder names no pooling.
        concatenated: the poolings of the pooling "concatenated", in order; empty for other poolings.
        pools_prompt: whether pooling includes the rows of prompts.
        after_pooling: the modules after pooling, without Normalize at the end.
        row_modules: the modules that transform each hidden row.
        normalize: whether pooled vectors are scaled to unit length in the end.
        truncated_width: how many values of these vectors the model keeps, after they were scaled; None for all values.
        prompts: content of config_sentence_transformers.json; None in a plain folder and for a cross-encoder.
        cross_encoder: content of the same file for a cross-encoder; otherwise without fields.
        pools_itself: whether the transformer has encoders of images and of texts, which give pooled vectors.
        logit_score: settings of LogitScore, which scores pairs by the logits of a language model; None without it.
        splade: settings of SpladePooling, which makes sparse vectors; None without it.
        mask: settings of MultiVectorMask, with which each hidden row is a vector; None without it.
    """

    transformer: Path
    pooling: Pooling | None = None
    concatenated: tuple[Pooling, ...] = ()
    pools_prompt: bool = True
    after_pooling: tuple[ModuleFolder, ...] = ()
    row_modules: tuple[ModuleFolder, ...] = ()
    normalize: bool = False
    truncated_width: int | None = None
    prompts: CheckpointJson | None = None
    cross_encoder: CheckpointJson = field(default_factory=lambda: CheckpointJson(Path(), {}))
    pools_itself: bool = False
    logit_score: CheckpointJson | None = None
    splade: CheckpointJson | None = None
    mask: CheckpointJson | None = None


def read_modules(folder: Path, route: str | None = None) -> Modules:
    """Read the modules of a `sentence-transformers` folder; `route` chooses one of several routes of a Router.

    Raises:
        CheckpointError: a file is missing or malformed, or a module or a setting is not supported.
    """
    kinds, paths, source = _listed_modules(folder, route)
    settings = CheckpointJson.read_if_present(folder / "config_sentence_transformers.json")
    if kinds == ["Transformer"] and settings.values.get("model_type") == "CrossEncoder":
        settings.require(_CROSS_ENCODER_FIELDS)
        return Modules(paths[0], cross_encoder=settings)
    if kinds == ["Transformer", "LogitScore"] and settings.values.get("model_type") == "CrossEncoder":
        logit_score = CheckpointJson.read(paths[1] / "config.json")
        logit_score.require(_LOGIT_SCORE_FIELDS, known=("true_token_id", "false_token_id"))
        return Modules(paths[0], cross_encoder=settings, logit_score=logit_score)
    if kinds[:1] in (["Transformer"], ["MLMTransformer"]) and kinds[1:] == ["SpladePooling"]:
        _check_model_type(settings, _SPARSE_MODEL_TYPE)
        if settings.values.get("max_active_dims") is not None:
            raise settings.error(
                "max_active_dims",
                "the export cannot leave out the smaller numbers of a vector: remove the field, and keep the largest "
                "numbers in the program that gets the vectors",
            )
        splade = CheckpointJson.read(paths[1] / "config.json")
        splade.require({}, known=_SPLADE_FIELDS)
        if kinds[0] == "Transformer":
            # Without the field, sentence-transformers would leave the head of the language model out.
            transformer_settings(paths[0]).choice("transformer_task", {"fill-mask": True})
        return Modules(paths[0], prompts=settings, splade=splade)
    if kinds[:1] == ["Transformer"] and kinds.count("MultiVectorMask") == 1:
        settings.choice("model_type", _MULTI_VECTOR_MODEL_TYPE)
        for name in _OWN_FIELDS_OF_COLBERT & settings.values.keys():
            raise settings.error(name, CONVERT_COLBERT)
        rows, mask = list[ModuleFolder](), settings
        for kind, path in zip(kinds[1:], paths[1:], strict=True):
            if kind == "MultiVectorMask":
                mask = CheckpointJson.read(path / "config.json")
            elif kind in ("Dense", "Normalize"):
                rows.append(_READERS[kind](path, _ROWS))
            elif kind != _DROPOUT:
                raise CheckpointError(f"{source} lists {kind} beside MultiVectorMask: the export cannot apply it")
        return Modules(paths[0], row_modules=tuple(rows), prompts=settings, mask=mask)
    if set(kinds[1:]) <= {"Normalize", _DROPOUT} and _pools_itself(kinds[0], paths[0]):
        _check_model_type(settings, _MODEL_TYPE)
        settings.require({"truncate_dim": None})
        return Modules(paths[0], normalize="Normalize" in kinds, prompts=settings, pools_itself=True)
    if kinds[:1] in (["StaticEmbedding"], ["SparseStaticEmbedding"]):
        raise CheckpointError(
            f"{source} lists {kinds[0]}, a table without attention: look its numbers up in the "
            "program that needs them, because a call to a server takes longer than that"
        )
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= {*_READERS, _DROPOUT}:
        raise CheckpointError(
            f"{source} lists {', '.join(kinds)}: it must be Transformer, Pooling, and then any of "
            f"{', '.join((*_READERS, _DROPOUT))}; or Transformer and SpladePooling for sparse vectors; or Transformer "
            "and LogitScore for a reranker; or Transformer, MultiVectorMask, and any of Dense and Normalize; or "
            "CLIPModel"
        )
    transformer, pooling, *others = paths
    config_json = CheckpointJson.read(pooling / "config.json")
    after_pooling = [_READERS[kind](path) for kind, path in zip(kinds[2:], others, strict=True) if kind != _DROPOUT]
    normalize = False
    while after_pooling and after_pooling[-1].module.kind is ModuleKind.NORMALIZE:
        after_pooling.pop()
        normalize = True
    _check_model_type(settings, _MODEL_TYPE)
    poolings = _read_poolings(config_json)
    return Modules(
        transformer,
        Pooling.CONCATENATED if len(poolings) > 1 else poolings[0],
        concatenated=poolings if len(poolings) > 1 else (),
        pools_prompt=config_json.flag("include_prompt", default=True),
        after_pooling=tuple(after_pooling),
        normalize=normalize,
        truncated_width=settings.size("truncate_dim") if settings.values.get("truncate_dim") is not None else None,
        prompts=settings,
    )


def _check_model_type(settings: CheckpointJson, supported: Mapping[str, bool]) -> None:
    """Check the type of a model, whose modules sentence-transformers replaces if the type is another one, or null."""
    if "model_type" in settings.values:
        settings.choice("model_type", supported)


def _pools_itself(kind: str, folder: Path) -> bool:
    """Return whether a module is a transformer that gives pooled vectors, such as CLIP."""
    if kind != "Transformer":
        return kind == "CLIPModel"
    return transformer_settings(folder).values.get("module_output_name") == _VECTOR


def _listed_modules(folder: Path, route: str | None) -> tuple[list[str], list[Path], str]:
    """Return the classes and the folders of the modules, and what lists them; a route's in place of a Router."""
    modules_json = folder / "modules.json"
    modules = read_json(modules_json)
    if not isinstance(modules, list) or not all(_is_module(module) for module in modules):
        raise CheckpointError(f"{modules_json} is not a list of modules with type and path: save the model again")
    paths = [path_inside(folder, module["path"], modules_json) for module in modules]
    types = [module["type"] for module in modules]
    if types[:1] == [_ADAPTED_TRANSFORMER] and adapter_names(CheckpointJson.read(paths[0] / "config.json")):
        types[0] = "sentence_transformers.Transformer"
    kinds = [_class_name(each, modules_json) for each in types]
    if kinds[:1] == [_ROUTER]:
        routed_kinds, routed_paths = _routed_modules(paths[0], route)
        source = f"the route {route!r} of {paths[0] / _ROUTES_FILE}, with the modules after it,"
        return routed_kinds + kinds[1:], routed_paths + paths[1:], source
    if route is not None:
        raise CheckpointError(f"{modules_json} does not begin with a {_ROUTER}: leave the route out")
    return kinds, paths, str(modules_json)


def _routed_modules(folder: Path, route: str | None) -> tuple[list[str], list[Path]]:
    """Return the classes and the folders of the modules of one route of a Router."""
    settings = CheckpointJson.read(folder / _ROUTES_FILE)
    settings.require({}, known=("types", "structure", "parameters"))
    types, routes = settings.string_map("types"), settings.values.get("structure")
    if not isinstance(routes, dict) or not routes or not all(_is_route(names, types) for names in routes.values()):
        raise CheckpointError(f"{settings.path} must list names of types for each route in structure: save it again")
    if route not in routes:
        given = "" if route is None else f", and {route!r} is none of them"
        raise CheckpointError(f"{settings.path} has the routes {', '.join(routes)}{given}: choose one with --route")
    names = routes[route]
    return (
        [_class_name(types[name], settings.path) for name in names],
        [path_inside(folder, name, settings.path) for name in names],
    )


def _class_name(module_type: str, source: Path) -> str:
    """Return the name of the class of a module, given its full name, which the file `source` has."""
    if module_type.startswith("pylate."):
        raise CheckpointError(f"{source} has the type {module_type!r}: {CONVERT_COLBERT}")
    if not module_type.startswith("sentence_transformers."):
        raise CheckpointError(f"{source} has the type {module_type!r}: the export does not run its code")
    return module_type.rpartition(".")[2]


def check_are_usual(modules: Modules, model: str) -> None:
    """Check that a model without a family has a pooling and modules after it alone; `model` is what errors call it.

    Raises:
        CheckpointError: the model has other modules, or shortens its vectors.
    """
    others = {
        "SpladePooling": modules.splade,
        "MultiVectorMask": modules.mask,
        "LogitScore": modules.logit_score,
        "encoders of images and texts": modules.pools_itself,
        "truncate_dim": modules.truncated_width,
    }
    if found := [name for name, value in others.items() if value]:
        raise CheckpointError(
            f"{model} has {found[0]}, and without a family of its own it may have a pooling, and Dense, LayerNorm and "
            f"Normalize after it: remove {found[0]}"
        )


def check_widths(modules: Iterable[ModuleFolder], width: int) -> None:
    """Check that each module takes vectors of the width that the one before it gives; the first gets `width`.

    Raises:
        CheckpointError: a module takes another width.
    """
    for each in modules:
        if each.width_field and each.config_json.size(each.width_field) != width:
            raise each.config_json.error(each.width_field, f"it must be {width}, the width of the vectors before it")
        width = each.module.width or width


def read_weights(modules: Modules, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the weights of the modules; `shapes` and the result are named as in `Encoder.state_dict()`.

    Raises:
        CheckpointError: a tensor is missing, unknown or of the wrong shape.
    """
    weights: dict[str, Tensor] = {}
    for name, listed in (("after_pooling", modules.after_pooling), ("row_modules", modules.row_modules)):
        for index, each in enumerate(listed):
            weights |= _weights_of(each, f"{name}.{index}.", shapes)
    return weights


def _weights_of(module: ModuleFolder, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Read the weights of a module, whose names in `shapes` begin with `prefix`."""
    needed = [name for name in shapes if name.startswith(prefix)]
    if not needed:
        return {}
    # With the name of the folder, for errors.
    tensors = {f"{module.folder.name}/{name}": tensor for name, tensor in read_tensors(module.folder).items()}
    weights = {
        name: take_tensor(tensors, f"{module.folder.name}/{name.removeprefix(prefix)}", shapes[name]) for name in needed
    }
    for unknown in tensors:
        raise CheckpointError(
            f"the checkpoint has tensor {unknown}, which {module.config_json.path} does not describe: correct the "
            "file, or remove the tensor"
        )
    return weights


def _read_dense(folder: Path, transformed: str = _VECTOR) -> ModuleFolder:
    config_json = CheckpointJson.read(folder / "config.json")
    # MultiVectorEncoder gives a Dense module without these fields the rows.
    _check_names(config_json, transformed, default=transformed)
    config_json.require({"use_residual": False}, known=(*_DENSE_FIELDS, *_NAME_FIELDS))
    activation = DenseActivation.TANH
    if "activation_function" in config_json.values:
        activation = config_json.choice("activation_function", DENSE_ACTIVATIONS)
    module = PooledModule(
        kind=ModuleKind.DENSE,
        width=config_json.size("out_features"),
        bias=config_json.flag("bias", default=True),
        activation=activation,
    )
    return ModuleFolder(folder, module, "in_features", config_json)


def _read_layer_norm(folder: Path) -> ModuleFolder:
    config_json = CheckpointJson.read(folder / "config.json")
    config_json.require({}, known=("dimension",))
    return ModuleFolder(folder, PooledModule(kind=ModuleKind.LAYER_NORM), "dimension", config_json)


def _read_normalize(folder: Path, transformed: str = _VECTOR) -> ModuleFolder:
    config_json = CheckpointJson.read_if_present(folder / "config.json")
    _check_names(config_json, transformed, default=_VECTOR)
    config_json.require({}, known=_NAME_FIELDS)
    return ModuleFolder(folder, PooledModule(kind=ModuleKind.NORMALIZE), "", config_json)


def _check_names(config_json: CheckpointJson, transformed: str, *, default: str) -> None:
    """Check that a module transforms what it should; without a name of its own, the output is the input.

    Null is such a missing name only for the output.
    """
    read, written = _NAME_FIELDS
    names = {read: config_json.values.get(read, default), written: config_json.values.get(written)}
    for key, name in names.items():
        if name != transformed and (key == read or name is not None):
            raise CheckpointError(f"{config_json.path} has {key} {name!r}: it must be {transformed!r}")


_READERS: Mapping[str, Callable[..., ModuleFolder]] = {
    "Dense": _read_dense,
    "LayerNorm": _read_layer_norm,
    "Normalize": _read_normalize,
}


def _is_module(module: object) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(name), str) for name in ("type", "path"))


def _is_route(names: object, types: Mapping[str, str]) -> bool:
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) and name in types for name in names)


def _read_poolings(config_json: CheckpointJson) -> tuple[Pooling, ...]:
    """Return the poolings whose vectors follow one another, in order; mostly there is one."""
    values = config_json.values
    flags = [name for name in values if name.startswith(_FLAG_PREFIX)]
    config_json.require({}, known=[*flags, *_POOLING_FIELDS])
    set_flags = [flag.removeprefix(_FLAG_PREFIX) for flag in flags if values[flag]]
    modes = [_FLAG_NAMES.get(name, name) for name in set_flags]
    for mode in modes:
        if mode not in _POOLINGS:
            raise CheckpointError(f"{config_json.path} has pooling {mode}: it must be one of {', '.join(_POOLINGS)}")
    if not modes or "pooling_mode" in values:
        listed = config_json.listed("pooling_mode", _POOLINGS)
        if modes and {_POOLINGS[mode] for mode in modes} != set(listed):
            raise config_json.error("pooling_mode", f"the flags name {' and '.join(modes)}; remove the wrong ones")
        return listed
    return tuple(_POOLINGS[mode] for mode in sorted(modes, key=list(_POOLINGS).index))
