"""Images in JSON: data URLs in place of texts, as OpenAI-compatible servers take them."""

import re
from base64 import b64decode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.images import takes_images

_PREFIX = re.compile(r"data:image/(?:jpeg|jpg|png);base64,", re.ASCII | re.IGNORECASE)


def take_images(request: pb.EncodeRequest, manifest: Manifest) -> None:
    """Replace the texts of a request by the images that they hold, if the model takes images and no texts.

    Raises:
        InvalidInput: the model takes images and no texts, and a text is no data URL of an image, or has a prompt.
    """
    if not takes_images(manifest) or manifest.max_text_tokens or not request.HasField("texts"):
        return
    if request.texts.prompt:
        raise InvalidInput("a prompt is set, and images have none: leave it out", field="texts.prompt")
    images = [_decode(index, text) for index, text in enumerate(request.texts.values)]
    request.images.values.extend(images)
    # Some paths truncate texts unless the body says otherwise.
    request.ClearField("truncation")


def has_images(request: pb.EncodeRequest) -> bool:
    """Return whether a text of a request is a data URL of an image."""
    return any(_PREFIX.match(text) for text in request.texts.values)


def _decode(index: int, text: str) -> bytes:
    if prefix := _PREFIX.match(text):
        try:
            return b64decode(text[prefix.end() :], validate=True)
        except ValueError:
            pass
    raise InvalidInput(
        "is no data URL of an image, and the model takes only images: send a JPEG or PNG as data:image/jpeg;base64,… "
        "or data:image/png;base64,…",
        sequence=index,
        field="texts.values",
    )
