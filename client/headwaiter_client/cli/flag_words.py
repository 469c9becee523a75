"""Name the flag to which an error belongs; the client and the server name arguments and fields."""

from headwaiter_client.errors import DeadlineExceeded, HeadwaiterError, InvalidInput, ModelNotFound, Unauthenticated

_BY_FIELD = {
    "texts.prompt": "--prompt",
    "prompt": "--prompt",
    "output.dimensions": "--dimensions",
    "layers": "--layer",
    "heads": "--head",
}
_BY_CLASS: dict[type[HeadwaiterError], str] = {DeadlineExceeded: "--timeout-s", Unauthenticated: "--token-file"}


def with_flag(error: Exception, model: str = "--model") -> str:
    """Return the message of an error, after the flag to which it belongs; `model` is the argument for a model."""
    message = str(error)
    if isinstance(error, InvalidInput | ModelNotFound):
        field = error.field or ""
        flag = model if field == "model" else _BY_FIELD.get(field)
        if flag and message.startswith((f"{field} ", f"{field}: ")):
            return flag + message.removeprefix(field)
    else:
        flag = next((flag for kind, flag in _BY_CLASS.items() if isinstance(error, kind)), None)
    return f"{flag}: {message}" if flag else message
