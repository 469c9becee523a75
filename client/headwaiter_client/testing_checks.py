"""What a FakeEncoder refuses of a request's options, as servers do."""

import math
from collections.abc import Sequence

from headwaiter_client.errors import InvalidInput, SequenceTooLong
from headwaiter_proto import encoder_pb2 as pb

_MOST_ID_CHARACTERS = 256
_WEIGHT_BYTES = 4


def check_id(request_id: str) -> None:
    """Refuses an id that would spoil a log.

    Raises:
        InvalidInput: it is too long, or has line ends and the like.
    """
    if len(request_id) > _MOST_ID_CHARACTERS or not request_id.isprintable():
        raise InvalidInput(f"request_id: at most {_MOST_ID_CHARACTERS} printable characters", field="request_id")


def check_options(request: pb.EncodeRequest, width: int) -> None:
    """Refuses what does not go with the input, or with vectors of so many dimensions.

    Raises:
        InvalidInput: naming the field.
    """
    if request.output.dimensions > width:
        raise InvalidInput(
            f"output.dimensions is {request.output.dimensions}, and the model's vectors have {width}",
            field="output.dimensions",
            limit=width,
            actual=request.output.dimensions,
        )
    for_texts = {
        "truncation": request.truncation in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT),
        "output.offsets": request.output.offsets,
    }
    for field, wanted in for_texts.items():
        if wanted and not request.HasField("texts"):
            raise InvalidInput(f"{field}: that is for texts; leave the field out", field=field)


def checked_prompt(name: str, prompts: Sequence[pb.Prompt]) -> str:
    """Returns the text of a prompt, which is empty where none is asked for.

    Raises:
        InvalidInput: there is no such prompt.
    """
    texts = {"": "", **{prompt.name: prompt.text for prompt in prompts}}
    if name not in texts:
        offered = ", ".join(repr(prompt.name) for prompt in prompts)
        raise InvalidInput(f"texts.prompt: the model has no prompt {name!r}; it has {offered}", field="texts.prompt")
    return texts[name]


def check_width(features: pb.FeatureSequences, width: int) -> None:
    """Refuses feature vectors that are not so wide.

    Raises:
        InvalidInput: with the width that would be right.
    """
    if features.lengths and features.width != width:
        raise InvalidInput(
            f"features.width is {features.width}, and the model takes features of width {width}",
            field="features.width",
            limit=width,
            actual=features.width,
        )


def check_amounts(sequences: int, text_bytes: int, tokens: int, limits: pb.RequestLimits) -> None:
    """Refuses a request of no sequences, or of too much.

    Raises:
        InvalidInput: with the limit.
    """
    if not sequences:
        raise InvalidInput("the request has no sequences: send at least one")
    for what, field, actual, limit in (
        ("sequences", None, sequences, limits.max_sequences),
        ("bytes of text", "texts", text_bytes, limits.max_text_bytes),
        ("tokens", None, tokens, limits.max_tokens),
    ):
        if actual > limit:
            raise InvalidInput(
                f"the request has {actual} {what}, and the server takes {limit} at most: split it",
                field=field,
                limit=limit,
                actual=actual,
            )


def check_sequence(index: int, keys: Sequence[object], kind: str | None, model: pb.GetModelResponse) -> None:
    """Refuses a sequence, in a request's field `kind`, that the model does not take as it is.

    Raises:
        InvalidInput: naming the sequence.
    """
    field = "texts" if kind == "texts" else f"{kind}.lengths"
    if not keys:
        raise InvalidInput(f"sequence {index} is empty: a sequence has at least one token", sequence=index, field=field)
    if len(keys) > model.max_tokens:
        raise SequenceTooLong(
            f"sequence {index} has {len(keys)} tokens, and the model takes at most {model.max_tokens}",
            sequence=index,
            field=field,
            limit=model.max_tokens,
            actual=len(keys),
        )
    largest = model.vocabulary_size - 1
    for position, one in enumerate(keys):
        if isinstance(one, tuple) and not all(map(math.isfinite, one)):
            raise InvalidInput(
                f"features: sequence {index} has a NaN or an infinity at position {position}: features must be finite",
                sequence=index,
                field="features.data",
            )
        if isinstance(one, int) and not 0 <= one <= largest:
            raise InvalidInput(
                f"sequence {index} has id {one}, and ids are 0 to {largest}",
                sequence=index,
                field="tokens.data",
                limit=largest,
                actual=one,
            )


def check_weights(layers: int, heads: int, tokens: int, limit_bytes: int) -> None:
    """Refuses to show more attention than the limit, of so many heads a layer.

    Raises:
        InvalidInput: with the limit.
    """
    size_bytes = _WEIGHT_BYTES * layers * heads * tokens**2
    if size_bytes > limit_bytes:
        raise InvalidInput(
            f"layers: the weights of {layers} layers, {heads} heads and {tokens} × {tokens} tokens take {size_bytes} "
            f"bytes, and the server computes {limit_bytes} at most",
            field="layers",
            limit=limit_bytes,
            actual=size_bytes,
        )


def chosen(field: str, asked: Sequence[int], count: int) -> Sequence[int]:
    """Returns which layers or heads to show, of so many.

    Raises:
        InvalidInput: there is no such one, or one is named twice.
    """
    for index in asked:
        check_index(f"{field} has", index, f"the model's {field}", count)
    if len(set(asked)) < len(asked):
        raise InvalidInput(f"{field} names one of them twice: name each once", field=field)
    return list(asked) or range(count)


def check_index(what: str, index: int, among: str, count: int) -> None:
    """Refuses an index beyond a count.

    Raises:
        InvalidInput: with the largest there is.
    """
    if index >= count:
        field = what.partition(" ")[0]
        raise InvalidInput(
            f"{what} {index}, and {among} are 0 to {count - 1}", field=field, limit=count - 1, actual=index
        )
