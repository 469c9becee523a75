"""Read the server's settings from flags and environment variables, and validate them.

Each field of `Settings` has a flag, --the-field, and an environment variable, HEADWAITER_THE_FIELD.
"""

import dataclasses
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from headwaiter_proto.command_line import CommandParser
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_server.settings.environment import unknown_variables, usable_processors
from headwaiter_server.settings.flag_types import (
    ADDRESS,
    ATTEND_BYTES,
    DIRECTORY,
    FILE,
    FRONT_ENDS,
    GPUS,
    NAME,
    NATURAL,
    NETWORKS,
    ORIGINS,
    PORT,
    POSITIVE,
    SECONDS,
    TIME_LIMIT,
    ValueType,
    one_of,
)

_MIB = 1 << 20
# The settings that say what to serve.
_SERVED = ("bundle", "models")
# The settings that need --models.
_OF_MODELS = ("watch_s", "load", "max_model_bytes", "default_model", "model_control", "admin_token_file")


class SettingsError(Exception):
    """A setting is wrong. The message is one sentence that names the flag and the value."""


def _setting(default: Any, value_type: ValueType, help_text: str) -> Any:
    return dataclasses.field(default=default, metadata={"type": value_type, "help": help_text})


@dataclass(frozen=True)
class Settings:
    """The settings of a server; if 0 has a special meaning, the help of the setting says so."""

    bundle: Path | None = None
    model_name: str = _setting(
        "", NAME, "name of the model of BUNDLE in requests and replies; the name in the bundle if not given"
    )
    models: Path | None = _setting(
        None, DIRECTORY, "folder of several models, FOLDER/NAME/VERSION, to serve instead of a single BUNDLE"
    )
    watch_s: float = _setting(
        0.0, SECONDS, "seconds between two looks for new versions in --models; 0 looks only at start-up"
    )
    load: Literal["at-start", "on-demand"] = _setting(
        "at-start",
        one_of("at-start", "on-demand"),
        "when to load a model of --models; on-demand loads it at its first request, and at-start in the settings.json "
        "of a model keeps this model loaded",
    )
    max_model_bytes: int = _setting(
        0,
        NATURAL,
        "most bytes for all models, as the server predicts them; for another model, the least recently used model that "
        "was loaded on demand is unloaded; 0 for no limit",
    )
    default_model: str = _setting("", NAME, "model of requests that name none; needed only if there are several")
    model_control: Literal["off", "on"] = _setting(
        "off", one_of("off", "on"), "whether callers may load and unload models of --models"
    )
    provider: Literal["auto", "cuda", "cpu"] = _setting(
        "auto", one_of("auto", "cuda", "cpu"), "execution provider; auto takes CUDA if it works, else the CPU"
    )
    precision: Literal["auto", "fp32", "fp16", "bf16", "int8"] = _setting(
        "auto",
        one_of("auto", "fp32", "fp16", "bf16", "int8"),
        "precision of the graph; auto takes fp16 on CUDA and fp32 on the CPU; fp16 needs CUDA, int8 needs the CPU, "
        "bf16 a CPU with AVX512_BF16 or AMX and the extra bf16",
    )
    address: str = _setting("0.0.0.0:50051", ADDRESS, "address for gRPC; port 0 takes a free port")
    metrics_port: int = _setting(9464, PORT, "port for Prometheus metrics, without TLS; 0 takes a free port")
    http_address: str = _setting(
        "",
        ADDRESS,
        "address for requests over HTTP, if not that of the metrics; --metrics-port is then on the same host; port 0 "
        "takes a free port",
    )
    http_api: Literal["off", "on"] = _setting(
        "off", one_of("off", "on"), "whether HTTP also answers requests to encode, in the forms of OpenAI and of TEI"
    )
    http_origins: tuple[str, ...] = _setting(
        (), ORIGINS, "web sites whose scripts in a browser may call --http-api, as origins with commas between them"
    )
    trusted_proxies: tuple[str, ...] = _setting(
        (),
        NETWORKS,
        "addresses or networks of proxies, with commas between them, whose header X-Forwarded-For names the callers of "
        "HTTP",
    )
    playground: Literal["off", "on"] = _setting(
        "off", one_of("off", "on"), "whether HTTP also serves a page for the browser, at /playground/"
    )
    front_ends: int | Literal["auto"] = _setting(
        "auto",
        FRONT_ENDS,
        "processes that listen, tokenise and reply beside the process of the models; 0 does all in one process; auto "
        "takes 0 on a CPU, and with a GPU two less than the processors, at most 12",
    )
    http_timeout_s: float = _setting(
        60.0, TIME_LIMIT, "longest time in seconds to answer a request over HTTP, and for the caller to read the reply"
    )
    threads: int = _setting(0, NATURAL, "CPU threads of each session; 0 divides the cores among the sessions")
    devices: tuple[int, ...] = _setting((0,), GPUS, "indices of the GPUs to run on, for CUDA; they share one queue")
    max_gpu_bytes: int = _setting(
        0,
        NATURAL,
        "most GPU memory in bytes for the weights and batches of one session, without inputs; 0 for no limit",
    )
    instances: int = _setting(1, POSITIVE, "sessions on each device; each one loads the weights again")
    token_budget: int = _setting(
        0,
        NATURAL,
        "most tokens in a batch; 0 takes the smallest number that is as fast as larger ones, measured at start-up",
    )
    max_sequence_tokens: int = _setting(
        0, NATURAL, "most tokens in a sequence; 0 for the model's own maximum; less memory if it is lower"
    )
    warm_up: Literal["on", "off"] = _setting(
        "on", one_of("on", "off"), "whether to run full batches before serving, which reserves their memory"
    )
    max_queue_tokens: int = _setting(262_144, POSITIVE, "most tokens in the queue; further requests are refused")
    max_queue_s: float = _setting(
        30.0, SECONDS, "longest estimated wait in seconds; requests that would wait longer are refused"
    )
    max_request_sequences: int = _setting(4096, POSITIVE, "most sequences in a request")
    max_request_tokens: int = _setting(65_536, POSITIVE, "most tokens in a request")
    max_request_bytes: int = _setting(16 * _MIB, POSITIVE, "largest request message in bytes")
    max_calls: int = _setting(
        8192,
        POSITIVE,
        "most calls in progress, streams included; one caller can have half of them; further calls are refused",
    )
    max_stream_requests: int = _setting(
        1024, POSITIVE, "most requests of one stream in progress before the server stops reading the stream"
    )
    max_stream_bytes: int = _setting(
        32 * _MIB,
        POSITIVE,
        "most bytes of one stream's requests, and of their replies, before the server stops reading the stream",
    )
    max_stream_idle_s: float = _setting(
        600.0, SECONDS, "most seconds that a stream may go without a request or an answer; 0 for no limit"
    )
    max_connection_age_s: float = _setting(
        0.0,
        SECONDS,
        "seconds after which the server asks callers to replace a gRPC connection, so that they find new replicas; 0 "
        "for never",
    )
    max_reply_bytes: int = _setting(
        256 * _MIB,
        POSITIVE,
        "most bytes of replies that callers of one front end have not received, counted from when a request is queued",
    )
    max_attend_bytes: int = _setting(
        64 * _MIB,
        ATTEND_BYTES,
        "most bytes of attention weights that one Attend may compute, counting all heads of its layers",
    )
    tls_cert: Path | None = _setting(None, FILE, "file of the server's certificate chain, PEM")
    tls_key: Path | None = _setting(None, FILE, "file of the certificate's private key, PEM")
    tls_client_ca: Path | None = _setting(
        None, FILE, "file of a certificate authority, PEM; clients need a certificate that it signed"
    )
    token_file: Path | None = _setting(
        None,
        FILE,
        "file of a bearer token, or of a line NAME: TOKEN for each caller; calls without one are refused, except "
        "health checks",
    )
    admin_token_file: Path | None = _setting(
        None, FILE, "file of the bearer tokens for loading and unloading models; --token-file's if none is given"
    )
    drain_delay_s: float = _setting(
        0.0,
        SECONDS,
        "seconds to answer new requests after SIGTERM, while health checks report NOT_SERVING, so that load balancers "
        "learn it in time; 0 drains at once",
    )
    drain_s: float = _setting(
        30.0, SECONDS, "longest time in seconds to answer admitted requests after SIGTERM and --drain-delay-s"
    )
    log_format: Literal["text", "json"] = _setting(
        "text", one_of("text", "json"), "form of the log's lines; json writes an object on each line"
    )
    log_level: Literal["debug", "info", "warning", "error"] = _setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "lowest level of the log's lines; debug also logs requests that succeed",
    )
    traces: Literal["off", "otlp"] = _setting(
        "off",
        one_of("off", "otlp"),
        "whether the server sends traces to an OpenTelemetry receiver, as the variables OTEL_* say",
    )

    def __post_init__(self) -> None:
        """Check settings that depend on each other."""
        if (self.bundle is None) == (self.models is None):
            raise SettingsError(
                "give either one bundle or --models: run headwaiter-server BUNDLE or set HEADWAITER_BUNDLE, or run "
                "headwaiter-server --models FOLDER; make a bundle with headwaiter-export checkpoint FOLDER -o BUNDLE"
            )
        if self.model_name and self.models is not None:
            raise SettingsError(
                f"--model-name {self.model_name} needs a single bundle, and --models names each model by its folder: "
                "leave --model-name out, or rename the folder"
            )
        for field in dataclasses.fields(self):
            given = getattr(self, field.name) != field.default
            if given and field.name in _OF_MODELS and self.models is None:
                needed = f"{flag(field.name)} needs --models"
                raise SettingsError(f"{needed}: leave {flag(field.name)} out, or give a folder of models")
        if self.admin_token_file is not None and self.model_control == "off":
            raise SettingsError(
                "--admin-token-file needs --model-control on: give both, or leave --admin-token-file out"
            )
        if self.http_origins and self.http_api == "off":
            raise SettingsError("--http-origins needs --http-api on: give both, or leave --http-origins out")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("--tls-cert and --tls-key need each other: give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise SettingsError("--tls-client-ca needs --tls-cert and --tls-key: give all three")
        if self.answers_over_http and self.tls_cert is not None and self.metrics_host_and_port is None:
            raise SettingsError(
                "--http-api and --playground need --http-address if there is a --tls-cert, because the port of the "
                f"metrics has no TLS: give --http-address HOST:PORT with another port than --metrics-port "
                f"{self.metrics_port}"
            )
        if self.max_request_tokens > self.max_queue_tokens:
            raise SettingsError(
                f"--max-request-tokens {self.max_request_tokens} exceeds --max-queue-tokens {self.max_queue_tokens}, "
                "so the queue would always refuse the largest requests: lower the first or raise the second"
            )

    @property
    def answers_over_http(self) -> bool:
        """Whether HTTP answers requests, besides metrics and health."""
        return "on" in (self.http_api, self.playground)

    @property
    def http_host_and_port(self) -> tuple[str, int]:
        """The address for HTTP: requests if the server answers them, metrics and health."""
        host, _, port = (self.http_address or self.address).rpartition(":")
        return host.strip("[]"), int(port) if self.http_address else self.metrics_port

    @property
    def metrics_host_and_port(self) -> tuple[str, int] | None:
        """The address for metrics and health alone, without TLS; None if requests have no port of their own."""
        host, port = self.http_host_and_port
        shared = not self.http_address or (port == self.metrics_port and port != 0)
        return None if shared else (host, self.metrics_port)

    @property
    def http_addresses(self) -> dict[str, tuple[str, int]]:
        """The addresses for HTTP: that of requests, and that of metrics if it is another; with the flag of each."""
        metrics_flag = f"--metrics-port {self.metrics_port}"
        flag = f"--http-address {self.http_address}" if self.http_address else metrics_flag
        own = self.metrics_host_and_port
        return {flag: self.http_host_and_port, **({} if own is None else {metrics_flag: own})}

    @property
    def request_limits(self) -> RequestLimits:
        """The limits of one request."""
        return RequestLimits(
            self.max_request_sequences, self.max_request_tokens, self.max_request_bytes, self.max_attend_bytes
        )

    @property
    def threads_per_instance(self) -> int | None:
        """Return the CPU threads of one session; None lets ONNX Runtime use one per physical core.

        More threads than processors would wait for each other in every operator.
        """
        usable = usable_processors()
        if self.threads:
            return min(self.threads, usable)
        restricted = usable < (os.cpu_count() or 1)
        return max(1, usable // self.instances) if restricted or self.instances > 1 else None

    @property
    def max_front_end_calls(self) -> int:
        """The most calls of each front end, which has an equal share of `max_calls`, rounded up."""
        front_ends = 1 if self.front_ends == "auto" else max(1, self.front_ends)
        return -(-self.max_calls // front_ends)

    def warnings(self, environment: Mapping[str, str]) -> list[str]:
        """Return what is probably wrong with the settings or with the variables of the environment."""
        problems = unknown_variables(environment, {variable(field.name) for field in dataclasses.fields(self)})
        if self.threads > (usable := usable_processors()):
            problems.append(
                f"--threads {self.threads} exceeds the {usable} processors that this process may use: "
                f"each session has {usable} threads"
            )
        return problems

    def changed_flags(self) -> str:
        """Return the settings that differ from their defaults, as on a command line."""
        words = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                text = ",".join(map(str, value)) if isinstance(value, tuple) else "" if value is None else str(value)
                words += [text] if field.name == "bundle" else [flag(field.name), text]
        return shlex.join(words)


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return "HEADWAITER_" + name.upper()


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Read each setting from the command line, else from the environment; other settings have their defaults.

    Raises:
        SettingsError: a setting is wrong; the message names its flag.
    """
    given = {name: text for name, text in vars(_parser().parse_args(arguments)).items() if text is not None}
    if given.keys() & set(_SERVED):
        # What the command line serves replaces what the environment serves.
        environment = {name: text for name, text in environment.items() if name not in map(variable, _SERVED)}
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        # An empty variable counts as not set, because Docker Compose passes unset variables on as empty ones.
        text = given.get(field.name, environment.get(variable(field.name)) or None)
        if field.name == "bundle":
            values["bundle"] = Path(text) if text else None
        elif text is not None:
            values[field.name] = read_value(field, text)
    return Settings(**values)


def read_value(field: "dataclasses.Field[Any]", text: str) -> Any:
    """Read the value of a setting from text.

    Raises:
        SettingsError: the text is not a value of the setting.
    """
    value_type: ValueType = field.metadata["type"]
    try:
        return value_type.read(text)
    except ValueError:
        raise SettingsError(f"{flag(field.name)} {text!r} is not valid: give {value_type.accepted}") from None


class _Parser(CommandParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


def _parser() -> CommandParser:
    parser = _Parser(
        prog="headwaiter-server",
        usage="headwaiter-server [FLAGS] [BUNDLE]",
        description="Serve a bundle over gRPC. Each flag can be given as an environment variable, HEADWAITER_<FLAG>.",
    )
    parser.add_version()
    for field in dataclasses.fields(Settings):
        if field.name == "bundle":
            parser.add_argument("bundle", nargs="?", metavar="BUNDLE", help="folder that headwaiter-export wrote")
            continue
        shown = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        default = "" if field.default in (None, "", ()) else f" (default {shown})"
        choices = field.metadata["type"].choices
        metavar = "{" + ",".join(choices) + "}" if choices else field.name.upper()
        parser.add_argument(flag(field.name), metavar=metavar, help=field.metadata["help"] + default)
    return parser
