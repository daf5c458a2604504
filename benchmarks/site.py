"""The site of PEGASE 9241 with three models: size, time and memory to build, time to open.

    python benchmarks/site.py
    python benchmarks/site.py --data data/pegase9241 --forecasts forecasts/a forecasts/b forecasts/c

Without forecast files, pages show the buses that the sidecars of three committed rows carry; with
them, every bus. Pages are opened from a file in headless chromium, where it is installed.
"""

import argparse
import resource
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from powerphase.report.site import Site, build_site

ROWS = Path(__file__).parents[1] / "results/powerphase-day-ahead/opsd-r/pegase9241"
MODELS = ("factorforge-42", "powerforge-42", "last-7-days-0")
PAGES = ("leaderboard", "data", "safety", "forecasts", "grid")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


def is_ready(chrome: Any, shown: str) -> bool:
    """Whether the page has drawn something and loads nothing more."""
    loaded = "return powerphase.ready && !powerphase.loading"
    return bool(chrome.execute_script(shown) and chrome.execute_script(loaded))


def build(out: Path, data: list[str], forecasts: list[str]) -> Site:
    """Build the site, and print its size and what building took."""
    start = time.perf_counter()
    site = build_site(
        [ROWS / f"{model}.json" for model in MODELS], out, data=data, forecasts=forecasts
    )
    seconds = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    name, largest = max(site.sizes.items(), key=lambda item: item[1])
    print(f"{len(site.sizes)} files, {site.bytes / 1e6:.1f} MB, the largest {name}", end=" ")
    print(f"with {largest / 1e6:.2f} MB")
    print(f"built in {seconds:.1f} s, at most {memory:.2f} GiB")
    return site


def open_pages(site: Site) -> None:
    """Load every page, and print how long it took to be ready."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not browser or not driver:
        print("not opened: chromium and chromedriver are not installed")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        for page in PAGES:
            chrome.get("about:blank")
            start = time.perf_counter()
            chrome.get(f"{site.index.resolve().as_uri()}#{page}")
            drawn = f"return document.querySelector('#page-{page} :is(svg, canvas, table, dl, p)')"
            WebDriverWait(chrome, 30, poll_frequency=0.01).until(partial(is_ready, shown=drawn))
            print(f"{page:<12} open after {time.perf_counter() - start:.2f} s")
        painted = chrome.execute_script("return powerphase.drawn.painted_ms ?? null")
        print(
            "one painting of the network:", "not drawn" if painted is None else f"{painted:.1f} ms"
        )
    finally:
        chrome.quit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--forecasts", nargs="*", default=[])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        open_pages(build(Path(folder) / "site", arguments.data, arguments.forecasts))
