"""The page about Python works as shown, and its comments tell what happens."""

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase import Store
from powerphase.axes import VARIABLES

PAGE = (Path(__file__).parents[1] / "docs" / "python.md").read_text()


@pytest.fixture(scope="module")
def names(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples of the page define, run one after another."""
    root: Path = tmp_path_factory.mktemp("python")
    shutil.copytree(sixty_days.path, root / "data" / "ieee14")
    defined: dict[str, Any] = {"__name__": "example"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(example, "python.md", "exec"), defined)
    return defined


def test_arrays_have_the_shapes_of_the_comments(names: dict[str, Any]) -> None:
    arrays = ("one_day", "voltages", "reactive", "ends", "flow_mva", "values")
    assert {name: names[name].shape for name in arrays} == {
        "one_day": (96, 14, 4),
        "ends": (20, 2),
        "flow_mva": (96, 20, 2),
        "voltages": (96, 14),
        "reactive": (12, 2, 2),
        "values": (1, 7, 96, 56),
    }
    assert names["voltage"].sizes == {"time": 12, "bus": 14, "variable": 1}
    assert names["wide"].shape == (60 * 96, 4)
    assert names["long"].shape == (12 * 2 * 4, 4)
    assert names["noon"].name == "powerphase-48-steps-ahead-from-288-origin-1200"
    voltages = names["one_day"][..., VARIABLES.index("V")]
    np.testing.assert_array_equal(voltages, names["voltages"])
    assert names["loads"].sum() == 9


def test_the_page_names_what_branches_and_limits_have(names: dict[str, Any]) -> None:
    circuit, limits = names["layout"].circuit, names["layout"].limits
    section = PAGE.split("## Lines")[1].split("\n## ")[0]
    for field in (*dataclasses.fields(circuit), *dataclasses.fields(limits)):
        if field.name not in ("base_mva", "v_min_pu", "v_max_pu"):
            assert f"`{field.name}`" in section, field.name
    assert not limits.is_rated.any()
    assert (names["ends"][0].tolist(), circuit.name[0]) == ([1, 2], "1-2")


def test_weights_are_those_of_the_comment(names: dict[str, Any]) -> None:
    (comment,) = re.findall(r"weights\[0, :, 0\]\)  # (.*)", PAGE)
    expected = [float(number) for number in comment.split(",")]
    np.testing.assert_allclose(names["weighted"].weights[0, :, 0], expected, rtol=1e-6)


def test_rows_and_boards_are_tables(names: dict[str, Any]) -> None:
    assert names["rows"][0].scores == names["evaluation"].scores
    assert len(names["table"]) == 14
    assert names["boards"].to_pandas()["crps"][0] == names["evaluation"].scores["crps"]
