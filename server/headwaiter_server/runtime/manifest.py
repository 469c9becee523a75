"""Check what a manifest says about itself; other modules compare it with the files of the bundle."""

from collections.abc import Iterator
from itertools import chain
from math import isfinite

from google.protobuf.message import Message

from headwaiter_proto.encoder_pb2 import POOLING_MAX, POOLING_NONE, Head, ImageFormat, Pooling, Prompt
from headwaiter_proto.manifest_pb2 import LOWERING_ATTEND, Graph, Lowering, Manifest, PairTemplate
from headwaiter_proto.rules.images import min_tokens, prefix_rows
from headwaiter_proto.rules.pooling import POOLINGS, POOLINGS_OF_GRAPHS
from headwaiter_proto.rules.target import takes_target
from headwaiter_proto.rules.tasks import weighs_tokens
from headwaiter_server.runtime.errors import BundleRefused

# The name appears in replies, metric labels and log lines.
MAX_NAME_CHARACTERS = 128
# Other texts, such as names of files and of layers, appear in log lines and error messages.
_MAX_TEXT_CHARACTERS = 256
# Far more than any model has.
_MAX_HEADS = 1 << 16
_MAX_UNWEIGHTED_IDS = 64
# Pillow's filters.
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")


def is_model_name(name: str) -> bool:
    """Return whether a model may have this name: 1 to 128 printable characters, not only spaces."""
    return bool(name.strip()) and name.isprintable() and len(name) <= MAX_NAME_CHARACTERS


def graphs_of(manifest: Manifest) -> list[Graph]:
    """Return the graphs of the bundle, with the graph behind Attend."""
    return [*manifest.graphs, *([manifest.attend] if manifest.HasField("attend") else [])]


def check_manifest(manifest: Manifest) -> None:
    """Check the fields of a manifest against each other.

    Raises:
        BundleRefused: the message begins with what is wrong in the manifest, and does not name its file.
    """
    for problem in chain(_wrong_values("", manifest), _contradictions(manifest)):
        raise BundleRefused(problem)


def _wrong_values(path: str, message: Message) -> Iterator[str]:
    """Yield what is wrong with single texts, numbers and enum values, in a message and in its parts."""
    for field, value in message.ListFields():
        name = f"{path}{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            values = [*value.keys(), *value.values()]
        else:
            values = [value] if isinstance(value, Message | str | int | float) else list(value)
        for each in values:
            if isinstance(each, Message):
                yield from _wrong_values(f"{name}.", each)
            elif isinstance(each, str):
                # The texts of prompts and templates and the names of labels are data, and appear in no log line.
                free = isinstance(message, Head | PairTemplate | Prompt)
                if not free and not (each.isprintable() and len(each) <= _MAX_TEXT_CHARACTERS):
                    yield (
                        f"has in {name} {each[:40]!r} of {len(each):,} characters, and at most {_MAX_TEXT_CHARACTERS} "
                        "printable characters are allowed"
                    )
            elif isinstance(each, float) and not isfinite(each):
                yield f"has {name} {each}, which is no finite number"
            elif field.enum_type is not None and each not in field.enum_type.values_by_number:
                yield f"has {name} {each}, which this server does not know"


def _contradictions(manifest: Manifest) -> Iterator[str]:
    name, tokens, text_tokens = manifest.name, manifest.max_tokens, manifest.max_text_tokens
    if not is_model_name(name):
        yield (
            f"has name {name[:40]!r} of {len(name):,} characters, and 1 to {MAX_NAME_CHARACTERS} printable characters "
            "are allowed"
        )
    ids, features = manifest.vocabulary_size, manifest.feature_width
    if bool(ids) == bool(features):
        yield f"has vocabulary_size {ids} and feature_width {features}, and exactly one of them must be above 0"
    if not ids and (text_tokens or manifest.token_types):
        yield f"has max_text_tokens {text_tokens} and token_types {manifest.token_types} without vocabulary_size"
    if not features and (prefix_rows(manifest) or manifest.HasField("image") or manifest.HasField("sound")):
        yield "has class_row, prefix_rows, image or sound without feature_width"
    for field in ("max_tokens", "width", "layers", "heads"):
        if not getattr(manifest, field):
            yield f"has {field} 0"
    if manifest.heads > _MAX_HEADS:
        yield f"has heads {manifest.heads:,}, and at most {_MAX_HEADS:,} are allowed"
    if text_tokens > tokens:
        yield f"has max_text_tokens {text_tokens:,} above max_tokens {tokens:,}"
    if min_tokens(manifest) > tokens:
        yield f"has min_tokens {manifest.min_tokens:,} above max_tokens {tokens:,}"
    if prefix_rows(manifest) > tokens:
        yield f"has prefix_rows {manifest.prefix_rows:,} above max_tokens {tokens:,}"
    if manifest.pooling not in (*POOLINGS, *POOLINGS_OF_GRAPHS, POOLING_NONE):
        yield "has no pooling"
    if manifest.pooling in POOLINGS_OF_GRAPHS and not manifest.fixed_pooling:
        yield f"has {Pooling.Name(manifest.pooling)} without fixed_pooling"
    if manifest.pooling == POOLING_NONE and (manifest.fixed_pooling or manifest.normalized):
        yield "has fixed_pooling or normalized, and pooling NONE"
    if manifest.sparse and not (
        manifest.pooling == POOLING_MAX
        and manifest.fixed_pooling
        and manifest.width == ids
        and not manifest.pooling_skips_prompt
    ):
        yield "has sparse without vectors of vocabulary_size numbers from the fixed pooling MAX"
    if manifest.takes_pairs and not text_tokens:
        yield "has takes_pairs without max_text_tokens"
    if manifest.fixed_length and text_tokens:
        yield "has fixed_length with max_text_tokens, and texts have other lengths"
    # Only models with a head were trained on pairs; most tokenizers have a template for pairs.
    if manifest.takes_pairs and not manifest.HasField("head"):
        yield "has takes_pairs without a head"
    yield from _wrong_template(manifest)
    if manifest.HasField("head") and not (manifest.head.labels and manifest.head.function):
        yield "has a head without labels or function"
    if weighs_tokens(manifest) and (len(manifest.head.labels) != 1 or not ids):
        yield f"has a head that weighs tokens with {len(manifest.head.labels)} labels and vocabulary_size {ids}"
    unweighted, most = manifest.unweighted_ids, _MAX_UNWEIGHTED_IDS if weighs_tokens(manifest) else 0
    if len(unweighted) > most or max(unweighted, default=0) >= max(1, ids):
        yield f"has {len(unweighted)} unweighted_ids: at most {most} ids below vocabulary_size {ids} are allowed"
    if manifest.pooling_skips_prompt and manifest.fixed_pooling:
        yield "has pooling_skips_prompt, and fixed_pooling, whose vectors only the graphs compute"
    yield from _wrong_prompts(manifest)
    yield from _wrong_image(manifest)
    if manifest.HasField("sound") and not (manifest.sound.sampling_rate_hz and manifest.sound.hop):
        yield "has sound without sampling_rate_hz or hop"
    yield from _wrong_target(manifest)
    yield from _wrong_graphs(manifest)


def _wrong_target(manifest: Manifest) -> Iterator[str]:
    if not takes_target(manifest):
        return
    others = manifest.max_text_tokens, manifest.token_types, manifest.fixed_length, prefix_rows(manifest)
    if any(others) or manifest.HasField("head") or manifest.HasField("image") or manifest.HasField("sound"):
        yield "has target with texts, token_types, fixed_length, prefix_rows, a head, image or sound"
    if manifest.pooling != POOLING_NONE or min_tokens(manifest) < 2:
        yield f"has target with min_tokens {manifest.min_tokens}, or with a pooling"
    if manifest.target.start_id >= max(1, manifest.vocabulary_size):
        yield f"has target.start_id {manifest.target.start_id}, vocabulary_size {manifest.vocabulary_size}"
    if manifest.feature_width == 1:
        yield "has target with feature_width 1, which leaves no value for a row"


def _wrong_template(manifest: Manifest) -> Iterator[str]:
    if not manifest.HasField("pair_template"):
        return
    if not manifest.takes_pairs:
        yield "has pair_template without takes_pairs"
    template = manifest.pair_template
    characters, most = len(template.before + template.between + template.after), 16 * manifest.max_text_tokens
    if characters > most:
        yield f"has pair_template of {characters:,} characters, and at most 16 × max_text_tokens, {most:,}, are allowed"


def _wrong_prompts(manifest: Manifest) -> Iterator[str]:
    names = [prompt.name for prompt in manifest.prompts]
    if len(set(names)) < len(names) or not all(names):
        yield "has prompts without a name, or two of the same name"
    if names and not manifest.max_text_tokens:
        yield "has prompts without max_text_tokens"
    if manifest.default_prompt and manifest.default_prompt not in names:
        yield f"has default_prompt {manifest.default_prompt!r}, which is not among its prompts"
    for prompt in manifest.prompts:
        if prompt.tokens > manifest.max_text_tokens:
            yield f"has a prompt of {prompt.tokens:,} tokens, and max_text_tokens {manifest.max_text_tokens:,}"
        most = prompt.max_tokens or manifest.max_text_tokens
        if not prompt.expanded_tokens <= most <= manifest.max_text_tokens:
            yield (
                f"has a prompt with expanded_tokens {prompt.expanded_tokens:,} and max_tokens {most:,}, and "
                f"max_text_tokens {manifest.max_text_tokens:,}"
            )
        if prompt.expansion_id >= max(1, manifest.vocabulary_size):
            yield f"has a prompt with expansion_id {prompt.expansion_id} and vocabulary_size {manifest.vocabulary_size}"


def _wrong_image(manifest: Manifest) -> Iterator[str]:
    if not manifest.HasField("image"):
        return
    image, zeros = manifest.image, prefix_rows(manifest)
    side, steps = image.patch_size, image.preparation
    if not side or image.channels * side**2 != manifest.feature_width:
        yield (
            f"has image.channels {image.channels} and image.patch_size {side}, and feature_width "
            f"{manifest.feature_width}"
        )
        return
    rows = (image.height // side) * (image.width // side) + zeros
    if rows > manifest.max_tokens or (manifest.fixed_length and rows < manifest.max_tokens):
        yield f"has image.height {image.height} and image.width {image.width}, and max_tokens {manifest.max_tokens}"
    if image.HasField("preparation") and (
        {len(steps.image_mean), len(steps.image_std)} != {image.channels} or not all(steps.image_std)
    ):
        yield f"has no image.preparation of {image.channels} channels"
    if image.HasField("preparation"):
        yield from _wrong_preparation(image)


def _wrong_preparation(image: ImageFormat) -> Iterator[str]:
    """Yield what is wrong in the steps that make an image have its height and width."""
    steps = image.preparation
    resized, cropped = (steps.resize_height, steps.resize_width), (steps.crop_height, steps.crop_width)
    ways = (steps.resize_shortest_edge > 0) + all(resized)
    if any(resized) != all(resized) or ways > 1 or (ways and steps.resample not in _FILTERS):
        yield f"has two ways to resize in image.preparation, or none, or the filter {steps.resample!r}"
    if (cropped if any(cropped) else resized) != (image.height, image.width):
        yield f"has image.height {image.height} and image.width {image.width}, which image.preparation does not make"


def _wrong_graphs(manifest: Manifest) -> Iterator[str]:
    graphs = graphs_of(manifest)
    listed = [file.name for file in manifest.files]
    for kind, names in (("files", listed), ("graphs", [graph.file for graph in graphs])):
        if len(set(names)) < len(names):
            yield f"names a file twice in {kind}"
    forms = [(graph.lowering, graph.precision) for graph in manifest.graphs]
    if len(set(forms)) < len(forms):
        yield "has two graphs of the same lowering and precision"
    if shared := {graph.file for graph in graphs} & {graph.weights_file for graph in graphs}:
        yield f"names {min(shared)!r} as a graph and as its weights"
    for graph in graphs:
        if not graph.lowering or not graph.precision or not graph.weights_file or not graph.file:
            yield f"has a graph {graph.file!r} without lowering, precision, file or weights_file"
        if (graph.lowering == LOWERING_ATTEND) != (graph is graphs[-1] and manifest.HasField("attend")):
            yield f"has the lowering {Lowering.Name(graph.lowering)} for the graph {graph.file!r}"
