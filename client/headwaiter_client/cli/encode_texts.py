"""Encodes the texts of a file: a bar shows how far it is, and errors say which line was wrong."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Unpack

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import SequenceEncoding, model_ref
from headwaiter_client.cli.console import tracked
from headwaiter_client.cli.text_files import Texts
from headwaiter_client.client import Client
from headwaiter_client.errors import HeadwaiterError, ModelChanged, SequenceTooLong
from headwaiter_proto import encoder_pb2 as pb


def describe(client: Client) -> pb.GetModelResponse:
    """Asks for the model.

    Raises:
        ValueError: it takes no texts.
    """
    model = client.model()
    if not model.max_text_tokens:
        raise ValueError(f"the model {model.model.name} takes no texts")
    return model


def encode_texts(
    client: Client, described: pb.GetModelResponse, texts: Texts, *, first: int = 0, **options: Unpack[RequestOptions]
) -> Iterator[SequenceEncoding]:
    """Yields the pooled results of texts, in their order.

    Args:
        client: what calls the server.
        described: the model whose vectors they have to be.
        texts: what to encode.
        first: index of the text to begin with.
        **options: see `RequestOptions`.

    Raises:
        HeadwaiterError: a call failed; where a text is to blame, the message says where it stands.
        ValueError: the model has no pooled output.
    """
    try:
        with (
            closing(client.encode_stream(texts.values[first:], **options)) as results,
            closing(tracked(results, len(texts.values), first)) as ones,
        ):
            for one in ones:
                if one.model != model_ref(described.model):
                    raise ModelChanged(
                        f"{one.model} answered in place of {model_ref(described.model)}, and their vectors do not mix: "
                        "run again, and let all replicas serve one model in one precision"
                    )
                if one.pooled is None and one.pooled_int8 is None:
                    raise ValueError(f"the model {described.model.name} has no pooled output")
                yield one
    except HeadwaiterError as error:
        if error.sequence is None:
            raise
        advice = " (--truncation right, or left, cuts it)" if isinstance(error, SequenceTooLong) else ""
        raise HeadwaiterError(_placed(error, error.sequence, texts.place(first + error.sequence)) + advice) from error


def _placed(error: HeadwaiterError, sequence: int, place: str) -> str:
    """Says of a place in a file what was said of a sequence in a request."""
    named = rf"texts\.values\[{sequence}\]|\bsequence {sequence}\b"
    sentence, places = re.subn(named, lambda _: place, str(error))
    return sentence if places else f"{place}: {sentence}"
