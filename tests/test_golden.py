"""Small data sets whose values are committed: the recipe must always give the same values.

A change that alters them on purpose must raise `RECIPE_VERSION` and write them again with
`python -m tests.test_golden`.
"""

import json
import tempfile
import tomllib
from pathlib import Path

import numpy as np
import pytest

from powerphase.dataset import generate
from tests.dataset.exact import exact_signals

CASES = sorted(path.parent for path in Path(__file__).parent.glob("golden/*/input.json"))


def generate_case(case: Path, out: Path) -> tuple[str, dict[str, list[float]]]:
    """Fingerprint and some states of the data set of a case."""
    options = json.loads((case / "input.json").read_text())
    steps = tomllib.loads((case / "params.toml").read_text())["steps"]
    store = generate(**options, out=out, signals=exact_signals())
    states = {str(step): np.asarray(store.state[step]).tolist() for step in steps}
    return store.manifest.fingerprint, states


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_golden_data_set_keeps_its_values_and_its_fingerprint(case: Path, tmp_path: Path) -> None:
    expected = json.loads((case / "expected.json").read_text())
    tolerance = tomllib.loads((case / "params.toml").read_text())
    fingerprint, states = generate_case(case, tmp_path / "s")
    assert fingerprint == expected["fingerprint"]
    assert states.keys() == expected["states"].keys()
    for step, state in expected["states"].items():
        np.testing.assert_allclose(
            states[step], state, rtol=tolerance["relative"], atol=tolerance["absolute"]
        )


def write_expected() -> None:
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            fingerprint, states = generate_case(case, Path(folder) / "s")
        # float32 values, written with just enough digits to be read back exactly.
        short = {
            k: [float(np.format_float_positional(np.float32(v))) for v in state]
            for k, state in states.items()
        }
        (case / "expected.json").write_text(
            json.dumps({"fingerprint": fingerprint, "states": short}) + "\n"
        )


if __name__ == "__main__":
    write_expected()
