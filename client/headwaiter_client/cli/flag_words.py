"""Name the flag to which an error belongs; the client and the server name arguments and fields."""

from headwaiter_client.errors import DeadlineExceeded, InvalidInput, ModelNotFound, Unauthenticated

_BY_FIELD = {
    "texts.prompt": "--prompt",
    "prompt": "--prompt",
    "output.dimensions": "--dimensions",
    "layers": "--layer",
    "heads": "--head",
}
_BY_CLASS: dict[type[Exception], str] = {DeadlineExceeded: "--timeout-s", Unauthenticated: "--token-file"}


def with_flag(error: Exception, model: str = "--model") -> str:
    """Return the message of an error, after the flag to which it belongs; `model` is the argument for a model."""
    message = str(error)
    flag = _BY_CLASS.get(type(error))
    if isinstance(error, InvalidInput | ModelNotFound) and error.field:
        flag = model if error.field == "model" else _BY_FIELD.get(error.field)
        if flag and message.startswith((f"{error.field} ", f"{error.field}: ")):
            return flag + message.removeprefix(error.field)
    return f"{flag}: {message}" if flag else message
