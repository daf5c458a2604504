"""The errors of made forecasts, compared with published errors of day-ahead forecasts.

    python benchmarks/day_ahead.py --out benchmarks/measured/day_ahead.json
    python benchmarks/day_ahead.py --signals de.csv.gz --edition opsd-r --out ...

Forecasts are those of a window of 24 hours from each midnight UTC on, over the whole record of the
signals. Lines of other signals stay in the file. The published numbers are quoted, with where they
were read; the first is of the German transmission system operators, the others of services.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from powerphase.axes import STEPS_PER_DAY
from powerphase.synthesis import SIGNALS, Signals, day_ahead_forecasts, load_signals

INSTALLED_MW = 40e3
"""By which errors of sun and wind are divided; Germany had about as much of each."""

WIND_ERRORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 100.0)
"""Options of the wind's error whose sizes are measured."""

LAGS_H = (1, 3, 6, 12)
SHIFTS = np.arange(-16, 17)
"""Steps by which a day's forecast of the wind is shifted to compare its timing."""

PUBLISHED = (
    {
        "signal": "wind",
        "error": "RMSE 2.89 % of installed capacity",
        "of": "day-ahead forecasts of the German transmission system operators, 2014",
        "source": "Fraunhofer IWES, Windmonitor, Prognosegüte",
        "url": "http://windmonitor.iwes.fraunhofer.de/windmonitor_de/2_Netzintegration/"
        "1_einspeisung-und-ertraege/2_Prognoseguete/",
    },
    {
        "signal": "wind",
        "error": "nRMSE 4.5 %, with more weather models 3.4 % of installed capacity",
        "of": "forecasts of Germany by the ZSW, 2014",
        "source": "ZSW, WindSage",
        "url": "https://www.zsw-bw.de/en/projects/systemanalyse/windsage.html",
    },
    {
        "signal": "wind",
        "error": "3.2 to 3.3 % on average",
        "of": "forecasts of the next day's quarter-hours in Germany",
        "source": "ee-news, Wind- und Solarstrom: Produktionsprognosen werden präziser",
        "url": "http://www.ee-news.ch/de/article/31076",
    },
    {
        "signal": "solar",
        "error": "nRMSE 2.9 % of installed capacity",
        "of": "forecasts of Germany by the ZSW, 2014",
        "source": "ZSW, WindSage",
        "url": "https://www.zsw-bw.de/en/projects/systemanalyse/windsage.html",
    },
    {
        "signal": "load",
        "error": "MAPE drawn on a scale that ends at 2.5 %",
        "of": "day-ahead forecasts of the California ISO by quarter, 2013 to 2018",
        "source": "CAISO, Briefing on day-ahead load forecasting, November 14, 2018",
        "url": "https://sambuz.com/doc/"
        "briefing-on-day-ahead-load-forecasting-ppt-presentation-466277",
    },
)
"""What was published of errors, in its own words."""

Days = Float[np.ndarray, "D 96"]


def main() -> None:
    """Measure the errors for some signals, and add them to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--signals", default="synthetic")
    parser.add_argument("--edition")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    signals = load_signals(options.signals, options.edition)
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    report = {
        "installed_mw": INSTALLED_MW,
        "published": PUBLISHED,
        "made": known.get("made", {}) | {signals.edition: measure(signals)},
    }
    print(json.dumps(report, indent=1, ensure_ascii=False))
    if options.out:
        text = json.dumps(report, indent=1, ensure_ascii=False)
        options.out.write_text(text + "\n", encoding="utf-8")


def measure(signals: Signals) -> dict[str, Any]:
    """The errors of all days, by signal, and those of the wind by the option of its size."""
    truth = dict(zip(SIGNALS, np.moveaxis(by_day(signals.values_mw), -1, 0), strict=True))
    usual = forecasts(signals, 1.0)
    return {
        "days": len(truth["wind"]),
        **{name: statistics(name, usual[name], truth[name]) for name in SIGNALS},
        "wind_timing_h": timing_h(usual["wind"], truth["wind"]),
        "wind_errors": [
            {"option": option, **size(forecasts(signals, option)["wind"], truth["wind"])}
            for option in WIND_ERRORS
        ],
    }


def by_day(values: Float[np.ndarray, "S 3"]) -> Float[np.ndarray, "D 96 3"]:
    """The values of each day."""
    return values.reshape(-1, STEPS_PER_DAY, values.shape[-1])


def forecasts(signals: Signals, wind: float) -> dict[str, Days]:
    """What is known at each midnight of the day that follows."""
    time = signals.time.reshape(-1, STEPS_PER_DAY)
    seen = day_ahead_forecasts(signals, STEPS_PER_DAY, wind=wind).seen_from(time[:, 0], time)
    return dict(zip(SIGNALS, np.moveaxis(seen.values.astype(np.float64), -1, 0), strict=True))


def statistics(name: str, forecast: Days, truth: Days) -> dict[str, Any]:
    """The errors of one signal; shares are of the installed capacity, or of the load."""
    error = forecast - truth
    relative = error / truth if name == "load" else error / INSTALLED_MW
    counted = truth > 0 if name == "solar" else np.ones(truth.shape, bool)
    quarters = np.split(relative, 4, axis=1)
    return {
        "mean_absolute": float(np.abs(relative).mean()),
        "rmse": rms(relative),
        "rmse_in_daylight": rms(relative[counted]) if name == "solar" else None,
        "bias": float(relative.mean()),
        "rmse_by_quarter": [rms(part) for part in quarters],
        "rmse_of_last_day": rms(relative_persistence(name, truth)),
        "correlation": correlation(forecast, truth),
        "autocorrelation": {
            str(hours): correlation(error[:, : -4 * hours], error[:, 4 * hours :])
            for hours in LAGS_H
        },
    }


def relative_persistence(name: str, truth: Days) -> Days:
    """The errors of a forecast that repeats the day before."""
    error = truth[:-1] - truth[1:]
    return error / truth[1:] if name == "load" else error / INSTALLED_MW


def timing_h(forecast: Days, truth: Days) -> float:
    """By how much the forecast of a day must be shifted to fit best, mean absolute value [h]."""
    inside = slice(int(SHIFTS.max()), STEPS_PER_DAY - int(SHIFTS.max()))
    fits = np.stack(
        [((np.roll(forecast, k, axis=1) - truth)[:, inside] ** 2).mean(1) for k in SHIFTS]
    )
    return float(np.abs(SHIFTS[fits.argmin(0)]).mean() / 4)


def size(forecast: Days, truth: Days) -> dict[str, float]:
    """The size of an error as a share of the installed capacity, and what is left of the truth."""
    return {
        "rmse": rms((forecast - truth) / INSTALLED_MW),
        "correlation": correlation(forecast, truth),
    }


def rms(values: Float[np.ndarray, "..."]) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def correlation(first: Float[np.ndarray, "..."], second: Float[np.ndarray, "..."]) -> float:
    """The correlation of all values."""
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


if __name__ == "__main__":
    main()
