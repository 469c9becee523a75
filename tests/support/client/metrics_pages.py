"""Metrics pages of a server, as text."""

from collections.abc import Mapping

BUILD = 'headwaiter_build_info{onnxruntime="1.31.0",python="3.11.9",version="0.1.0"} 1'


def page(samples: Mapping[str, float]) -> str:
    """Return a page with the build of a server and with samples, by name and labels: `requests{model=m,code=OK}`.

    Names of a server's own metrics leave `headwaiter_` out, as those of series with a model leave the version out,
    which is 1.
    """
    return "\n".join([BUILD, *(f"{_series(name)} {value}" for name, value in samples.items())]) + "\n"


def _series(short: str) -> str:
    name, _, labels = short.removesuffix("}").partition("{")
    pairs = dict(pair.split("=", 1) for pair in labels.split(",") if pair)
    if "model" in pairs:
        pairs = {"version": "1", **pairs}
    prefix = "" if name.startswith("process_") else "headwaiter_"
    return prefix + name + "{" + ",".join(f'{label}="{value}"' for label, value in pairs.items()) + "}"
