"""The site in a real browser, opened from a file: pages draw the data of rows and sidecars."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from powerphase.axes import VARIABLES, V
from powerphase.records import (
    EXCURSION_UNIT_PU,
    GROUPS,
    LINE_BUSES,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    NORMAL_BAND_PU,
    RISK_LEVELS,
    SCORES,
    expand,
)
from powerphase.report import leaderboard
from tests.report.site import made_up
from tests.report.site.conftest import SCRIPT, Built, both_ways

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run", "--hide-scrollbars"),
    "--disable-dev-shm-usage",
)
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
PAGES = ("leaderboard", "forecasts", "safety", "grid", "data")
GRID = f"{made_up.GRID}-synthetic"

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="needs chromium and chromedriver (Debian: apt-get install chromium chromium-driver)",
)


class Page:
    """The site in a browser."""

    def __init__(self, driver: webdriver.Chrome, index: Path) -> None:
        self.driver, self.index = driver, index

    def open(self, address: str) -> None:
        """Load the page at an address after the #."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.index.as_uri()}#{address}")
        self.until("window.powerphase && powerphase.ready")

    def js(self, code: str, *arguments: object) -> Any:
        return self.driver.execute_script(f"return {code}", *arguments)

    def until(self, code: str) -> Any:
        """Wait until an expression is true."""
        wait = WebDriverWait(self.driver, 10, poll_frequency=0.03)
        return wait.until(lambda _: self.js(code), message=code)

    def element(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def names(self, group: str = "") -> list[str]:
        """The models that the table shows, from top to bottom."""
        body = f'tbody[data-group="{group}"]' if group else "tbody"
        return list(
            self.js(
                f"[...document.querySelectorAll('#board-{GRID} {body} tr.entry')]"
                ".filter((row) => row.offsetParent).map((row) => row.dataset.name)"
            )
        )

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", metrics | {"mobile": width < 600}
        )


def log(driver: webdriver.Chrome, kind: str) -> list[dict[str, Any]]:
    """The entries of a log since the last call."""
    return list(driver.get_log(kind))  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER or ""
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, built: Built) -> Iterator[Page]:
    page = Page(driver, built.site.index)
    page.size(1280, 900)
    log(driver, "browser")
    yield page
    page.js("localStorage.clear()")
    problems = [entry for entry in log(driver, "browser") if entry["level"] != "INFO"]
    assert problems == []


def test_the_table_can_be_sorted_by_click_and_by_keyboard(page: Page, built: Built) -> None:
    page.open(f"leaderboard?board={GRID}")
    entries = leaderboard([result for result, _ in built.rows.values()])[0].entries
    models = [e for e in entries if e.kind == "model" and not e.is_variant]
    by_crps = [e.name for e in sorted(models, key=lambda e: e.mean["crps"] or 0.0)]
    assert page.names("models") == by_crps
    page.element(f"#board-{GRID} [data-sort=crps]").click()
    assert page.names("models") == by_crps[::-1]
    cell = f"#board-{GRID} tr[data-name=ets] td.fidelity"
    assert float(page.js(f"document.querySelector('{cell}').dataset.value")) == entries_mean(
        built, "ets", "crps"
    )
    page.element(f"#board-{GRID} [data-sort=crps]").send_keys(Keys.ENTER)
    assert page.names("models") == by_crps
    heads = page.js("[...arguments[0].closest('tr').cells].map((c) => c.ariaSort)",
                    page.element(f"#board-{GRID} [data-sort=crps]"))  # fmt: skip
    assert heads.count("ascending") == 1
    assert heads.count("none") == len(heads) - 1
    paper_rows = page.names("paper")
    page.element(f"#board-{GRID} [data-sort=name]").click()
    assert page.names("paper") == sorted(paper_rows)
    page.element(f"#board-{GRID} [data-sort=brier]").click()  # the paper has none
    assert set(page.names("paper")) == set(paper_rows)


def test_the_table_can_be_filtered_by_text_and_kind(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    assert {"powerforge", "ets", "oracle", "tactis-2"} <= set(page.names())
    assert "ets+stale" not in page.names()
    page.element("#board-filter input[value=variants] + span").click()
    page.element("#filter").send_keys("ets")
    assert page.names() == ["ets", "ets+stale", "ets"]
    page.element("#board-filter input[value=paper] + span").click()
    assert page.names() == ["ets", "ets+stale"]
    assert [p["name"] for p in page.js("powerphase.drawn.scatter")] == ["ets", "ets+stale"]
    page.element("#filter").send_keys("xyz")
    assert page.names() == []
    assert page.element(f"#board-{GRID} .none").is_displayed()


def test_the_scatter_shows_the_means_of_the_chosen_scores(page: Page, built: Built) -> None:
    page.open(f"leaderboard?board={GRID}&x=mse&y=twcrps")
    entries = leaderboard([result for result, _ in built.rows.values()])[0].entries
    expected = {e.name: (e.mean["mse"], e.mean["twcrps"]) for e in entries if not e.is_variant}
    points = page.js(
        "[...document.querySelectorAll('#scatter .point')].map((p) => ({...p.dataset, "
        "x: +p.dataset.x, y: +p.dataset.y, box: p.querySelector('.dot').getBoundingClientRect()}))"
    )
    assert {p["name"]: (p["x"], p["y"]) for p in points} == expected
    left = sorted(points, key=lambda p: p["box"]["left"] + p["box"]["width"] / 2)
    assert [p["x"] for p in left] == sorted(p["x"] for p in points)
    Select(page.element("#scatter-x")).select_by_value("crps")
    drawn = {p["name"]: p["x"] for p in page.js("powerphase.drawn.scatter")}
    assert drawn["powerforge"] == pytest.approx(entries_mean(built, "powerforge", "crps"))


def entries_mean(built: Built, name: str, score: str) -> float:
    return float(np.mean([r.scores[score] for r, _ in built.rows.values() if r.name == name]))


def test_scores_are_listed_by_group(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    listed = page.js(
        "[...document.querySelectorAll('#scatter-y optgroup')]"
        ".map((g) => [...g.children].map((o) => o.value))"
    )
    assert {frozenset(names) for names in listed} == set(map(frozenset, GROUPS.values()))


def test_names_of_points_do_not_overlap(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}&x=crps&y=safety_mbrier")
    page.element("#board-filter input[value=variants] + span").click()
    for width in (1280, 390):
        page.size(width, 900)
        page.until(f"document.querySelector('#scatter svg').clientWidth < {width}")
        boxes = page.js(
            "[...document.querySelectorAll('#scatter .point text, #scatter .point .dot')]"
            ".map((t) => [t.tagName, t.textContent, t.getBoundingClientRect()])"
        )
        names = [text for tag, text, _ in boxes if tag == "text"]
        assert {"powerforge", "ets+stale", "oracle", "ets (paper)"} <= set(names)
        for k, (tag, text, box) in enumerate(boxes):
            for other_tag, other_text, other in boxes[:k]:
                if "text" in (tag, other_tag):
                    wide = min(box["right"], other["right"]) - max(box["left"], other["left"])
                    high = min(box["bottom"], other["bottom"]) - max(box["top"], other["top"])
                    assert min(wide, high) < 3, (text, other_text)


def show_again(page: Page) -> None:
    """Draw the leaderboard again, after its data were changed."""
    board = f"powerphase.site.boards.find((b) => b.key === '{GRID}')"
    page.js(f"powerphase.pages.leaderboard.show({board})")


def test_an_axis_with_a_wide_range_is_logarithmic_and_shows_zeros(
    page: Page,
) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.js(
        "powerphase.site.boards.forEach((b) => b.entries.forEach((e, k) => "
        "(e.mean.brier = [0, 1e-6, 0.1][k % 3])))"
    )
    show_again(page)
    assert page.element("#scatter-log").is_selected()
    axes = page.js("[...document.querySelectorAll('#scatter .axis text')].map((t) => t.innerHTML)")
    assert {"0", "1e-5"} <= set(axes)
    page.element("#scatter-log + span").click()
    assert "1e-5" not in page.js("document.querySelector('#scatter .axis').textContent")
    assert "log=0" in page.js("location.hash")


def test_the_chart_shows_no_safety_score_if_no_voltage_leaves_its_band(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    changes = {
        "b.truth": "brier",
        "b.truth.violations = 0": "overload_brier",
        "b.entries[0].mean.overload_brier = null": "energy",
        "[b.entries[0].mean.overload_brier, b.truth.overloads] = [0.5, 0]": "energy",
    }
    for change, score in changes.items():
        page.js(f"powerphase.site.boards.forEach((b) => ({change}))")
        show_again(page)
        assert page.js("document.querySelector('#scatter-y').value") == score
    title = page.element("#scatter-title").text.lower()
    assert all(SCORES[name].title.lower() in title for name in ("energy", "crps"))
    note = page.element("#scatter-note").text
    Select(page.element("#scatter-y")).select_by_value("brier")
    assert page.element("#scatter-note").text != note


def test_the_note_names_the_better_side_only_for_scores_that_order_forecasts(page: Page) -> None:
    for x, y, better in (
        ("crps", "brier", {"down", "left"}),
        ("coverage_80", "brier", {"down"}),
        ("crps", "coverage_80", {"left"}),
        ("coverage_80", "necv", set()),
    ):
        page.open(f"leaderboard?board={GRID}&x={x}&y={y}")
        words = re.findall(r"\w+", page.element("#scatter-note").text.lower())
        assert {"down", "left"} & set(words) == better


def shade(page: Page, selector: str) -> str:
    """The fill colour of an element."""
    return str(page.until(
        f"(document.querySelector({selector!r}) || 0) && "
        f"getComputedStyle(document.querySelector({selector!r})).fill"
    ))  # fmt: skip


@pytest.mark.parametrize("dark", [False, True])
def test_a_model_has_one_colour_and_one_marker_on_all_pages(page: Page, dark: bool) -> None:
    page.size(1280, 900, dark=dark)
    page.open(f"leaderboard?board={GRID}")
    colours = {
        name: shade(page, f"#board-{GRID} tbody:not([data-group=paper]) tr[data-name={name}] .dot")
        for name in ("powerforge", "ets", "last-7-days", "oracle")
    }
    assert len(set(colours.values())) == 4
    for name, colour in colours.items():
        assert shade(page, f"#scatter .point[data-name={name}] .dot:not(.pale)") == colour
    ids = {f"{name}-{0 if name == 'last-7-days' else 42}": name for name in colours}
    page.open(f"safety?board={GRID}&models={','.join(ids)}")
    for model, name in ids.items():
        assert shade(page, f"#safety-models [data-model={model}] .dot") == colours[name]
        assert shade(page, f"#survival .series[data-model={model}] .dot") == colours[name]
    page.open(f"forecasts?board={GRID}&models=ets-42,oracle-42")
    fans_drawn(page, 6)
    for number, name in enumerate(("ets", "oracle")):
        row = f"document.querySelectorAll('.fan-row')[{number}]"
        assert page.js(f"getComputedStyle({row}.querySelector('.dot')).fill") == colours[name]
        assert page.js(f"getComputedStyle({row}.querySelector('.median')).stroke") == colours[name]
    page.open(f"grid?board={GRID}&model=ets-42")
    assert shade(page, "#grid-look .dot") == colours["ets"]


def test_seeds_of_a_model_differ_by_their_dashes(page: Page) -> None:
    page.open(f"safety?board={GRID}&models=powerforge-42,powerforge-22,ets-42")
    page.until("document.querySelectorAll('#survival .series').length === 3")
    lines = page.js(
        "[...document.querySelectorAll('#survival .series')].map((g) => [g.dataset.model, "
        "getComputedStyle(g.querySelector('.line')).stroke, "
        "g.querySelector('.line').getAttribute('stroke-dasharray')])"
    )
    assert len({(stroke, dashes) for _, stroke, dashes in lines}) == 3
    assert len({stroke for model, stroke, _ in lines if model.startswith("powerforge")}) == 1
    assert page.element("#safety-models details").get_attribute("open") is not None
    page.element("#safety-models input[value=ets-42]").send_keys("")  # focus only
    page.js("document.querySelector('#safety-models input[value=ets-42]').focus()")
    dim = page.js(
        "[...document.querySelectorAll('#survival .series.dim')].map((g) => g.dataset.model)"
    )
    assert set(dim) == {"powerforge-42", "powerforge-22"}
    page.js("document.activeElement.blur()")
    assert page.js("document.querySelectorAll('.series.dim').length") == 0


def test_models_with_false_alarms_come_first_if_no_voltage_leaves_its_band(
    page: Page,
) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.js(
        "powerphase.site.boards.forEach((b) => { b.truth.violations = 0; "
        "b.entries.forEach((e) => (e.mean.safety_mbrier = Number(e.name === 'oracle'))); })"
    )
    page.element("#pages a[data-page=safety]").click()
    page.until("!powerphase.loading && document.querySelector('#survival .series')")
    assert page.js("document.querySelector('#safety-models label').dataset.model") == "oracle-42"
    assert page.element("#safety-none").is_displayed()


def test_keyboard_users_can_read_what_scores_and_marks_mean(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.element(f"#board-{GRID} [data-sort=name]").send_keys(Keys.TAB)
    assert page.js("document.activeElement.dataset.sort") == "crps"
    assert SCORES["crps"].question in page.element("#tip").text
    page.js("document.activeElement.blur()")
    assert not page.element("#tip").is_displayed()
    assert not page.element("#meanings dl").is_displayed()
    page.element("#meanings summary").send_keys(Keys.ENTER)
    listed = page.element("#meanings dl").text
    assert all(score.question in listed for score in SCORES.values())
    marks = page.js(f"document.querySelectorAll('#board-{GRID} td .like').length")
    assert marks > 0
    assert "≈" in page.element(f"#board-{GRID} .key").text


def test_columns_of_the_worst_buses_have_one_notation(page: Page) -> None:
    page.open(f"safety?board={GRID}&models=ets-42")
    page.until("document.querySelectorAll('#worst-table tbody tr').length === 15")
    rows = page.js(
        "[...document.querySelectorAll('#worst-table tbody tr')].map((r) => "
        "[...r.cells].slice(1, 3).map((c) => c.textContent))"
    )
    for column in zip(*rows, strict=True):
        assert len({len(text.partition(".")[2]) for text in column}) == 1
    caption = page.js("document.querySelector('#worst-table caption').textContent")
    assert "ets" in caption
    assert "Safety_mBrier" in caption


def test_tables_and_charts_have_texts_for_screen_readers(page: Page) -> None:
    page.open(f"safety?board={GRID}&models=ets-42")
    page.until("document.querySelector('#over-day svg')")
    assert page.js(
        "[...document.querySelectorAll('table')].filter((t) => !t.caption).map((t) => t.id)"
    ) == []  # fmt: skip
    for name in ("survival", "worst", "reliability", "over-day"):
        label = page.element(f"#{name} svg").get_attribute("aria-label") or ""
        assert "ets 0." in label or re.search(r"ets [\d.]+ %", label), label


def fan(arrays: made_up.Arrays, window: int, bus: int, kind: int) -> NDArray[np.float64]:
    """The quantiles of the scenarios in a sidecar, by NumPy."""
    values = expand(arrays)["shown/scenario"][window, :, :, bus, kind]
    weights = np.broadcast_to(arrays["shown/weight"][window, :, bus, kind, None], values.shape)
    return both_ways(values, weights, LEVELS)


def fans_drawn(page: Page, count: int) -> list[dict[str, Any]]:
    page.until(f"powerphase.drawn.fans && powerphase.drawn.fans.length === {count}")
    return list(page.js("powerphase.drawn.fans"))


def test_the_first_view_is_a_voltage_that_leaves_its_band_in_three_windows(
    page: Page, built: Built
) -> None:
    page.open("forecasts")
    drawn = fans_drawn(page, 9)
    assert [(f["model"].rsplit("-", 1)[0], f["window"]) for f in drawn[::3]] == [
        (name, 0) for name in dict.fromkeys(f["model"].rsplit("-", 1)[0] for f in drawn)
    ]
    assert page.element(".fan-title").text.startswith("Bus 117, V")
    for f in drawn:
        expected = fan(built.rows[f["model"]][1], f["window"], 3, V)
        np.testing.assert_allclose(f["levels"], expected, rtol=1e-6)
        truth = expand(built.rows[f["model"]][1])["shown/target"][f["window"], :, 3, V]
        np.testing.assert_allclose(f["truth"], truth, rtol=1e-6)
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#fans line.limit")) >= 9


def test_bus_variable_window_and_models_can_be_chosen(page: Page, built: Built) -> None:
    page.open(f"forecasts?board={GRID}")
    fans_drawn(page, 9)
    Select(page.element("#model-0")).select_by_value("ets-42")
    Select(page.element("#model-1")).select_by_value("")
    Select(page.element("#model-2")).select_by_value("")
    fans_drawn(page, 3)
    page.element("#bus-search").send_keys("130")
    page.until("powerphase.drawn.buses.length === 1")
    Select(page.element("#bus-list")).select_by_value("130")
    page.element("#variable input[value=Q] + span").click()
    Select(page.element("#window")).select_by_value("1")
    (drawn,) = fans_drawn(page, 1)
    expected = fan(built.rows["ets-42"][1], 1, 5, VARIABLES.index("Q"))
    np.testing.assert_allclose(drawn["levels"], expected, rtol=1e-6, atol=1e-8)
    assert drawn["scenarios"] == built.rows["ets-42"][1]["shown/weight"].shape[1]
    address = page.js("location.hash")
    page.open(address[1:])  # a link reproduces the view
    (again,) = fans_drawn(page, 1)
    assert again == drawn


def test_buses_are_ordered_by_risk_or_by_error(page: Page, built: Built) -> None:
    arrays = built.rows["powerforge-42"][1]  # it has no risks, so only buses with scenarios

    def order(values: NDArray[Any]) -> list[int]:
        shown = arrays["shown/bus_id"] - 101
        return [int(101 + shown[k]) for k in np.argsort(-values[shown], kind="stable")]

    page.open(f"forecasts?board={GRID}&models=powerforge-42")
    page.until("(powerphase.drawn.buses || []).length === 6")
    assert page.js("powerphase.drawn.buses") == order(arrays["by_bus/violation_probability"])
    Select(page.element("#bus-order")).select_by_value("error")
    expected = order(arrays["by_bus/crps"][:, V])
    page.until(f"String(powerphase.drawn.buses) === '{','.join(map(str, expected))}'")


def test_the_worst_bus_can_be_looked_at_though_its_scenarios_are_not_stored(
    page: Page, built: Built
) -> None:
    page.open(f"forecasts?board={GRID}&models=ets-42")
    page.until(f"(powerphase.drawn.buses || []).length === {made_up.N_BUSES}")
    arrays = built.rows["ets-42"][1]
    worst = np.argsort(-arrays["by_bus/violation_probability"], kind="stable") + 101
    assert page.js("powerphase.drawn.buses") == worst.tolist()
    bus = next(int(bus) for bus in worst if bus not in arrays["shown/bus_id"])
    Select(page.element("#bus-list")).select_by_value(str(bus))
    drawn = page.until("powerphase.drawn.risks.length === 3 && powerphase.drawn.risks")
    for window, day in enumerate(drawn):
        expected = arrays["risk/by_bus_step"][window, bus - 101] / RISK_LEVELS
        np.testing.assert_allclose(day["probability"], expected)
        np.testing.assert_array_equal(day["happened"], arrays["risk/happened"][window, bus - 101])
    page.open(f"grid?board={GRID}&model=ets-42&by=risk")
    page.until("document.querySelectorAll('#at-risk a').length === 12")  # each has a forecast


def test_a_forecast_file_shows_bands_of_any_bus_and_scripts_stay_text(
    page: Page, built: Built
) -> None:
    page.open("forecasts?board=ieee14-exact&models=forecast0&bus=9")
    drawn = fans_drawn(page, 3)
    assert page.js("document.querySelector('#fans h3').textContent") == SCRIPT
    assert page.js("window.stolen") is None
    channel = 4 * list(built.store.grid.bus_id).index(9) + V
    for f, window in zip(drawn, (0, 4, 9), strict=True):
        values, weights = built.scripted.read(window, slice(channel, channel + 1))
        wide = np.broadcast_to(weights[:, None, 0], values.shape[:2])
        exact = both_ways(values[..., 0], wide, (0.1, 0.5, 0.9))
        bands = np.array([f["levels"][k] for k in (0, 2, 4)])
        assert abs(bands - exact).max() <= np.ptp(exact) / 252 / 2 + 1e-6
        truth = built.store.read(built.scripted.header.windows[window][:10], 9, "V")
        assert abs(np.array(f["truth"]) - truth).max() < 1e-4
    page.element("#variable input[value=P] + span").click()
    page.until("document.querySelector('#fans .missing')")  # only voltages were read


def test_safety_draws_the_arrays_of_sidecars(page: Page, built: Built) -> None:
    page.open(f"safety?board={GRID}&models=ets-42,powerforge-42")
    page.until("powerphase.drawn.overDay && powerphase.drawn.worstBuses")
    drawn = page.js("powerphase.drawn")
    for curve, worst, bins, day in zip(
        drawn["survival"],
        drawn["worst"],
        drawn["reliability"],
        drawn["overDay"]["models"],
        strict=True,
    ):
        arrays = built.rows[curve["model"]][1]
        values = arrays["by_bus/safety_mbrier"].astype(float)
        expected = [(values > x).mean() for x in curve["x"]]
        assert curve["y"] == pytest.approx(expected, abs=1e-12)
        assert worst["values"] == pytest.approx(sorted(values)[::-1])
        known = arrays["reliability"][arrays["reliability"][:, 0] > 0]
        np.testing.assert_allclose(bins["bins"], known)
        assert day["values"] == pytest.approx(arrays["by_step/violation_probability"][:, V])
    assert drawn["overDay"]["happened"] == [0.25] * 96
    first = built.rows[drawn["survival"][0]["model"]][1]["by_bus/safety_mbrier"]
    assert drawn["worstBuses"] == [101 + int(k) for k in np.argsort(-first, kind="stable")[:15]]
    page.element("#safety-models input[value=powerforge-42] + span").click()
    page.until("powerphase.drawn.survival.length === 1")


def network_values(page: Page) -> NDArray[np.float64]:
    values = page.js("[...powerphase.drawn.network.values].map((v) => isNaN(v) ? null : v)")
    return np.array([np.nan if v is None else v for v in values])


def test_the_slider_of_the_grid_page_shows_the_risks_of_all_buses(page: Page, built: Built) -> None:
    page.open(f"grid?board={GRID}&model=ets-42&by=risk&window=1&step=40")
    page.until("powerphase.drawn.network && powerphase.drawn.painted_ms !== undefined")
    risk = built.rows["ets-42"][1]["risk/by_bus_step"] / RISK_LEVELS
    np.testing.assert_allclose(network_values(page), risk[1, :, 40], rtol=1e-6)
    page.element("#step").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    page.until("powerphase.drawn.network.step === 42")
    np.testing.assert_allclose(network_values(page), risk[1, :, 42], rtol=1e-6)
    outside = np.flatnonzero(built.rows["ets-42"][1]["risk/happened"][1, :, 42])
    assert page.js("powerphase.drawn.network.rings") == [101 + int(k) for k in outside]
    assert page.element("#step-time").text.startswith("10:30")
    order = np.argsort(-risk[1, :, 42], kind="stable")
    counts = [str((risk[1, :, 42] > limit).sum()) for limit in (0, 0.5)]
    numbers = re.findall(r"\d+", page.element("#at-risk-count").text)
    assert [numbers[0], numbers[2]] == counts  # above 0, above 50 %
    listed = page.js("[...document.querySelectorAll('#at-risk li')].map((li) => +li.dataset.bus)")
    assert listed == [101 + int(k) for k in order[:12]]
    Select(page.element("#grid-quantity")).select_by_value("twcrps")
    page.until("powerphase.drawn.network.quantity === 'twcrps'")
    np.testing.assert_allclose(network_values(page), built.rows["ets-42"][1]["by_bus/twcrps"])
    assert not page.element("#step").is_displayed()


def test_a_sidecar_without_risks_shows_those_of_its_buses_with_scenarios(
    page: Page, built: Built
) -> None:
    page.open(f"grid?board={GRID}&model=powerforge-42&by=risk&window=2&step=70")
    page.until("powerphase.drawn.network && powerphase.drawn.painted_ms !== undefined")
    arrays, (low, high) = built.rows["powerforge-42"][1], NORMAL_BAND_PU
    voltage = expand(arrays)["shown/scenario"][2, :, 70, :, V]
    expected = (((voltage < low) | (voltage > high)) * arrays["shown/weight"][2, :, :, V]).sum(0)
    values = network_values(page)
    shown = [0, 4, 9, 16, 23, 29]
    np.testing.assert_allclose(values[shown], expected, rtol=1e-5, atol=1e-7)
    assert np.isnan(np.delete(values, shown)).all()
    note = page.element("#grid-note")
    commands = [code.text for code in note.find_elements(By.CSS_SELECTOR, "code")]
    assert [command.split()[:2] for command in commands] == [
        ["powerphase", "score"],
        ["powerphase", "report"],
    ]


@pytest.mark.parametrize("band", [[0.9, 1.1], [0.98, 1.0], None])
def test_the_limits_are_those_of_the_task(page: Page, band: list[float] | None) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.js("powerphase.site.boards.forEach((b) => (b.band = arguments[0]))", band)
    page.js(f"void (location.hash = 'forecasts?board={GRID}&models=ets-42&bus=117')")
    fans_drawn(page, 3)
    lines = page.driver.find_elements(By.CSS_SELECTOR, "#fans line.limit")
    assert bool(lines) == bool(band)
    assert page.element("#fan-band").is_displayed() == bool(band)
    page.js(f"void (location.hash = 'grid?board={GRID}&model=ets-42&by=risk')")
    page.until("powerphase.drawn.network && !powerphase.loading")
    shown = {
        page.element("#grid-note").text,
        page.element("#fan-band").get_attribute("textContent"),
    }
    for limit in band or NORMAL_BAND_PU:
        assert all((f"{limit:g} " in str(text)) == bool(band) for text in shown)


def test_the_network_is_painted(page: Page) -> None:
    page.open(f"grid?board={GRID}&model=ets-42&by=risk")
    page.until("powerphase.drawn.network && powerphase.drawn.painted_ms !== undefined")
    box = page.element("#network")
    n_pixels = page.js(
        "[...arguments[0].getContext('2d').getImageData(0, 0, arguments[0].width, "
        "arguments[0].height).data].filter((_, k) => k % 4 === 3).filter((a) => a > 0).length",
        box,
    )
    assert n_pixels > 30 * 20
    box.send_keys("+")
    assert page.js("document.activeElement.id") == "network"


def test_buses_are_buttons_with_their_numbers(page: Page, built: Built) -> None:
    page.open(f"grid?board={GRID}&model=ets-42&by=risk&window=1&step=40")
    page.until(f"document.querySelectorAll('#nodes button').length === {made_up.N_BUSES}")
    nodes = page.js(
        "[...document.querySelectorAll('#nodes button')].map((b) => [b.textContent, b.ariaLabel, "
        "b.tabIndex, getComputedStyle(b.firstChild).visibility])"
    )
    assert {node[0] for node in nodes} == {str(101 + k) for k in range(made_up.N_BUSES)}
    assert all(re.search(rf"\b{number}\b", label) for number, label, *_ in nodes)
    assert sum(tab == 0 for _, _, tab, _ in nodes) == 1  # one stop for the tab key
    assert sum(visible == "visible" for *_, visible in nodes) > 20
    page.js("document.querySelector('#nodes [tabindex=\"0\"]').focus()")
    visited = []
    for key in (Keys.ARROW_LEFT, Keys.ARROW_RIGHT, Keys.ARROW_UP, Keys.ARROW_DOWN):
        page.driver.switch_to.active_element.send_keys(key)
        visited.append(page.js("document.activeElement.dataset.bus"))
    after = visited[-1]
    assert len(set(visited)) > 1
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert f"bus={after}" in page.js("location.hash")
    assert after in page.element("#bus-facts h2").text


def test_a_bus_tells_on_which_side_of_the_band_it_is_and_by_how_much(
    page: Page, built: Built
) -> None:
    arrays = built.rows["ets-42"][1]
    names = ("risk/excursion", "risk/excursion_happened")
    bus = int(np.min([arrays[name][1].min(axis=1) for name in names], axis=0).argmax())
    page.open(f"grid?board={GRID}&model=ets-42&by=risk&window=1&step=40")
    page.until(f"document.querySelectorAll('#nodes button').length === {made_up.N_BUSES}")
    page.element(f"#nodes [data-bus='{101 + bus}']").click()
    facts = page.element("#bus-facts").text.lower()
    for name in names:
        for side, units in zip(("below", "above"), arrays[name][1, bus], strict=True):
            assert re.search(rf"{side}\D+{units * EXCURSION_UNIT_PU:.3f}", facts)
    hours = arrays["risk/happened"][1, bus].sum() / 4
    assert f"{hours:g} h" in facts


def line_names(built: Built) -> list[str]:
    """The lines of the made-up row as the page names them."""
    arrays = built.rows["ets+stale-42"][1]
    return [
        f"{start}-{end}" + (f"/{number}" if number > 1 else "")
        for (start, end), number in zip(arrays[LINE_BUSES], arrays[LINE_NUMBER], strict=True)
    ]


def test_lines_have_the_risk_of_the_step(page: Page, built: Built) -> None:
    arrays, names = built.rows["ets+stale-42"][1], line_names(built)
    page.open(f"grid?board={GRID}&model=ets%2Bstale-42&by=risk&window=1&step=40")
    page.until("powerphase.drawn.network && powerphase.drawn.painted_ms !== undefined")
    assert page.js("powerphase.drawn.network.lines.names") == names
    for step in (40, 41):
        page.until(f"powerphase.drawn.network.step === {step}")
        risk = arrays[LINE_RISK][1, :, step] / RISK_LEVELS
        drawn = page.js("[...powerphase.drawn.network.lines.values]")
        assert drawn == pytest.approx(risk, rel=1e-6)
        overloaded = [names[k] for k in np.flatnonzero(arrays[LINE_HAPPENED][1, :, step])]
        assert page.js("powerphase.drawn.network.lines.marked") == overloaded
        listed = page.js("[...document.querySelectorAll('#worst-lines li')].map((li) => "
                         "[li.dataset.line, li.querySelector('b').textContent])")  # fmt: skip
        order = np.argsort(-risk, kind="stable")
        assert [name for name, _ in listed] == [names[k] for k in order]
        shares = [float(text.removesuffix(" %")) for _, text in listed]
        assert shares == pytest.approx(100 * risk[order], abs=0.051)
        page.element("#step").send_keys(Keys.ARROW_RIGHT)
    Select(page.element("#grid-quantity")).select_by_value("crps")
    page.until("powerphase.drawn.network.quantity === 'crps'")
    drawn = page.js("[...powerphase.drawn.network.lines.values]")
    assert drawn == pytest.approx(arrays["by_branch/loading_crps"])


def test_a_line_can_be_chosen_and_says_when_it_was_overloaded(page: Page, built: Built) -> None:
    arrays, name = built.rows["ets+stale-42"][1], line_names(built)[2]
    address = f"grid?board={GRID}&model=ets%2Bstale-42&by=risk&window=1&step=40"
    page.open(address)
    page.until(f"document.querySelector('#nodes [data-line=\"{name}\"]')")
    page.js("document.querySelector('#nodes [tabindex=\"0\"]').focus()")
    page.element(f"#worst-lines [data-line='{name}'] button").send_keys(Keys.ENTER)
    assert name in page.element("#bus-facts h2").text
    assert page.js("new URLSearchParams(location.hash.split('?')[1]).get('line')") == name
    said = page.element("#bus-facts").text
    assert f"{100 * arrays[LINE_PEAK][1, 2]:.0f} %" in said
    assert f"{arrays[LINE_HAPPENED][1, 2].sum() / 4:g} h" in said
    page.open(f"{address}&line={name}")  # a link reproduces it
    page.until("!document.querySelector('#bus-facts').hidden")
    assert page.element("#bus-facts").text == said
    page.element("#bus-facts .pick").click()
    assert page.element("#bus-facts h2").text.endswith(name.split("-")[0])
    page.element(f"#nodes [data-line='{name}']").click()
    assert name in page.element("#bus-facts h2").text


def centre(page: Page, selector: str) -> NDArray[np.float64]:
    """The middle of an element in the window."""
    box = page.js("arguments[0].getBoundingClientRect()", page.element(selector))
    return np.array([box["left"] + box["width"] / 2, box["top"] + box["height"] / 2])


def test_the_arrow_keys_reach_lines_and_a_pointer_finds_them(page: Page, built: Built) -> None:
    page.open(f"grid?board={GRID}&model=ets%2Bstale-42&by=risk&window=1&step=40")
    page.until("document.querySelector('#nodes [data-line]')")
    page.js("document.querySelector('#nodes [data-bus=\"104\"]').focus()")
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_LEFT)
    assert page.js("document.activeElement.dataset.line") in line_names(built)
    start, end, drawing = (
        centre(page, selector)
        for selector in ("#nodes [data-bus='105']", "#nodes [data-bus='106']", "#network")
    )
    x, y = np.rint(0.25 * start + 0.75 * end - drawing).astype(int).tolist()
    ActionChains(page.driver).move_to_element_with_offset(
        page.element("#network"), x, y
    ).click().perform()
    assert page.element("#bus-facts h2").text.endswith("105-106")


def test_a_bus_lists_its_lines(page: Page, built: Built) -> None:
    page.open(f"grid?board={GRID}&model=ets%2Bstale-42&by=risk&window=1&step=40&bus=102")
    page.until("!document.querySelector('#bus-facts').hidden")
    ends = built.rows["ets+stale-42"][1][LINE_BUSES]
    of_bus = [name for name, pair in zip(line_names(built), ends, strict=True) if 102 in pair]
    listed = page.js(
        "[...document.querySelectorAll('#bus-facts li .pick')].map((b) => b.textContent)"
    )
    assert [text.split()[-1] for text in listed] == of_bus
    page.element("#nodes [data-bus='120']").click()
    assert not page.js("document.querySelectorAll('#bus-facts li').length")


def test_a_row_without_lines_and_a_grid_without_ratings_say_so(page: Page) -> None:
    notes = []
    for model in ("ets-42", "oracle-42", "ets%2Bstale-42"):
        page.open(f"grid?board={GRID}&model={model}&by=risk&window=1&step=40")
        page.until("powerphase.drawn.network && !powerphase.loading")
        notes.append(page.element("#lines-note").text)
        has_lines = model.startswith("ets%2B")
        assert bool(page.js("document.querySelectorAll('#worst-lines li').length")) == has_lines
        assert page.element("#line-legend").is_displayed() == has_lines
    old, unrated, stored = notes
    assert "powerphase score" in old
    assert "rating" in unrated
    assert [int(number) for number in re.findall(r"\d+", stored)] == [
        2 * made_up.N_LINES,
        made_up.N_BUSES,
        made_up.N_LINES,
    ]


def test_a_grid_without_risk_says_so_once(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.js(
        "powerphase.site.boards.forEach((b) => { b.truth.violations = b.truth.overloads = 0; "
        "b.entries.forEach((e) => (e.mean.safety_mbrier = e.mean.overload_brier = 0)); })"
    )
    page.driver.execute_async_script(
        f"const done = arguments[0]; powerphase.load('{GRID}/ets-42')"
        ".then((row) => powerphase.unpack(row.by_bus.safety_mbrier))"
        ".then((values) => { values.fill(0); done(); })"
    )
    page.js(f"void (location.hash = 'safety?board={GRID}&models=ets-42')")
    page.until("!document.querySelector('#safety-none').hidden && !powerphase.loading")
    assert page.element("#safety-none").is_displayed()
    assert not page.element("#survival").is_displayed()
    assert not page.element("#worst-table").is_displayed()
    page.js(f"void (location.hash = 'grid?board={GRID}&model=ets-42')")
    page.until("powerphase.drawn.network && powerphase.drawn.network.quantity === 'crps'")
    assert page.js("document.querySelectorAll('#at-risk li').length") > 0


def test_a_grid_without_a_drawing_lists_its_buses(page: Page) -> None:
    page.open("grid?board=ieee14-exact&model=forecast0&by=risk")
    page.until("document.querySelectorAll('#at-risk li').length > 1")
    assert page.element("#network-missing").is_displayed()


def test_the_data_page_draws_load_shapes_or_names_the_missing_data_set(page: Page) -> None:
    page.open("data?board=ieee14-exact")
    lines = page.until("document.querySelectorAll('.archetypes path.line').length")
    assert lines == 5
    page.open(f"data?board={GRID}")
    assert f"powerphase generate {made_up.GRID}" in page.element("#page-data").text


def test_no_request_leaves_the_site(page: Page) -> None:
    log(page.driver, "performance")
    for name in PAGES:
        page.open(f"{name}?board={GRID}")
        page.until("document.readyState === 'complete'")
        entries = page.js("performance.getEntriesByType('resource').map((e) => e.name)")
        assert all(entry.startswith(("file:", "data:", "blob:")) for entry in entries), entries
    messages = [entry["message"] for entry in log(page.driver, "performance")]
    requests = [message for message in messages if '"Network.requestWillBeSent"' in message]
    assert len(requests) > 20
    assert not [message for message in requests if '"url":"http' in message]


def test_no_text_of_a_row_is_executed(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    hint = page.js(f"document.querySelector('#board-{GRID} td.cost').title")
    assert made_up.NASTY in hint
    assert page.js("window.stolen") is None


def test_pages_can_be_used_by_keyboard(page: Page) -> None:
    page.open(f"leaderboard?board={GRID}")
    page.element("#pages a[data-page=safety]").send_keys(Keys.ENTER)
    page.until("!document.querySelector('#page-safety').hidden")
    assert page.js("document.querySelector('#pages [aria-current]').dataset.page") == "safety"
    page.element("#boards input:checked").send_keys(Keys.ARROW_RIGHT)
    page.until(f"!location.hash.includes('{GRID}')")
    before = page.js("location.hash")
    page.js("document.querySelector('.skip').focus()")  # visible once focused
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.js("document.activeElement.id") == "main"
    assert page.js("location.hash") == before
    page.element("#theme").send_keys(Keys.ENTER)
    assert page.js("document.documentElement.dataset.theme") == "dark"
    page.element("#theme").send_keys(Keys.ENTER)
    unnamed = page.js(
        "[...document.querySelectorAll('button, select, input')].filter((e) => !(e.labels && "
        "e.labels.length) && !e.ariaLabel && !e.textContent.trim()).map((e) => e.id)"
    )
    assert unnamed == []


@pytest.mark.parametrize("name", PAGES)
def test_every_page_fits_a_phone_and_has_two_themes(page: Page, tmp_path: Path, name: str) -> None:
    shades = set()
    for width, height, dark in ((360, 740, False), (1280, 900, True)):
        page.size(width, height, dark=dark)
        page.open(f"{name}?board={GRID}")
        page.until("document.fonts.status === 'loaded'")
        assert page.js("document.documentElement.scrollWidth") <= width
        assert page.driver.save_screenshot(str(tmp_path / f"{name}-{width}-{dark}.png"))
        shades.add(page.js("getComputedStyle(document.body).backgroundColor"))
    assert len(shades) == 2


def test_the_layout_does_not_shift_while_the_page_loads(page: Page) -> None:
    observer = (
        "new Promise((done) => new PerformanceObserver((list, self) => { self.disconnect(); "
        "done(list.getEntries().reduce((sum, e) => sum + e.value, 0)); })"
        ".observe({ type: 'layout-shift', buffered: true }))"
    )
    page.open(f"leaderboard?board={GRID}")
    page.driver.set_script_timeout(5)
    shift = page.driver.execute_async_script(
        "const done = arguments[0]; Promise.race([" + observer + ", "
        "new Promise((late) => setTimeout(() => late(0), 300))]).then(done)"
    )
    assert shift < 0.1


def test_a_missing_file_is_named(page: Page, built: Built, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(built.site.index.parent, tmp_path / "copy"))
    (copy / f"data/{GRID}/ets-42.js").unlink()
    part = Page(page.driver, copy / "index.html")
    part.open(f"forecasts?board={GRID}&models=ets-42")
    part.until("!document.querySelector('#problem').hidden")
    assert f"data/{GRID}/ets-42.js" in part.element("#problem").text
    part.element("#pages a[data-page=leaderboard]").click()
    part.until("document.querySelector('#problem').hidden")
    assert "powerforge" in part.names()
    log(page.driver, "browser")  # expected: the missing file
