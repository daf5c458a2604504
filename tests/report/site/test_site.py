"""The files of a site contain the numbers of rows, sidecars, data sets and forecasts."""

import base64
import json
import re
import shutil
import zlib
from dataclasses import replace
from html import unescape
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from powerphase import cli
from powerphase.axes import KINDS, V
from powerphase.errors import PowerphaseError, ReportError, UnknownName
from powerphase.records import (
    GROUPS,
    LINE_BUSES,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    LINE_TOTALS,
    NORMAL_BAND_PU,
    RANKED,
    RATING,
    RISK_LEVELS,
    SCORES,
    Result,
    chunk_file,
    forecast_writer,
    read_results,
    write_result,
)
from powerphase.registry import MODELS
from powerphase.report import (
    COLUMNS,
    DARK,
    LEVELS,
    LIGHT,
    MISSING,
    contrast,
    drawing,
    first_bus,
    leaderboard,
    like_the_best,
    page_looks,
    weighted_quantiles,
)
from powerphase.report.site import (
    RANK,
    SIDES,
    Folder,
    board_pages,
    build_site,
    decimals_of,
    duration,
    format_number,
    pack,
    script,
    table_groups,
)
from powerphase.synthesis import Signals, load_shapes
from tests.records.rows import first_schema, row
from tests.report.site import made_up
from tests.report.site.conftest import SCRIPT, Built, both_ways


def unpack(value: dict[str, Any]) -> NDArray[Any]:
    """The array that a page reads, decoded independently."""
    kind = np.dtype(f"<{value['type']}")
    content = np.frombuffer(zlib.decompress(base64.b64decode(value["data"])), np.uint8)
    rows = content.reshape(kind.itemsize, -1).T
    return np.ascontiguousarray(rows).view(kind).reshape(value["shape"])


def value_of(built: Built, key: str) -> Any:
    """The value that a script file of the site passes to the page."""
    text = (built.site.index.parent / "data" / f"{key}.js").read_text()
    match = re.fullmatch(r"powerphase\.put\(\.\.\.(.*)\);\n", text, re.DOTALL)
    assert match
    name, value = json.loads(match[1])
    assert name == key
    return value


def board_of(built: Built, grid: str) -> dict[str, Any]:
    return next(b for b in value_of(built, "site")["boards"] if b["grid"] == grid)


@pytest.mark.parametrize("kind", ["u1", "u2", "i4", "f2", "f4"])
def test_a_packed_array_keeps_its_numbers(kind: str) -> None:
    values = (np.random.default_rng(1).normal(0, 90, (3, 4, 5))).astype(kind)
    np.testing.assert_array_equal(unpack(pack(values)), values)
    transposed = values.transpose(2, 0, 1)
    np.testing.assert_array_equal(unpack(pack(transposed)), transposed)


def test_an_array_type_that_pages_cannot_read_raises() -> None:
    with pytest.raises(TypeError, match="float64"):
        pack(np.zeros(3))


def test_no_text_can_end_a_script() -> None:
    text = script("k", {"name": made_up.NASTY, "nothing": float("nan")}).decode()
    assert "<" not in text
    assert json.loads(text[18:-3]) == ["k", {"name": made_up.NASTY, "nothing": None}]


@pytest.mark.parametrize("equal", [True, False])
def test_quantiles_match_the_weighted_quantiles_of_numpy(equal: bool) -> None:
    random = np.random.default_rng(2)
    values = random.normal(size=(10, 7, 5)).astype("f4").round(1)  # some tie
    weights = np.ones((10, 5)) if equal else random.uniform(0.05, 1, (10, 5))
    weights /= weights.sum(0)
    quantiles = weighted_quantiles(values, weights.astype("f4"))
    for h in range(7):
        for c in range(5):
            expected = both_ways(values[:, h, c], weights[:, c], LEVELS)
            np.testing.assert_allclose(quantiles[:, h, c], expected, rtol=1e-6)


def test_a_quantile_between_two_scenarios_is_their_mean() -> None:
    values = np.array([1.0, 2.0, 5.0, 6.0])[:, None, None]
    weights = np.array([0.1, 0.4, 0.4, 0.1])[:, None]
    quantiles = weighted_quantiles(values[::-1], weights[::-1])
    np.testing.assert_allclose(quantiles.ravel(), [1.5, 3.5, 5.5])


def test_the_file_of_a_row_contains_its_sidecar(built: Built) -> None:
    for model in board_of(built, made_up.GRID)["models"]:
        arrays, file = built.rows[model["id"]][1], value_of(built, model["file"])
        for name, value in file["by_bus"].items():
            np.testing.assert_array_equal(unpack(value), arrays[f"by_bus/{name}"])
        assert file["by_step"]["violation_probability"] == pytest.approx(
            arrays["by_step/violation_probability"][:, V], rel=1e-6
        )
        assert model["shown"] == (model["seed"] != 22) == (file["shown"] is not None)
        if model["shown"]:
            truth = value_of(built, file["shown"]["truth"])
            for part in ("low", "high", "steps"):
                stored = arrays[f"shown/scenario_{part}"]
                np.testing.assert_array_equal(unpack(file["shown"][part]), stored)
                np.testing.assert_array_equal(unpack(truth[part]), arrays[f"shown/target_{part}"])
            assert file["shown"]["position"] == [0, 4, 9, 16, 23, 29]
        assert file["reliability"][7] == [0, None, None]
        assert model["risk"] == ("risk/by_bus_step" in arrays)
        if model["risk"]:
            probability = unpack(file["risk"]["probability"])
            np.testing.assert_array_equal(probability, arrays["risk/by_bus_step"])


def test_the_file_of_a_row_contains_the_lines_of_its_sidecar(built: Built) -> None:
    files = {
        model["id"]: value_of(built, model["file"])
        for model in board_of(built, made_up.GRID)["models"]
    }
    assert {name for name, file in files.items() if "lines" in file} == {
        "ets+stale-42",
        "oracle-42",
    }
    arrays, lines = built.rows["ets+stale-42"][1], files["ets+stale-42"]["lines"]
    assert lines["total"] == arrays[LINE_TOTALS].tolist()
    for name, value in lines["scores"].items():
        np.testing.assert_array_equal(unpack(value), arrays[f"by_branch/{name}"])
    for part, name in (("bus_id", LINE_BUSES), ("number", LINE_NUMBER), ("rating_mva", RATING)):
        np.testing.assert_array_equal(unpack(lines["identity"][part]), arrays[name])
    assert lines["windows"] == arrays["shown/window"].tolist()
    for part, name in (
        ("probability", LINE_RISK),
        ("happened", LINE_HAPPENED),
        ("peak", LINE_PEAK),
    ):
        np.testing.assert_array_equal(unpack(lines["risk"][part]), arrays[name])


def test_models_share_the_file_of_the_truth(built: Built) -> None:
    names = [name for name in built.site.sizes if f"{made_up.GRID}-synthetic/truth-" in name]
    assert len(names) == 1


def test_entries_contain_the_numbers_of_the_leaderboard(built: Built) -> None:
    board = leaderboard([result for result, _ in built.rows.values()])[0]
    entries = board_of(built, made_up.GRID)["entries"]
    assert [entry["name"] for entry in entries] == [e.name for e in (*board.entries, *board.paper)]
    for entry, expected in zip(entries, (*board.entries, *board.paper), strict=True):
        assert entry["mean"] == dict(expected.mean)
        assert entry["rank"] == expected.rank


def test_the_best_and_second_best_ranked_entries_are_marked() -> None:
    rows = [row(model=f"model-{k}", draw=k) for k in range(4)]
    rows += [
        row(model="oracle", draw=k, variant=f"like-{k}") for k in range(4)
    ]  # each ties with a model
    board = leaderboard(rows, paper=False)[0]
    lines = [line for group in table_groups(board, {}) for line in group.lines]
    for column, name in enumerate(SIDES["Fidelity"]):
        ranked = {e.name: e.mean[name] for e in board.entries if e.rank is not None}
        order = sorted(ranked, key=lambda entry: ranked[entry] or 0.0)
        marks = {line.name: line.sides["Fidelity"][column].mark for line in lines}
        best = {"": None} if SCORES[name].diagnostic else {"best": order[0], "second": order[1]}
        for mark, expected in best.items():
            if mark:
                assert marks[expected or ""] == mark
        assert not any(mark for entry, mark in marks.items() if entry.startswith("oracle"))


def test_models_have_the_order_of_the_table_with_seed_42_first(built: Built) -> None:
    board = leaderboard([result for result, _ in built.rows.values()])[0]
    models = board_of(built, made_up.GRID)["models"]
    assert list(dict.fromkeys(m["name"] for m in models)) == [e.name for e in board.entries]
    seeds = [m["seed"] for m in models if m["name"] == "powerforge"]
    assert seeds == [42, 22]


def test_the_site_begins_where_risk_comes_and_goes(tmp_path: Path) -> None:
    """Not on the first grid, nor on one whose buses are always outside the band."""
    outside = {
        "activsg500": np.zeros(30),
        "pegase1354": np.repeat([1.0, 0.0], 15),
        "polish2383": np.repeat([0.25, 0.0], 15),
        "pegase2869": np.repeat([0.125, 0.0], 15),
    }
    for grid, share in outside.items():
        arrays = made_up.sidecar(0, 4, risk=False, shown=False)
        arrays["by_bus/violation"] = share.astype(np.float32)
        write_result(row(grid=grid, edition="opsd"), arrays, tmp_path / "results")
    site = build_site([tmp_path / "results"], tmp_path / "out")
    facts = (tmp_path / "out/data/site.js").read_text()
    assert json.loads(facts[facts.index("{") : facts.rindex("}") + 1])["start"] == "polish2383-opsd"
    boards = re.findall(r'<div class="board" id="board-(\S+)" data-board="\S+"( hidden)?>',
                        site.index.read_text())  # fmt: skip
    assert [key for key, hidden in boards if not hidden] == ["polish2383-opsd"]


def test_the_leaderboard_of_the_site_is_in_order_of_crps(built: Built) -> None:
    board = leaderboard([result for result, _ in built.rows.values()])[0]
    column = SIDES["Fidelity"].index("crps")
    for group in table_groups(board, {}):
        values = [line.sides["Fidelity"][column].value or 0.0 for line in group.lines
                  if line.kind != "oracle"]  # fmt: skip
        assert values == sorted(values)


def test_a_drawing_of_another_grid_is_not_shown(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = drawing.draw(built.store.grid)
    for shown, ids in ((True, picture.bus_id), (False, picture.bus_id + 1)):
        drawn = replace(picture, bus_id=ids)
        monkeypatch.setattr(drawing, "draw", lambda grid, drawn=drawn: drawn)
        tree = built.results / "powerphase-day-ahead/exact"
        site = build_site([tree], tmp_path / "out", data=[built.store.path])
        assert ("data/ieee14-exact/network.js" in site.sizes) == shown


def test_the_table_separates_models_references_variants_and_the_paper(built: Built) -> None:
    shown = [name for names in SIDES.values() for name in names]
    assert sorted(shown) == sorted({*COLUMNS, *GROUPS["lines"]})
    board = leaderboard([result for result, _ in built.rows.values()])[0]
    grouped = {group.key: [line.name for line in group.lines] for group in table_groups(board, {})}
    assert set(grouped["models"]) == {"powerforge", "ets"}
    assert set(grouped["references"]) == {"last-7-days", "oracle"}
    assert grouped["variants"] == ["ets+stale"]
    assert "tactis-2" in grouped["paper"]


def test_lines_have_columns_unless_no_row_has_their_scores(tmp_path: Path) -> None:
    for rows, has_lines in (
        ([row(model="ets")], True),
        ([row(model="ets"), Result.from_json(json.dumps(first_schema()), "row.json")], True),
        ([Result.from_json(json.dumps(first_schema()), "row.json")], False),
    ):
        (tree := tmp_path / f"{len(rows)}-{has_lines}").mkdir()
        for result in rows:
            write_result(result, {}, tree).with_suffix(".npz").unlink()
        page = build_site([tree], tree / "site").index.read_text()
        shown = re.findall(r'data-sort="([\w.]+)"', page)
        assert {name for name in GROUPS["lines"] if name in shown} == (
            set(GROUPS["lines"]) if has_lines else set()
        )
        lines = [line for group in table_groups(leaderboard(rows)[0], {}) for line in group.lines]
        assert {"Lines" in line.sides for line in lines} == {has_lines}
        width = int(re.findall(r'<th scope="rowgroup" colspan="(\d+)">', page)[0])
        assert width == len(shown)


def test_branches_are_right_with_more_buses_than_sixteen_bits_can_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, pairs = 70_000, np.array([[0, 69_999], [65_535, 65_536]])
    origin = np.zeros(n, "f4")
    big = drawing.Drawing("big", np.arange(n), origin, origin, pairs)
    monkeypatch.setattr(drawing, "drawing_of", lambda grid: big)
    board = leaderboard([row(grid="big")], paper=False)[0]
    pages = board_pages.BoardPages(Folder(tmp_path / "site"), "big", board, None)
    pages._set_bus_ids(n)
    assert pages._write_network() is not None
    text = (tmp_path / "site/data/big/network.js").read_text()
    _, value = json.loads(text.removeprefix("powerphase.put(...").removesuffix(");\n"))
    np.testing.assert_array_equal(unpack(value["branches"]), pairs)


def test_a_sidecar_without_a_required_array_raises(tmp_path: Path) -> None:
    write_result(row(), {}, tmp_path / "results")
    with pytest.raises(ReportError, match=r"powerforge-42\.npz.*'by_bus/brier'"):
        build_site([tmp_path / "results"], tmp_path / "site")
    arrays = made_up.sidecar(0, 4, risk=True) | made_up.lines(3)
    for name in (RATING, LINE_PEAK):
        lacking = {key: array for key, array in arrays.items() if key != name}
        write_result(row(), lacking, tmp_path / "results")
        with pytest.raises(ReportError, match=name):
            build_site([tmp_path / "results"], tmp_path / "site")


def test_a_ranked_smaller_budget_is_listed_with_the_models() -> None:
    rows = [row(model="deepar", variant="short"), row(model="ets", draw=1)]
    rows += [row(model="ets", variant="short", draw=2)]
    board = leaderboard(rows, paper=False)[0]
    names = {group.key: {line.name for line in group.lines} for group in table_groups(board, {})}
    assert names == {"models": {"deepar+short", "ets"}, "variants": {"ets+short"}}


def test_all_numbers_of_a_column_have_equally_many_decimals(built: Built) -> None:
    board = leaderboard([result for result, _ in built.rows.values()])[0]
    groups = {group.key: group.lines for group in table_groups(board, {})}
    ours = [line for key, lines in groups.items() if key != "paper" for line in lines]
    for lines, expected in ((ours, None), (groups["paper"], 1)):
        for cells in zip(*(chain(*line.sides.values()) for line in lines), strict=True):
            texts = [text for cell in cells for text in (cell.text, cell.deviation)]
            numbers = [text for text in texts if text not in ("", "0", MISSING)]
            assert not any("e" in text for text in numbers)
            decimals = {len(text.partition(".")[2]) for text in numbers}
            assert len(decimals) <= 1
            assert expected is None or decimals <= {expected}


def test_a_column_shows_three_digits_of_its_smallest_number_that_matters() -> None:
    assert decimals_of([1.3, 23.4, 145.0]) == 2
    assert decimals_of([0.0122, 0.6]) == 4
    assert decimals_of([0.0, 4e-6, 22.0, 183.0]) == 1  # 4e-6 is negligible
    assert decimals_of([0.0, 0.0]) == 2
    assert decimals_of([]) == 2


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [(1.305, 2, "1.30"), (0.0, 2, "0"), (4e-6, 2, "< 0.01"), (371.4, 0, "371"), (0.2, 0, "< 1")],
)
def test_zero_differs_from_numbers_too_small_to_show(
    value: float, decimals: int, text: str
) -> None:
    assert format_number(value, decimals) == text


def test_entries_indistinguishable_from_the_best_are_marked() -> None:
    rows = [row(model=f"model-{k}", draw=k) for k in range(4)]
    board = leaderboard(rows, paper=False)[0]
    lines = [line for group in table_groups(board, {}) for line in group.lines]
    marked = [
        (name, line.name)
        for side, names in SIDES.items()
        for k, name in enumerate(names)
        for line in lines
        if line.sides[side][k].like_best
    ]
    shown = (*COLUMNS, *GROUPS["lines"])
    expected = {(name, model) for name in shown for model in like_the_best(board, name)}
    assert set(marked) == expected
    assert expected


def test_every_score_is_explained_by_its_question(built: Built) -> None:
    page = unescape(built.site.index.read_text())
    listed = page[page.index('id="meanings"') : page.index("</details>")]
    for score in SCORES.values():
        assert f"<dt>{score.title}</dt><dd>{score.question} [{score.unit}]" in listed
    assert all(SCORES[name].title in RANK for name in RANKED)


def test_contrast_follows_wcag() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#0072b2", "#0072b2") == 1


def test_models_are_distinct_and_legible_in_both_themes() -> None:
    looks = page_looks([*MODELS, "mine", "yours", "ets+stale", "mine+short"])
    assert set(looks) == {*MODELS, "mine", "yours"}
    for look in looks.values():
        assert contrast(look["light"], LIGHT) >= 3
        assert contrast(look["dark"], DARK) >= 3
    for kind in ("color", "marker", "light", "dark"):
        assert len({look[kind] for look in looks.values()}) == len(looks)


def variables(theme: str) -> dict[str, str]:
    """The named colours of the style sheet, in a theme."""
    sheet = (files("powerphase.report.site") / "assets/style.css").read_text()
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", sheet)[:2]
    values = dict(re.findall(r"--([\w-]+): (#\w{6});", light))
    return values | dict(re.findall(r"--([\w-]+): (#\w{6});", dark)) if theme == "dark" else values


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_legible_on_its_background(theme: str) -> None:
    colour = variables(theme)
    assert colour["panel"] == (DARK if theme == "dark" else LIGHT)
    grounds = ("paper", "panel", "accent-soft", "rule")
    pairs = [(text, ground) for text in ("ink", "soft", "faint") for ground in grounds]
    pairs += [("accent", ground) for ground in ("paper", "panel", "accent-soft")]
    pairs += [(text, f"{mark}-soft") for mark in ("best", "second") for text in (mark, "faint")]
    pairs += [("accent", "best-soft"), ("accent", "second-soft"), ("panel", "limit")]
    weak = {pair: contrast(*(colour[name] for name in pair)) for pair in pairs}
    assert {pair: ratio for pair, ratio in weak.items() if ratio < 4.5} == {}
    graphics = [("focus", "paper"), ("focus", "panel"), ("limit", "panel"), ("truth", "panel")]
    assert all(contrast(colour[graphic], colour[ground]) >= 3 for graphic, ground in graphics)


def test_a_mean_cost_is_shown_with_all_hardware_of_its_seeds(tmp_path: Path) -> None:
    for seed, hardware in ((1, "NVIDIA H200"), (2, "Some Processor, 2 cores"), (3, "NVIDIA H200")):
        cost = {**row().cost, "hardware": hardware}
        result = row(model="ets", seed=seed, draw=seed, cost=cost)
        write_result(result, {}, tmp_path / "rows").with_suffix(".npz").unlink()
    page = build_site([tmp_path / "rows"], tmp_path / "site").index.read_text()
    assert page.count("NVIDIA H200 and Some Processor, 2 cores") == 1


def test_another_task_has_a_separate_board_and_address(tmp_path: Path) -> None:
    for task in ("powerphase-day-ahead", "powerphase-day-ahead-all"):
        file = write_result(row(task=task), {}, tmp_path / "rows")
        file.with_suffix(".npz").unlink()
    page = build_site([tmp_path / "rows"], tmp_path / "site").index.read_text()
    edition, key = row().edition, f"{row().grid}-{row().edition}"
    for address, legend in (("", ""), ("-powerphase-day-ahead-all", ", powerphase-day-ahead-all")):
        assert page.count(f'value="{key}{address}"') == 1
        assert page.count(f"<legend>{edition}{legend}</legend>") == 1


def test_durations_have_units_of_their_size() -> None:
    texts = [duration(seconds) for seconds in (0.25, 12.34, 600.0, 7200.0)]
    assert texts == ["250 ms", "12.3 s", "10 min", "2.0 h"]


def test_bands_of_a_forecast_file_are_accurate_to_half_a_level(built: Built) -> None:
    model = next(m for m in board_of(built, "ieee14")["models"] if m["name"] == SCRIPT)
    full = model["whole"]
    assert (model["file"], full["variables"], full["windows"]) == (None, ["V"], [0, 4, 9])
    part = value_of(built, f"{full['file']}-0")
    low, high = unpack(part["low"])[:, 0], unpack(part["high"])[:, 0]
    levels = unpack(part["steps"])[:, 0].cumsum(axis=-1, dtype=np.uint8)  # buses, W, L, H
    span = (high - low)[..., None, None]
    shown = low[..., None, None] + levels / 252 * span
    for w, window in enumerate(full["windows"]):
        values, weights = built.scripted.read(window, slice(None))
        for bus in (0, 13):
            channel = KINDS * bus + V
            wide = np.broadcast_to(weights[:, channel, None], values.shape[:2])
            exact = both_ways(values[..., channel], wide, LEVELS)
            assert abs(shown[bus, w] - exact).max() <= span[bus, w, 0, 0] / 252 / 2 + 1e-6


def test_risks_of_a_forecast_file_are_shares_of_the_weight(built: Built) -> None:
    model = next(m for m in board_of(built, "ieee14")["models"] if m["name"] == SCRIPT)
    risk = value_of(built, f"{model['whole']['file']}-risk")
    probability = unpack(risk["probability"]) / RISK_LEVELS
    low, high = NORMAL_BAND_PU
    for w, window in enumerate(risk["window"]):
        values, weights = built.scripted.read(window, slice(None))
        voltage = values[..., V::KINDS]
        outside = (voltage < low) | (voltage > high)
        expected = np.einsum("mhn,mn->nh", outside, weights[:, V::KINDS])
        assert abs(probability[w] - expected).max() <= 0.5 / RISK_LEVELS + 1e-6
    assert 0 < probability.mean() < 1


def test_the_truth_at_every_bus_is_that_of_the_data_set(built: Built) -> None:
    model = next(m for m in board_of(built, "ieee14")["models"] if m["name"] == SCRIPT)
    part = value_of(built, f"{model['whole']['truth']}-0")
    low, high = unpack(part["low"])[:, 0], unpack(part["high"])[:, 0]
    levels = unpack(part["steps"])[:, 0].cumsum(axis=-1, dtype=np.uint8)
    shown = low[..., None] + levels / 252 * (high - low)[..., None]
    for w, window in enumerate((0, 4, 9)):
        start = built.scripted.header.windows[window]
        expected = built.store.read(start[:10], variable="V").T
        assert abs(shown[:, w] - expected).max() <= (high - low).max() / 504 + 1e-6


def test_the_scale_of_powers_is_that_of_the_task_if_known(built: Built) -> None:
    assert board_of(built, "ieee14")["scale"] == pytest.approx(built.scripted.header.scale)
    assert board_of(built, made_up.GRID)["scale"] is None


def test_the_data_page_shows_the_facts_of_the_manifest(built: Built) -> None:
    page = built.site.index.read_text()
    assert built.store.manifest.fingerprint in page
    assert built.store.manifest.attribution[-1] in unescape(page)
    assert "verdict good" in page
    facts = value_of(built, "site")["archetypes"][built.store.manifest.fingerprint]
    store = built.store
    expected = load_shapes(Signals(store.time, store.signals_mw, "e", "a"))[: 3 * 96].T
    np.testing.assert_allclose(facts["shapes"], expected, atol=1e-4)
    assert sum(facts["buses"]) + facts["without"] == 14


def test_the_page_names_the_command_that_makes_a_missing_data_set(built: Built) -> None:
    page = built.site.index.read_text()
    assert f"powerphase generate {made_up.GRID}" in page


def test_texts_of_results_are_escaped_in_the_page(built: Built) -> None:
    page = built.site.index.read_text()
    assert "window.stolen" in page  # as the hardware of a row
    assert "<script>window" not in page


def test_the_first_bus_is_outside_the_band_about_half_of_the_time() -> None:
    voltage = np.full((2, 96, 4), 1.0)
    voltage[..., 1] = 0.9
    assert first_bus(voltage[..., [0, 2, 3]]) == 0  # none leaves the band, all tie
    voltage[0, :, 2] = 1.06
    voltage[0, :3, 3] = 1.06
    assert first_bus(voltage) == 2
    still = np.full((1, 96, 3), 1.0)
    still[..., 2] = 1.04
    assert first_bus(still) == 2


def test_a_site_replaces_a_site_but_nothing_else(built: Built, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rows = built.results / "powerphase-day-ahead/synthetic"
    build_site([rows], folder)
    (folder / "data/stale.js").write_text("old")
    build_site([rows], folder)
    assert not (folder / "data/stale.js").exists()
    (folder / "index.html").write_text("<p>someone's page</p>")
    with pytest.raises(ReportError, match=str(folder)):
        build_site([rows], folder)
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(ReportError, match=str(file)):
        build_site([rows], file)


def test_an_interrupted_site_can_be_written_again(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = built.results / "powerphase-day-ahead/synthetic"

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(board_pages, "read_sidecar", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_site([rows], tmp_path / "out")
    assert SCORES["crps"].title not in (tmp_path / "out/index.html").read_text()
    site = build_site([rows], tmp_path / "out")
    assert SCORES["crps"].title in site.index.read_text()


def test_a_forecast_without_rows_of_its_data_raises(built: Built, tmp_path: Path) -> None:
    rows = built.results / "powerphase-day-ahead/synthetic"
    with pytest.raises(ReportError, match=f"{built.scripted.path}.*ieee14"):
        build_site([rows], tmp_path / "out", forecasts=[built.scripted.path])


@pytest.mark.parametrize("with_data", [True, False])
@pytest.mark.parametrize("change", ["scale", "windows", "nan", "swap"])
def test_a_forecast_that_cannot_be_of_the_board_is_not_drawn(
    built: Built, tmp_path: Path, change: str, with_data: bool
) -> None:
    rows = next(iter(built.results.glob("powerphase-day-ahead/exact")))
    path = Path(shutil.copytree(built.scripted.path, tmp_path / "forecast"))
    header = built.scripted.header
    if change == "scale":
        header = replace(header, scale=[2 * header.scale[0], header.scale[1]])
    elif change == "windows":
        header = replace(header, windows=["2015-01-01T00:00", *header.windows[1:]])
    else:
        shown = chunk_file("values", 0, 0)
        shutil.copyfile(path / chunk_file("values", 1, 0), path / shown)
    if change != "swap":
        shutil.rmtree(path)
        with forecast_writer(path, header) as writer:
            for window in range(len(header.windows)):
                values, weights = built.scripted.read(window, slice(None))
                values[0, 5, 3] = np.nan if change == "nan" else 1.0
                writer.write(window, slice(None), values, weights)
                writer.finish_window(window)
            writer.close({})
    forecasts = [built.scripted.path, path]  # without data, the second is compared with the first
    with pytest.raises(PowerphaseError, match=str(path)):
        build_site(
            [rows],
            tmp_path / "out",
            forecasts=forecasts,
            data=[built.store.path] if with_data else [],
        )


def test_a_data_set_without_rows_raises(built: Built, tmp_path: Path) -> None:
    rows = built.results / "powerphase-day-ahead/synthetic"
    with pytest.raises(ReportError, match=f"{built.store.path}.*ieee14 exact"):
        build_site([rows], tmp_path / "out", data=[built.store.path])


def test_an_unknown_variable_raises_before_anything_is_written(
    built: Built, tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match="'W'"):
        build_site([built.results], tmp_path / "out", variables=["W"])
    assert not (tmp_path / "out").exists()


def test_a_row_without_a_sidecar_is_listed(built: Built, tmp_path: Path) -> None:
    tree = Path(shutil.copytree(built.results, tmp_path / "results"))
    for file in tree.rglob("*.npz"):
        file.unlink()
    site = build_site([tree], tmp_path / "out")
    text = (site.index.parent / "data/site.js").read_text()
    assert text.count('"file":null') == len(read_results([tree]))


def test_bus_numbers_without_a_drawing_are_those_of_the_case_file(tmp_path: Path) -> None:
    grid = "ieee14"
    arrays = made_up.sidecar(0, 3, risk=False)
    arrays = {n: a[:14] if n.startswith("by_bus/") else a for n, a in arrays.items()}
    write_result(row(grid=grid), arrays, tmp_path / "results")
    site = build_site([tmp_path / "results"], tmp_path / "out")
    text = (site.index.parent / f"data/{grid}-synthetic/buses.js").read_text()
    ids = unpack(json.loads(text[18:-3])[1]["bus_id"])
    assert list(ids) == list(range(1, 15))


def test_the_command_writes_a_site_and_prints_its_path(built: Built, tmp_path: Path) -> None:
    arguments = [built.results, "--data", built.store.path, "--verify", "--out", tmp_path / "site"]
    done = CliRunner().invoke(cli.app, ["report", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert str(tmp_path / "site/index.html") in done.stdout.replace("\n", "")
    assert "verdict good" in (tmp_path / "site/index.html").read_text()


@pytest.mark.parametrize(
    "task", ["powerphase-day-ahead-60-minute-steps", "powerphase-day-ahead-origin-1200-all"]
)
def test_rows_that_its_axes_do_not_fit_are_refused(task: str, tmp_path: Path) -> None:
    write_result(row(task=task), {}, tmp_path / "rows")
    with pytest.raises(ReportError, match=task):
        build_site([tmp_path / "rows"], tmp_path / "site")
    assert not (tmp_path / "site").exists()
