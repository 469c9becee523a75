"""Encode the texts of a file with a progress bar; an error of a text names its line in the file."""

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Unpack

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import SequenceEncoding, model_ref
from headwaiter_client.cli.console import with_progress_bar
from headwaiter_client.cli.text_files import Texts
from headwaiter_client.client import Client
from headwaiter_client.errors import HeadwaiterError, ModelChanged, SequenceTooLong
from headwaiter_proto import encoder_pb2 as pb


def text_model(client: Client) -> pb.GetModelResponse:
    """Return the description of the server's model.

    Raises:
        ValueError: the model does not accept texts.
    """
    model = client.model()
    if not model.max_text_tokens:
        raise ValueError(f"the model {model.model.name} does not accept texts: use a model with a tokenizer")
    return model


def encode_texts(
    client: Client, description: pb.GetModelResponse, texts: Texts, *, first: int = 0, **options: Unpack[RequestOptions]
) -> Iterator[SequenceEncoding]:
    """Yield the pooled encodings of the texts from index `first` on, in order.

    Raises:
        ModelChanged: another model than the described one answered.
        HeadwaiterError: a call failed; if one text is the cause, the message names its line.
        ValueError: the model has no pooled output.
    """
    try:
        with (
            closing(client.encode_stream(texts.values[first:], **options)) as encodings,
            closing(with_progress_bar(encodings, len(texts.values), first)) as shown_encodings,
        ):
            for encoding in shown_encodings:
                if encoding.model != model_ref(description.model):
                    raise ModelChanged(
                        f"{encoding.model} answered instead of {model_ref(description.model)}; their vectors differ: "
                        "serve the same model in the same precision on all replicas, and run again"
                    )
                if encoding.pooled_int8 is None and encoding.pooled is None:
                    name = description.model.name
                    raise ValueError(f"the model {name} has no pooled output: export it with a pooling")
                yield encoding
    except HeadwaiterError as error:
        if error.sequence is None:
            raise
        advice = " (--truncation left or right cuts long texts)" if isinstance(error, SequenceTooLong) else ""
        place = texts.place(first + error.sequence)
        raise HeadwaiterError(_with_place(error, error.sequence, place) + advice) from error


def _with_place(error: HeadwaiterError, sequence: int, place: str) -> str:
    """Return the message of an error with a place in a file instead of the number of the sequence."""
    number = rf"texts\.values\[{sequence}\]|\bsequence {sequence}\b"
    message, replaced = re.subn(number, lambda _: place, str(error))
    return message if replaced else f"{place}: {message}"
