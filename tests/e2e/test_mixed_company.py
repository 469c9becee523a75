"""Calls that share requests end as they would alone while servers die and freeze, and beside bad calls."""

from pathlib import Path

import pytest

from tests.support.e2e.mixed_company import MODELS, keep_mixed_company
from tests.support.soak.models import export_text_model

_SECONDS = 20.0


@pytest.mark.exhaustive
async def test_each_call_in_mixed_company_ends_as_it_would_alone(text_bundle: Path, tmp_path: Path) -> None:
    bundles = {"wide": text_bundle, "narrow": export_text_model(tmp_path, "narrow", **MODELS["narrow"])}
    company = await keep_mixed_company(tmp_path / "models", bundles, _SECONDS)
    assert company.wrong == []
    assert company.outcomes["one text"]["right"] > 0
    assert company.events.keys() == {"kill server", "freeze server", "kill devices", "restart"}
    # A sequence kills at most two devices, also in a request that it shares.
    assert company.events["restart"] <= company.events["kill server"] + 2 * company.events["kill devices"]
