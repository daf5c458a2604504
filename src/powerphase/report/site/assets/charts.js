// Axes, lines, bands and points as SVG. Colours come from the style sheet, so themes need no redraw.
"use strict";
powerphase.charts = (() => {
  const { s, h, significant } = powerphase;

  const linear = ([low, high], [from, to]) => {
    const span = high - low || 1;
    const scale = (value) => from + ((value - low) / span) * (to - from);
    scale.invert = (position) => low + ((position - from) / (to - from)) * span;
    return scale;
  };
  const logarithmic = ([low, high], range) => {
    const inner = linear([Math.log10(low), Math.log10(high)], range);
    const scale = (value) => inner(Math.log10(Math.max(value, low)));
    scale.invert = (position) => 10 ** inner.invert(position);
    return scale;
  };

  const niceTicks = ([low, high], count) => {
    const rough = (high - low || 1) / count,
      power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= rough * 0.999);
    const ticks = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
      ticks.push(Number((k * step).toPrecision(12)));
    return ticks.length > 1 || count > 8 ? ticks : niceTicks([low, high], count + 1);
  };
  const logTicks = ([low, high]) => {
    const first = Math.floor(Math.log10(low)),
      last = Math.ceil(Math.log10(high)),
      steps = last - first > 3 ? [1] : [1, 2, 5],
      powers = Array.from({ length: last - first + 1 }, (_, k) => 10 ** (first + k)),
      inside = (t) => t >= low * (1 - 1e-9) && t <= high * (1 + 1e-9);
    return powers.flatMap((power) => steps.map((k) => k * power)).filter(inside);
  };
  const tickText = (ticks) => {
    const largest = Math.max(...ticks.map(Math.abs));
    if (largest > 0 && (largest < 1e-3 || largest >= 1e5))
      return (t) => (t === 0 ? "0" : String(Number(t.toPrecision(3)).toExponential()));
    const digits =
      [0, 1, 2, 3, 4, 5].find((d) =>
        ticks.every((t) => Math.abs(t - Number(t.toFixed(d))) < 1e-9),
      ) ?? 6;
    return (t) => t.toFixed(digits);
  };

  // Powers of ten for all ticks or for none.
  const logText = (ticks) =>
    Math.min(...ticks) < 1e-4 ? (t) => t.toExponential() : (t) => significant(t, 1);

  const path = (xs, ys) => {
    let text = "",
      pen = "M";
    for (let k = 0; k < xs.length; k++) {
      if (!Number.isFinite(ys[k])) {
        pen = "M";
        continue;
      }
      text += `${pen}${xs[k].toFixed(1)} ${ys[k].toFixed(1)}`;
      pen = "L";
    }
    return text;
  };
  const area = (xs, low, high) =>
    `${path(xs, high)}${[...xs.keys()]
      .reverse()
      .map((k) => `L${xs[k].toFixed(1)} ${low[k].toFixed(1)}`)
      .join("")}Z`;

  const HOURS = [0, 6, 12, 18, 24].map((hour) => ({
    at: hour * 4,
    text: `${String(hour).padStart(2, "0")}:00`,
  }));

  // An empty chart with axes, as large as its box; callers draw into `.plot`.
  const frame = (box, { x, y, label, role = "img", margin = {}, height }) => {
    const width = Math.max(120, Math.floor(box.clientWidth)),
      ratio = parseFloat(getComputedStyle(box).getPropertyValue("--ratio")) || 0.6;
    const tall = height || Math.round(Math.max(200, Math.min(430, width * ratio)));
    const m = { top: 10, right: 12, bottom: x.label ? 40 : 24, left: 48, ...margin };
    const sx = (x.log ? logarithmic : linear)(x.domain, [m.left, width - m.right]);
    const sy = (y.log ? logarithmic : linear)(y.domain, [tall - m.bottom, m.top]);
    const xTicks =
      x.ticks ||
      (x.log
        ? logTicks(x.domain)
        : niceTicks(x.domain, Math.max(2, Math.floor((width - m.left) / 90)))
      ).map((at) => ({ at }));
    const yTicks =
      y.ticks ||
      (y.log
        ? logTicks(y.domain)
        : niceTicks(y.domain, Math.max(2, Math.floor((tall - m.top - m.bottom) / 44)))
      ).map((at) => ({ at }));
    const xText = (x.log ? logText : tickText)(xTicks.map((t) => t.at));
    const yText = (y.log ? logText : tickText)(yTicks.map((t) => t.at));
    const plot = s("g", { class: "plot" });
    const svg = s(
      "svg",
      { width, height: tall, viewBox: `0 0 ${width} ${tall}`, role, "aria-label": label },
      s(
        "g",
        { class: "axis" },
        yTicks.map((t) =>
          s("line", { class: "rule", x1: m.left, x2: width - m.right, y1: sy(t.at), y2: sy(t.at) }),
        ),
        yTicks.map((t) =>
          s(
            "text",
            { x: m.left - 6, y: sy(t.at), dy: "0.32em", "text-anchor": "end" },
            t.text ?? yText(t.at),
          ),
        ),
        s("line", {
          class: "base",
          x1: m.left,
          x2: width - m.right,
          y1: tall - m.bottom,
          y2: tall - m.bottom,
        }),
        xTicks.map((t) =>
          s(
            "text",
            {
              x: sx(t.at),
              y: tall - m.bottom + 16,
              "text-anchor":
                xTicks.length > 1 &&
                t === xTicks[xTicks.length - 1] &&
                sx(t.at) > width - m.right - 14
                  ? "end"
                  : t === xTicks[0] && sx(t.at) < m.left + 14
                    ? "start"
                    : "middle",
            },
            t.text ?? xText(t.at),
          ),
        ),
        x.label
          ? s(
              "text",
              {
                class: "title",
                x: (m.left + width - m.right) / 2,
                y: tall - 6,
                "text-anchor": "middle",
              },
              x.label,
            )
          : null,
        y.label
          ? s("text", { class: "title", x: 4, y: 10, "text-anchor": "start" }, y.label)
          : null,
      ),
      plot,
    );
    box.replaceChildren(svg);
    return { svg, plot, sx, sy, width, height: tall, margin: m };
  };

  // A vertical line that follows the pointer or the arrow keys over positions 0..count-1 of the x axis.
  const crosshair = (chart, { count, at, describe }) => {
    const { svg, sx, height, margin, width } = chart;
    const line = s("line", {
      class: "cross",
      y1: margin.top,
      y2: height - margin.bottom,
      visibility: "hidden",
    });
    const catcher = s("rect", {
      x: margin.left,
      y: margin.top,
      width: Math.max(0, width - margin.left - margin.right),
      height: Math.max(0, height - margin.top - margin.bottom),
      fill: "transparent",
    });
    let current = -1;
    const show = (k, clientY) => {
      current = Math.max(0, Math.min(count - 1, k));
      const x = sx(at(current)),
        box = svg.getBoundingClientRect();
      line.setAttribute("x1", x);
      line.setAttribute("x2", x);
      line.setAttribute("visibility", "visible");
      powerphase.tip(describe(current), box.left + x, clientY ?? box.top + margin.top + 40);
    };
    const hide = () => {
      line.setAttribute("visibility", "hidden");
      powerphase.tip("");
    };
    catcher.addEventListener("pointermove", (event) => {
      const value = sx.invert(event.clientX - svg.getBoundingClientRect().left);
      let best = 0;
      for (let k = 1; k < count; k++)
        if (Math.abs(at(k) - value) < Math.abs(at(best) - value)) best = k;
      show(best, event.clientY);
    });
    catcher.addEventListener("pointerleave", hide);
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, PageDown: 8, PageUp: -8 }[event.key];
      if (move) {
        event.preventDefault();
        show(current < 0 ? 0 : current + move);
      }
      if (event.key === "Escape") hide();
    });
    svg.addEventListener("blur", hide);
    svg.append(line, catcher);
  };

  const legend = (box, items) =>
    box.append(
      h(
        "p",
        { class: "legend" },
        items.map(({ color, text }) =>
          h("span", {}, h("i", { class: "swatch", style: `--c: var(${color})` }), text),
        ),
      ),
    );

  const extent = (lists, pad = 0.06) => {
    let low = Infinity,
      high = -Infinity;
    for (const list of lists)
      for (const value of list) {
        if (value < low) low = value;
        if (value > high) high = value;
      }
    if (low === high) {
      const gap = Math.abs(low) * 0.01 || 1e-3;
      low -= gap;
      high += gap;
    }
    const gap = (high - low) * pad;
    return [low - gap, high + gap];
  };

  const color = (k) => `--c${k % 8}`;

  // The value at each cumulative weight; the mean of two values if the weight splits exactly between
  // them, so that mirrored scenarios have mirrored bands.
  const ROUNDING = 1e-6;
  const quantiles = (values, weights, levels) => {
    const order = [...values.keys()].sort((a, b) => values[a] - values[b]),
      last = values[order[order.length - 1]];
    return levels.map((level) => {
      let sum = 0;
      for (let k = 0; k < order.length; k++) {
        sum += weights[order[k]];
        if (sum > level + ROUNDING) return values[order[k]];
        if (sum >= level - ROUNDING) return (values[order[k]] + (values[order[k + 1]] ?? last)) / 2;
      }
      return last;
    });
  };

  return {
    frame,
    crosshair,
    legend,
    path,
    area,
    extent,
    color,
    logTicks,
    quantiles,
    HOURS,
  };
})();
