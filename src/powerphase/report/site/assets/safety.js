// Where forecasts of voltages leave their band, against what happened: by bus, by step, by probability.
"use strict";
powerphase.pages.safety = (() => {
  const { $, $$, h, s, address, choose, options, significant, percent, clock, load, unpack } =
    powerphase;
  const { frame, path, extent, color, crosshair } = powerphase.charts;
  const { busIds, title } = powerphase.scenarios;
  const WORST = 200,
    LISTED = 15,
    FLOOR = 1e-4;
  let board = null,
    chosen = [],
    loaded = [],
    ids = null,
    turn = 0;

  const available = () => board.models.filter((model) => model.file);
  const defaults = () => {
    const names = new Set();
    return available()
      .filter((m) => !m.name.includes("+") && !names.has(m.name) && names.add(m.name))
      .slice(0, 6)
      .map((m) => m.id);
  };

  const read = async (model) => {
    const row = await load(model.file),
      by = {};
    for (const name of ["safety_mbrier", "violation_probability", "violation", "brier"])
      by[name] = await unpack(row.by_bus[name]);
    return { model, row, by, sorted: Float32Array.from(by.safety_mbrier).sort().reverse() };
  };

  // A model keeps its colour while it is shown; another takes the first that is free.
  const slots = new Map();
  const assign = () => {
    for (const id of [...slots.keys()]) if (!chosen.includes(id)) slots.delete(id);
    for (const id of chosen)
      if (!slots.has(id))
        slots.set(
          id,
          [...Array(99).keys()].find((k) => ![...slots.values()].includes(k)),
        );
  };
  const shade = (one) => color(slots.get(one.model.id));
  const names = () => loaded.map((one) => title(board, one.model));

  const survival = () => {
    const box = $("#survival"),
      count = loaded[0].sorted.length;
    const chart = frame(box, {
      label: "Share of buses whose Safety_mBrier exceeds a threshold",
      x: { domain: [FLOOR, 1], log: true, label: "threshold x" },
      y: { domain: [0.7 / count, 1], log: true, label: "share of buses above x" },
      margin: { top: 24 },
    });
    const grid = Array.from({ length: 161 }, (_, k) => 10 ** (Math.log10(FLOOR) * (1 - k / 160)));
    powerphase.drawn.survival = loaded.map((one) => ({
      model: one.model.id,
      x: grid,
      y: grid.map((x) => {
        let n = 0;
        while (n < count && one.sorted[n] > x) n++;
        return n / count;
      }),
    }));
    const xs = grid.map(chart.sx);
    powerphase.drawn.survival.forEach((curve, k) =>
      chart.plot.append(
        s("path", {
          class: "line",
          style: `--c: var(${shade(loaded[k])})`,
          d: path(
            xs,
            curve.y.map((y) => (y > 0 ? chart.sy(y) : NaN)),
          ),
        }),
      ),
    );
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
    const many = Math.min(WORST, loaded[0].sorted.length);
    const top = Math.max(...loaded.map((one) => one.sorted[0]), 0.01);
    const places = Array.from({ length: many }, (_, k) => ({ at: k + 1 }));
    const chart = frame($("#worst"), {
      label: "Safety_mBrier of the worst buses of each model",
      // Of few buses, ticks of a usual axis would fall between them.
      x: {
        domain: [1, many],
        label: "place among the worst",
        ticks: many <= 20 && places.filter((place) => many <= 10 || place.at % 5 === 0),
      },
      y: { domain: [0, top * 1.05], label: "Safety_mBrier" },
      margin: { top: 24 },
    });
    const xs = Array.from({ length: many }, (_, k) => chart.sx(k + 1));
    powerphase.drawn.worst = loaded.map((one) => ({
      model: one.model.id,
      values: [...one.sorted.subarray(0, many)],
    }));
    loaded.forEach((one) =>
      chart.plot.append(
        s("path", {
          class: "line",
          style: `--c: var(${shade(one)})`,
          d: path(xs, [...one.sorted.subarray(0, many)].map(chart.sy)),
        }),
      ),
    );
    crosshair(chart, {
      count: many,
      at: (k) => k + 1,
      describe: (k) =>
        [
          `bus no. ${k + 1}`,
          ...loaded.map((one, n) => `${names()[n]} ${significant(one.sorted[k], 3)}`),
        ].join("\n"),
    });
  };

  const reliability = () => {
    const chart = frame($("#reliability"), {
      label: "Share of voltages that left the band against the probability they were given",
      x: { domain: [-0.03, 1.02], label: "probability given" },
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
    const most = Math.max(...loaded.flatMap((one) => one.row.reliability.map((bin) => bin[0])));
    powerphase.drawn.reliability = [];
    for (const one of loaded) {
      const bins = one.row.reliability.filter((bin) => bin[0] > 0);
      powerphase.drawn.reliability.push({ model: one.model.id, bins });
      const g = s(
        "g",
        { style: `--c: var(${shade(one)})` },
        s("path", {
          class: "line thin",
          d: path(
            bins.map((b) => chart.sx(b[1])),
            bins.map((b) => chart.sy(b[2])),
          ),
        }),
      );
      for (const [points, given, left] of bins) {
        const dot = s("circle", {
          class: "dot soft",
          cx: chart.sx(given),
          cy: chart.sy(left),
          r: 2 + (6 * Math.log10(1 + points)) / Math.log10(1 + most),
        });
        dot.append(
          s(
            "title",
            {},
            `${title(board, one.model)}: given ${percent(given)}, ${percent(left)} of ${points.toLocaleString("en")} voltages left the band`,
          ),
        );
        g.append(dot);
      }
      chart.plot.append(g);
    }
  };

  const overDay = () => {
    const happened = loaded[0].row.by_step.violation,
      lists = [happened, ...loaded.map((one) => one.row.by_step.violation_probability)];
    const [low, high] = extent(lists, 0.1);
    const chart = frame($("#over-day"), {
      label: "Share of voltages outside the band by time of day",
      x: { domain: [0, 96], ticks: powerphase.charts.HOURS, label: "time of day, UTC" },
      y: { domain: [Math.max(0, low), high], label: "share of voltages" },
      margin: { top: 24, left: 56 },
    });
    const xs = Array.from({ length: happened.length }, (_, k) => chart.sx(k));
    powerphase.drawn.overDay = {
      happened,
      models: loaded.map((one) => ({
        model: one.model.id,
        values: one.row.by_step.violation_probability,
      })),
    };
    loaded.forEach((one) =>
      chart.plot.append(
        s("path", {
          class: "line",
          style: `--c: var(${shade(one)})`,
          d: path(xs, one.row.by_step.violation_probability.map(chart.sy)),
        }),
      ),
    );
    chart.plot.append(s("path", { class: "truth", d: path(xs, happened.map(chart.sy)) }));
    crosshair(chart, {
      count: happened.length,
      at: (k) => k,
      describe: (k) =>
        [
          `${clock(k)} UTC`,
          `happened ${(100 * happened[k]).toFixed(2)} %`,
          ...loaded.map(
            (one, n) =>
              `${names()[n]} ${(100 * one.row.by_step.violation_probability[k]).toFixed(2)} %`,
          ),
        ].join("\n"),
    });
  };

  const table = () => {
    const one = loaded.find((each) => each.model.id === $("#worst-model").value) || loaded[0];
    const order = [...one.by.safety_mbrier.keys()]
      .sort((a, b) => one.by.safety_mbrier[b] - one.by.safety_mbrier[a] || a - b)
      .slice(0, LISTED);
    const shown = new Set(one.row.shown.bus_id),
      key = encodeURIComponent(board.key),
      id = encodeURIComponent(one.model.id);
    powerphase.drawn.worstBuses = order.map((place) => ids[place]);
    $("#worst-table").replaceChildren(
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          [
            "Bus",
            "Safety_mBrier",
            "Brier",
            "probability of leaving the band",
            "share that left it",
            "",
          ].map((text, k) => h("th", { scope: "col", class: k ? "n" : "" }, text)),
        ),
      ),
      h(
        "tbody",
        {},
        order.map((place) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, String(ids[place])),
            ["safety_mbrier", "brier"].map((name) =>
              h("td", { class: "n" }, significant(one.by[name][place], 3)),
            ),
            ["violation_probability", "violation"].map((name) =>
              h("td", { class: "n" }, percent(one.by[name][place])),
            ),
            h(
              "td",
              { class: "n" },
              shown.has(ids[place]) || one.model.whole
                ? h(
                    "a",
                    { href: `#forecasts?board=${key}&bus=${ids[place]}&models=${id}` },
                    "forecast",
                  )
                : null,
            ),
          ),
        ),
      ),
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
    const mine = ++turn,
      models = available().filter((model) => chosen.includes(model.id));
    assign();
    for (const label of $$("#safety-models label")) {
      const slot = slots.get($("input", label).value);
      label.style.setProperty("--c", slot === undefined ? "var(--faint)" : `var(${color(slot)})`);
    }
    const found = await Promise.all(models.map(read));
    if (mine !== turn) return;
    loaded = found;
    const box = $("#page-safety .charts");
    box.hidden = !loaded.length;
    $("#worst-table").closest(".panel").hidden = !loaded.length;
    if (!loaded.length) return;
    const before = $("#worst-model").value;
    options(
      $("#worst-model"),
      loaded.map((one) => [one.model.id, title(board, one.model)]),
      loaded.some((one) => one.model.id === before) ? before : loaded[0].model.id,
    );
    paint();
  };

  const show = async (given) => {
    const mine = ++turn;
    board = given;
    ids = await busIds(board);
    if (mine !== turn) return;
    const { chosen: asked } = address(),
      models = available();
    slots.clear();
    $("#safety-none").hidden = board.truth.violations > 0;
    chosen = asked.get("models")
      ? asked
          .get("models")
          .split(",")
          .filter((id) => models.some((model) => model.id === id))
      : [];
    if (!chosen.length) chosen = defaults();
    $("#safety-models").replaceChildren(
      ...(models.length
        ? models.map((model) =>
            h(
              "label",
              { class: "toggle colored" },
              h("input", { type: "checkbox", value: model.id, checked: chosen.includes(model.id) }),
              h("span", {}, h("i", { class: "swatch" }), title(board, model)),
            ),
          )
        : [
            h(
              "p",
              { class: "missing" },
              "No row of this grid has arrays beside it; score a forecast again to have them.",
            ),
          ]),
    );
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
  };

  return { start, show, resize: () => loaded.length && paint() };
})();
