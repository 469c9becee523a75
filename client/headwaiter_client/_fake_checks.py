"""What a FakeEncoder refuses of a request's options, as servers do."""

from collections.abc import Sequence

from headwaiter_client.errors import InvalidInput
from headwaiter_proto import encoder_pb2 as pb

_MOST_ID_CHARACTERS = 256


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
