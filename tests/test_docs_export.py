"""The page on exports: its commands and code run as written, and its claims hold."""

from pathlib import Path

import pandas as pd
import pytest

from docs.dispatch import dispatch_mean, dispatch_regret, dispatch_regrets
from powerphase.exports import FORMATS
from tests.pages import blocks, output_of

PAGE = (Path(__file__).parents[1] / "docs" / "export.md").read_text(encoding="utf-8")


def test_the_page_s_commands_and_code_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in blocks(PAGE, "sh")[0].splitlines():
        output_of(command)
    names: dict[str, object] = {}
    for code in blocks(PAGE, "python"):
        if not code.startswith("# with "):
            exec(compile(code, "export.md", "exec"), names)
    at_59, mean_v = names["at_59"], names["mean_v"]
    assert isinstance(at_59, pd.DataFrame)
    assert at_59.shape == (96, 16)
    assert mean_v.sizes == {"step": 96, "bus": 118}  # type: ignore[attr-defined]
    networks = [path.name for path in (tmp_path / "networks" / "factorforge").iterdir()]
    assert networks == ["2015-02-25T0000.nc"]
    assert networks[0] in PAGE


def test_every_format_is_on_the_page() -> None:
    for name in FORMATS:
        assert f"| `{name}` |" in PAGE
        if name != "parquet-wide":
            assert f"--to {name} " in PAGE


def test_nothing_is_cheaper_than_foresight() -> None:
    for name in ("climatology", "factorforge"):
        assert min(dispatch_regrets(name)) > -1.0
        assert dispatch_mean(name, "emergency_mwh") >= dispatch_mean("actual", "emergency_mwh")
        assert dispatch_regret(name) == pytest.approx(
            sum(dispatch_regrets(name)) / len(dispatch_regrets(name))
        )
