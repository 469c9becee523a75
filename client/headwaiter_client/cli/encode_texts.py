"""Encode the texts of a file with a progress bar; an error of a text names its line in the file."""

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Unpack

from headwaiter_client.calls.models import ModelDescription
from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import SequenceEncoding
from headwaiter_client.cli.console import ProgressBar
from headwaiter_client.cli.shared_flags import with_flag
from headwaiter_client.cli.text_files import Texts
from headwaiter_client.client import Client
from headwaiter_client.errors import ModelChanged
from headwaiter_proto.rules.errors import DeadlineExceeded, HeadwaiterError, SequenceTooLong, Transient

# The errors after which another attempt may succeed.
_PASSING = (Transient, DeadlineExceeded)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 15.0


def text_model(client: Client, name: str) -> ModelDescription:
    """Return the description of a model; of the server's only or default model if the name is empty.

    Raises:
        ValueError: the model does not accept texts.
    """
    model = client.model(name)
    if not model.max_text_tokens:
        raise ValueError(f"the model {model.model.name} does not accept texts: use a model with a tokenizer")
    return model


def encode_texts(
    client: Client,
    description: ModelDescription,
    texts: Texts,
    bar: ProgressBar,
    **options: Unpack[RequestOptions],
) -> Iterator[SequenceEncoding]:
    """Yield, in order, the pooled encodings of all texts after those that the progress bar counts as done.

    Raises:
        ModelChanged: another model than the described one answered.
        HeadwaiterError: a call failed; if one text is the cause, the message names its line.
        ValueError: the model has no pooled output.
    """
    first = bar.done
    try:
        remaining = (texts.values[index] for index in range(first, len(texts.values)))
        with closing(client.encode_stream(remaining, **options)) as encodings:
            for encoding in encodings:
                if not encoding.model.is_comparable(description.model):
                    raise ModelChanged(
                        f"{encoding.model} answered instead of {description.model}; their vectors differ: "
                        "serve the same model in the same precision on all replicas, and run again"
                    )
                if encoding.received_pooled is None:
                    name = description.model.name
                    if encoding.received_sparse is not None:
                        raise ValueError(f"the vectors of {name} are sparse: read them with the Python client")
                    raise ValueError(f"the model {name} has no pooled output: export it with a pooling")
                yield encoding
                bar.advance()
    except HeadwaiterError as error:
        if error.sequence is None:
            raise
        advice = " (--truncation left or right cuts long texts)" if isinstance(error, SequenceTooLong) else ""
        raise HeadwaiterError(f"{texts.place(first + error.sequence)} {error.problem}{advice}") from error


class Patience:
    """Repeats a call until the server answers, for as long as that takes.

    Another attempt follows a `Transient` error or a passed deadline; other errors are raised. The pauses between
    attempts double, up to 15 s, until another text is done.
    """

    def __init__(self, bar: ProgressBar) -> None:
        self._bar = bar
        self._done = bar.done
        self._pause_s = _FIRST_PAUSE_S

    def text_model(self, client: Client, name: str) -> ModelDescription:
        """Return the description of a model; see `text_model`."""
        while True:
            try:
                model = text_model(client, name)
            except _PASSING as error:
                self._wait(error)
            else:
                self._bar.end_wait()
                return model

    def encode_texts(
        self,
        client: Client,
        description: ModelDescription,
        texts: Texts,
        **options: Unpack[RequestOptions],
    ) -> Iterator[SequenceEncoding]:
        """Yield encodings as `encode_texts` does; after a passing error, wait and continue with the next text."""
        while self._bar.done < len(texts.values):
            try:
                yield from encode_texts(client, description, texts, self._bar, **options)
            except _PASSING as error:
                self._wait(error)

    def _wait(self, error: HeadwaiterError) -> None:
        if self._bar.done > self._done:
            self._done, self._pause_s = self._bar.done, _FIRST_PAUSE_S
        self._bar.begin_wait(with_flag(error))
        time.sleep(max(self._pause_s, error.retry_after_s or 0.0))
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
