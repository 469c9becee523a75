"""The options that the interfaces of HTTP and the parameters of the Open Inference Protocol share, as fields."""

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.requests.fields import BOOLEAN, TEXT, Field, one_of, whole_number
from headwaiter_server.scheduling.fair_start import Priority

# The most urgent first.
PRIORITIES = {each.name.lower(): pb.Priority.Value(f"PRIORITY_{each.name}") for each in Priority}
TRUNCATIONS = {"error": pb.TRUNCATION_ERROR, "left": pb.TRUNCATION_LEFT, "right": pb.TRUNCATION_RIGHT}

TRUNCATION = Field(
    "truncation",
    one_of(TRUNCATIONS),
    "truncation",
    "Texts that are too long are refused (error, default), or lose tokens at the start (left) or end (right).",
)
# infinity's client sends 0 for all dimensions.
DIMENSIONS = Field(
    "dimensions", whole_number(0), "output.dimensions", "Number of leading dimensions to return; 0: all."
)
PROMPT = Field("prompt", TEXT, "texts.prompt", "Name of the model's prompt.")
NORMALIZE = Field("normalize", BOOLEAN, "output.normalize", "Whether vectors have unit length.")
RAW_SCORES = Field("raw_scores", BOOLEAN, "output.raw_scores", "Whether scores are logits.")
