"""Steps a Grid2Op environment through exported chronics; run by test_grid2op.py.

    python grid2op_env.py CASE.npz CHRONICS.npz SCENARIO FOLDER

It is a process of its own, because importing Grid2Op changes how NumPy treats errors.
"""

import json
import sys
from pathlib import Path

import grid2op
import numpy as np
import pandapower
from grid2op.Chronics import FromNPY
from grid2op.Parameters import Parameters
from pandapower.converter.pypower.from_ppc import from_ppc

CONFIG = """
from grid2op.Backend import PandaPowerBackend
from grid2op.Chronics import ChangeNothing

config = {"backend": PandaPowerBackend, "chronics_class": ChangeNothing}
"""


def main() -> None:
    """Print what the environment observes after one step."""
    case, chronics, scenario, folder = sys.argv[1:]
    write_environment(Path(folder), np.load(case))
    arrays = np.load(chronics)
    plain = grid2op.make(folder)
    order = {
        "load": [arrays["load_bus"].tolist().index(bus + 1) for bus in plain.load_to_subid],
        "prod": [arrays["prod_bus"].tolist().index(bus + 1) for bus in plain.gen_to_subid],
    }
    names = ("load_p", "load_q", "prod_p", "prod_v")
    feeding = {
        name: arrays[name][int(scenario)][:, order[name.split("_")[0]]].astype(float)
        for name in names
    }
    parameters = Parameters()
    parameters.NO_OVERFLOW_DISCONNECTION = True
    environment = grid2op.make(
        folder, chronics_class=FromNPY, data_feeding_kwargs=feeding, param=parameters
    )
    environment.reset()
    state, _, is_over, _ = environment.step(environment.action_space())
    seen = {"load_p": state.load_p, "load_q": state.load_q}
    seen |= {"prod_p": state.gen_p, "prod_v": state.gen_v}
    given = {name: feeding[name][1].tolist() for name in names}
    observed = {name: values.tolist() for name, values in seen.items()}
    answer = {"over": bool(is_over), "given": given, "observed": observed}
    sys.stdout.write(json.dumps(answer) + "\n")


def write_environment(folder: Path, case: "np.lib.npyio.NpzFile") -> None:
    """A folder from which Grid2Op makes an environment of this grid."""
    matrices = {name: case[name].copy() for name in ("bus", "gen", "branch")}
    matrices["bus"][:, 0] -= 1  # Grid2Op counts buses from 0
    matrices["gen"][:, 0] -= 1
    matrices["branch"][:, :2] -= 1
    network = from_ppc({"version": "2", "baseMVA": float(case["base_mva"]), **matrices})
    folder.mkdir()
    pandapower.to_json(network, str(folder / "grid.json"))
    (folder / "config.py").write_text(CONFIG, encoding="utf-8")


if __name__ == "__main__":
    main()
