"""The limits of one request, and the checks of a request against these limits."""

from dataclasses import dataclass

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput

# Larger texts are refused without tokenisation; a token of ordinary text has about 4 bytes.
_TEXT_BYTES_PER_TOKEN = 16


@dataclass(frozen=True)
class RequestLimits:
    """The limits of one request.

    Attributes:
        sequences: maximum number of sequences.
        tokens: maximum number of tokens of all sequences.
        message_bytes: maximum size of the request message.
        attend_bytes: maximum size of the attention weights that one Attend request computes.
    """

    sequences: int
    tokens: int
    message_bytes: int
    attend_bytes: int

    @property
    def text_bytes(self) -> int:
        """The maximum size of all texts together, in bytes: 16 for each token, but at most a whole message."""
        return min(self.tokens * _TEXT_BYTES_PER_TOKEN, self.message_bytes)

    def message(self) -> pb.RequestLimits:
        """Return the limits as GetModel reports them."""
        return pb.RequestLimits(
            max_sequences=self.sequences,
            max_tokens=self.tokens,
            max_message_bytes=self.message_bytes,
            max_attend_bytes=self.attend_bytes,
            max_text_bytes=self.text_bytes,
        )


def check_count(sequences: int, limits: RequestLimits) -> None:
    """Check the number of sequences of a request.

    Raises:
        InvalidInput: the request has no sequences, or too many.
    """
    if sequences == 0:
        raise InvalidInput("the request has no sequences: send at least one")
    if sequences > limits.sequences:
        raise InvalidInput(
            f"the request has {sequences} sequences; the server accepts at most {limits.sequences}: split the request",
            limit=limits.sequences,
            actual=sequences,
        )


def check_tokens(tokens: int, limits: RequestLimits) -> None:
    """Check the number of tokens of a request.

    Raises:
        InvalidInput: the request has too many tokens.
    """
    if tokens > limits.tokens:
        raise InvalidInput(
            f"the request has {tokens} tokens; the server accepts at most {limits.tokens}: split the request",
            limit=limits.tokens,
            actual=tokens,
        )


def more_tokens(limit: int) -> InvalidInput:
    """Return the error of a request with more tokens than the server accepts, and than the server has counted."""
    return InvalidInput(
        f"the request has more than {limit} tokens, the most that the server accepts: split the request", limit=limit
    )


def check_text_bytes(size_bytes: int, field: str, limits: RequestLimits) -> None:
    """Check the size of all texts of a request together, in bytes.

    Raises:
        InvalidInput: the texts are too large.
    """
    if size_bytes > limits.text_bytes:
        raise InvalidInput(
            f"the request's texts have {size_bytes} bytes; the server accepts at most {limits.text_bytes}: split the "
            "request",
            field=field,
            limit=limits.text_bytes,
            actual=size_bytes,
        )
