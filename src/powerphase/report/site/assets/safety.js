// Forecasts of voltages outside the band against the truth: by bus, by step, by probability.
"use strict";
powerphase.pages.safety = (() => {
  const { $, $$, h, s, site, address, choose, options, load, unpack, withCode } = powerphase;
  const { significant, percent, uniform, clock } = powerphase;
  const { frame, path, extent, crosshair } = powerphase.charts;
  const { busIds, title } = powerphase.scenarios;
  const { color, marker, key, fillOf, dashes } = powerphase.looks;
  const WORST = 200,
    LISTED = 15,
    FLOOR = 1e-4,
    NEGLIGIBLE = 1e-6,
    MARKS = 5;
  const ALARMS = "No voltage left its band in any window of this grid: the charts show false alarms.",
    CALM =
      "No voltage left its band in any window of this grid, and none of the chosen models says that one might: there is no risk to show.",
    ELSEWHERE = " Other grids above have some.";
  let board = null,
    chosen = [],
    loaded = [],
    ids = null,
    turn = 0;

  const available = () => board.models.filter((model) => model.file);
  // If no voltage leaves its band, only false alarms can be seen: models with some come first.
  const alarms = (model) => {
    const entry = board.entries.find((e) => e.name === model.name && e.kind !== "paper");
    return !board.truth.violations && entry && entry.mean.safety_mbrier > 0 ? 1 : 0;
  };
  const defaults = (most) => {
    const names = new Set(),
      competes = (m) => fillOf(board, m.name) === "";
    return [...available()]
      .sort((a, b) => alarms(b) - alarms(a))
      .filter((m) => competes(m) && !names.has(m.name) && names.add(m.name))
      .slice(0, most)
      .map((m) => m.id);
  };

  const read = async (model) => {
    const row = await load(model.file),
      by = {};
    for (const name of ["safety_mbrier", "violation_probability", "violation", "brier"])
      by[name] = await unpack(row.by_bus[name]);
    return { model, row, by, sorted: Float32Array.from(by.safety_mbrier).sort().reverse() };
  };

  const names = () => loaded.map((item) => title(board, item.model));

  const series = (item, ...children) =>
    s(
      "g",
      {
        class: "series",
        style: `--c: var(${color(item.model.name)})`,
        "data-model": item.model.id,
      },
      ...children,
    );
  // A line with some markers, at other positions on each line.
  const trace = (chart, item, xs, ys) => {
    const dash = dashes(board, item.model),
      line = s("path", { class: "line", "stroke-dasharray": dash, d: path(xs, ys) });
    const drawnPoints = [...xs.keys()].filter((k) => Number.isFinite(ys[k])),
      share = (loaded.indexOf(item) + 0.5) / loaded.length;
    const marks = Array.from({ length: MARKS }, (_, m) => {
      const k = drawnPoints[Math.floor(((m + share) / MARKS) * drawnPoints.length)];
      return k === undefined ? null : markerOf(item, xs[k], ys[k], 5);
    });
    chart.plot.append(series(item, line, ...marks));
  };
  const markerOf = (item, x, y, size) =>
    marker(item.model.name, x, y, fillOf(board, item.model.name), size);

  // Highlights the line whose name the pointer is on.
  const highlight = (id) => {
    for (const line of $$("#page-safety .series"))
      line.classList.toggle("dim", id !== null && line.dataset.model !== id);
  };

  // The content of a chart in words, for screen readers.
  const alternative = (what, value) =>
    `${what}: ${loaded.map((item, k) => `${names()[k]} ${value(item)}`).join(", ")}`;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const likelyShare = (item) => {
    const bins = item.row.reliability.filter((bin) => bin[0] > 0 && bin[1] > 0.5),
      points = bins.reduce((sum, bin) => sum + bin[0], 0);
    return points ? percent(bins.reduce((sum, bin) => sum + bin[0] * bin[2], 0) / points) : "none";
  };

  const survival = () => {
    const box = $("#survival"),
      count = loaded[0].sorted.length;
    const above = (item) => percent(item.sorted.filter((value) => value > 0.01).length / count);
    const chart = frame(box, {
      label: alternative("Share of buses whose Safety_mBrier exceeds 0.01", above),
      x: { domain: [FLOOR, 1], log: true, label: "threshold x" },
      y: { domain: [0.7 / count, 1], log: true, label: "share of buses above x" },
      margin: { top: 24 },
    });
    const grid = Array.from({ length: 161 }, (_, k) => 10 ** (Math.log10(FLOOR) * (1 - k / 160)));
    powerphase.drawn.survival = loaded.map((item) => ({
      model: item.model.id,
      x: grid,
      y: grid.map((x) => {
        let n = 0;
        while (n < count && item.sorted[n] > x) n++;
        return n / count;
      }),
    }));
    const xs = grid.map(chart.sx);
    powerphase.drawn.survival.forEach((curve, k) => {
      const ys = curve.y.map((y) => (y > 0 ? chart.sy(y) : NaN));
      trace(chart, loaded[k], xs, ys);
    });
    crosshair(chart, {
      count: grid.length,
      at: (k) => grid[k],
      describe: (k) =>
        [
          `above ${significant(grid[k], 2)}`,
          ...names().map((name, n) => `${name} ${percent(powerphase.drawn.survival[n].y[k])}`),
        ].join("\n"),
    });
  };

  const worst = () => {
    const count = Math.min(WORST, loaded[0].sorted.length);
    const top = Math.max(...loaded.map((item) => item.sorted[0]), 0.01);
    const ticks = Array.from({ length: count }, (_, k) => ({ at: k + 1 }));
    const chart = frame($("#worst"), {
      label: alternative("Safety_mBrier of each model's worst bus", (item) =>
        significant(item.sorted[0], 3),
      ),
      // With few buses, the ticks of an ordinary axis would fall between them.
      x: {
        domain: [1, count],
        label: "rank among the worst",
        ticks: count <= 20 && ticks.filter((tick) => count <= 10 || tick.at % 5 === 0),
      },
      y: { domain: [0, top * 1.05], label: "Safety_mBrier" },
      margin: { top: 24 },
    });
    const xs = Array.from({ length: count }, (_, k) => chart.sx(k + 1));
    powerphase.drawn.worst = loaded.map((item) => ({
      model: item.model.id,
      values: [...item.sorted.subarray(0, count)],
    }));
    powerphase.drawn.worst.forEach(({ values }, k) =>
      trace(chart, loaded[k], xs, values.map(chart.sy)),
    );
    crosshair(chart, {
      count: count,
      at: (k) => k + 1,
      describe: (k) =>
        [
          `rank ${k + 1}`,
          ...loaded.map((item, n) => `${names()[n]} ${significant(item.sorted[k], 3)}`),
        ].join("\n"),
    });
  };

  const reliability = () => {
    const chart = frame($("#reliability"), {
      label: alternative(
        "Share of voltages that left the band against the forecast probability; among those with more than a half",
        likelyShare,
      ),
      x: { domain: [-0.03, 1.02], label: "forecast probability" },
      y: { domain: [-0.03, 1.02], label: "share that left the band" },
      margin: { top: 24 },
    });
    chart.plot.append(
      s("line", {
        class: "diagonal",
        x1: chart.sx(0),
        y1: chart.sy(0),
        x2: chart.sx(1),
        y2: chart.sy(1),
      }),
    );
    const most = Math.max(...loaded.flatMap((item) => item.row.reliability.map((bin) => bin[0])));
    powerphase.drawn.reliability = [];
    for (const item of loaded) {
      const bins = item.row.reliability.filter((bin) => bin[0] > 0);
      powerphase.drawn.reliability.push({ model: item.model.id, bins });
      const g = series(
        item,
        s("path", {
          class: "line thin",
          "stroke-dasharray": dashes(board, item.model),
          d: path(
            bins.map((b) => chart.sx(b[1])),
            bins.map((b) => chart.sy(b[2])),
          ),
        }),
      );
      for (const [points, probability, left] of bins) {
        const size = 3 + (6 * Math.log10(1 + points)) / Math.log10(1 + most),
          dot = markerOf(item, chart.sx(probability), chart.sy(left), size);
        dot.append(
          s(
            "title",
            {},
            `${title(board, item.model)}: forecast ${percent(probability)}, ${percent(left)} of ${points.toLocaleString("en")} voltages left the band`,
          ),
        );
        g.append(dot);
      }
      chart.plot.append(g);
    }
  };

  const overDay = () => {
    const happened = loaded[0].row.by_step.violation,
      lists = [happened, ...loaded.map((item) => item.row.by_step.violation_probability)];
    const [low, high] = extent(lists, 0.1);
    const chart = frame($("#over-day"), {
      label: alternative(
        `Share of voltages outside the band by time of day; on average ${percent(mean(happened))} were outside, and the forecasts were`,
        (item) => percent(mean(item.row.by_step.violation_probability)),
      ),
      x: { domain: [0, 96], ticks: powerphase.charts.HOURS, label: "time of day, UTC" },
      y: { domain: [Math.max(0, low), high], label: "share of voltages" },
      margin: { top: 24, left: 56 },
    });
    const xs = Array.from({ length: happened.length }, (_, k) => chart.sx(k));
    powerphase.drawn.overDay = {
      happened,
      models: loaded.map((item) => ({
        model: item.model.id,
        values: item.row.by_step.violation_probability,
      })),
    };
    for (const item of loaded)
      trace(chart, item, xs, item.row.by_step.violation_probability.map(chart.sy));
    chart.plot.append(s("path", { class: "truth", d: path(xs, happened.map(chart.sy)) }));
    crosshair(chart, {
      count: happened.length,
      at: (k) => k,
      describe: (k) =>
        [
          `${clock(k)} UTC`,
          `actual ${(100 * happened[k]).toFixed(2)} %`,
          ...loaded.map(
            (item, n) =>
              `${names()[n]} ${(100 * item.row.by_step.violation_probability[k]).toFixed(2)} %`,
          ),
        ].join("\n"),
    });
  };

  const table = () => {
    const item = loaded.find((item) => item.model.id === $("#worst-model").value) || loaded[0];
    const order = [...item.by.safety_mbrier.keys()]
      .sort((a, b) => item.by.safety_mbrier[b] - item.by.safety_mbrier[a] || a - b)
      .slice(0, LISTED);
    const shown = new Set(item.row.shown ? item.row.shown.bus_id : []),
      anyBus = Boolean(item.model.whole || item.model.risk),
      boardKey = encodeURIComponent(board.key),
      id = encodeURIComponent(item.model.id);
    powerphase.drawn.worstBuses = order.map((bus) => ids[bus]);
    const digits = (name) => uniform(order.map((bus) => item.by[name][bus])),
      columns = [
        ["safety_mbrier", "Safety_mBrier", digits("safety_mbrier")],
        ["brier", "Brier", digits("brier")],
        ["violation_probability", "probability of leaving the band", percent],
        ["violation", "share of the time outside it", percent],
      ];
    const linked = anyBus || order.some((bus) => shown.has(ids[bus])),
      labels = ["Bus", ...columns.map(([, text]) => text)],
      heads = linked ? [...labels, "forecast"] : labels,
      target = (bus) => `#forecasts?board=${boardKey}&bus=${bus}&models=${id}`,
      numeric = (text) => h("td", { class: "n" }, text);
    const link = (bus) =>
      shown.has(bus) || anyBus
        ? h("a", { href: target(bus), "aria-label": `show the forecast of bus ${bus}` }, "show")
        : null;
    const line = (bus) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, String(ids[bus])),
        columns.map(([name, , text]) => numeric(text(item.by[name][bus]))),
        linked ? numeric(link(ids[bus])) : null,
      );
    const none = "Safety_mBrier is 0 at every bus.",
      empty = h("tr", {}, h("td", { colspan: heads.length }, none)),
      top = heads.map((text, k) => h("th", { scope: "col", class: k ? "n" : "" }, text));
    $("#worst-table").replaceChildren(
      h("caption", { class: "sr" }, `Worst buses of ${title(board, item.model)} by Safety_mBrier`),
      h("thead", {}, h("tr", {}, top)),
      h("tbody", {}, item.sorted[0] > 0 ? order.map(line) : empty),
    );
  };

  const paint = () => {
    survival();
    worst();
    reliability();
    overDay();
    table();
  };

  const refresh = async () => {
    const thisTurn = ++turn,
      models = available().filter((model) => chosen.includes(model.id));
    const rows = await Promise.all(models.map(read));
    if (thisTurn !== turn) return;
    loaded = rows;
    const calm = !board.truth.violations && loaded.every((item) => item.sorted[0] < NEGLIGIBLE),
      none = $("#safety-none");
    $("#page-safety .charts").hidden = !loaded.length || calm;
    $("#worst-table").closest(".panel").hidden = !loaded.length || calm;
    none.hidden = board.truth.violations > 0 || !loaded.length;
    const elsewhere = site.boards.some((other) => other.passing_risk > 0) ? ELSEWHERE : "";
    none.textContent = calm ? CALM + elsewhere : ALARMS;
    if (!loaded.length || calm) return;
    const before = $("#worst-model").value,
      first = loaded.find((item) => item.sorted[0] > 0) || loaded[0];
    options(
      $("#worst-model"),
      loaded.map((item) => [item.model.id, title(board, item.model)]),
      loaded.some((item) => item.model.id === before) ? before : first.model.id,
    );
    paint();
  };

  const chip = (model) =>
    h(
      "label",
      { class: "toggle colored", style: `--c: var(${color(model.name)})`, "data-model": model.id },
      h("input", { type: "checkbox", value: model.id, checked: chosen.includes(model.id) }),
      h("span", {}, lineKey(model), title(board, model)),
    );
  const lineKey = (model) =>
    key(model.name, fillOf(board, model.name), dashes(board, model));

  // One row of each model; its other seeds and variants are in a list to open.
  const picks = (models) => {
    const firsts = defaults(Infinity),
      rest = models.filter((model) => !firsts.includes(model.id)),
      open = rest.some((model) => chosen.includes(model.id)),
      summary = h("summary", {}, `${rest.length} variants and other seeds`),
      more = h("details", { open }, summary, h("div", { class: "toggles" }, rest.map(chip)));
    const none = h("p", { class: "missing" }, withCode(powerphase.NO_ARRAYS));
    $("#safety-models").replaceChildren(
      ...firsts.map((id) => chip(models.find((model) => model.id === id))),
      ...(models.length ? [] : [none]),
      ...(rest.length ? [more] : []),
    );
  };

  const show = async (nextBoard) => {
    const thisTurn = ++turn;
    board = nextBoard;
    ids = await busIds(board);
    if (thisTurn !== turn) return;
    const { chosen: query } = address(),
      models = available();
    chosen = query.get("models")
      ? query
          .get("models")
          .split(",")
          .filter((id) => models.some((model) => model.id === id))
      : [];
    if (!chosen.length) chosen = defaults(6);
    picks(models);
    await refresh();
  };

  const start = () => {
    $("#safety-models").addEventListener("change", () => {
      chosen = $$("#safety-models input")
        .filter((box) => box.checked)
        .map((box) => box.value);
      choose({ board: board.key, models: chosen.join(",") });
      refresh();
    });
    $("#worst-model").addEventListener("change", table);
    const point = (event) => {
      const label = event.target.closest("label");
      highlight(label && chosen.includes(label.dataset.model) ? label.dataset.model : null);
    };
    for (const kind of ["pointerover", "focusin"]) $("#safety-models").addEventListener(kind, point);
    for (const kind of ["pointerleave", "focusout"])
      $("#safety-models").addEventListener(kind, () => highlight(null));
  };

  return { start, show, resize: () => loaded.length && paint() };
})();
