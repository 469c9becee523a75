"""Names and default values of the fields of config.json: those of the configuration classes of `transformers`."""

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any


@cache
def class_aliases(model_type: str) -> Mapping[str, str]:
    """Return other names of fields of a model type, with the names."""
    return dict(_config_class(model_type).attribute_map)


@cache
def class_defaults(model_type: str, part: str = "") -> Mapping[str, Any]:
    """Return the default values of the fields of a model type, or of a part of its configuration.

    Fields that every configuration has, such as the labels of a head, are left out.
    """
    from transformers import PreTrainedConfig

    config_class = _config_class(model_type)
    if part:
        config_class = config_class.sub_configs[part]
    common = {each.name for each in fields(PreTrainedConfig)}
    found = {}
    for each in fields(config_class):
        if each.name not in common:
            value = each.default if each.default_factory is MISSING else each.default_factory()
            # As json.loads would return it.
            found[each.name] = list(value) if isinstance(value, tuple) else value
    return found


def _config_class(model_type: str) -> Any:
    # The import takes seconds.
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]
