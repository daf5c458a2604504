// Fans of weighted scenarios of one bus: models as rows, windows as columns.
"use strict";
powerphase.pages.forecasts = (() => {
  const {
    $,
    $$,
    h,
    s,
    site,
    choose,
    address,
    options,
    significant,
    percent,
    clock,
    day,
    load,
    unpack,
    withCode,
    SCORE,
    ALL,
  } = powerphase;
  const { frame, path, area, extent, crosshair } = powerphase.charts;
  const { fans, risks, bandText, busIds, title, choices, KINDS, STEPS } = powerphase.scenarios;
  const { color, key, fillOf } = powerphase.looks;
  const NAMES = { P: "P", Q: "Q", V: "V", theta: "θ" },
    MAX_LISTED = 300,
    MAX_ROOM = 2,
    RISK_ONLY = `A sidecar without scenarios of this bus has its risk: the line is the forecast probability of leaving the band, and red marks the time that the voltage was outside. ${ALL} draws the voltages of every bus.`;
  let board = null,
    ids = null,
    state = null,
    turn = 0,
    last = null;

  const unit = (variable) => {
    if (variable === "V") return "p.u.";
    if (variable === "theta") return "rad";
    return board.scale ? { P: "MW", Q: "MVAr" }[variable] : "share of the largest";
  };
  const scale = (variable) =>
    board.scale && variable in { P: 0, Q: 1 } ? board.scale[variable === "P" ? 0 : 1] : 1;

  const drawable = (model) => model.shown || model.whole;

  const defaults = () => {
    const ofKind = (kind) =>
      board.models.filter((m) => m.kind === kind && !m.name.includes("+") && drawable(m));
    const names = new Set(),
      picked = [];
    // A single scenario is no fan.
    const fansFirst = (list) =>
      [...list].sort((a, b) => (b.scenarios > 1) - (a.scenarios > 1));
    for (const model of [
      ...fansFirst(ofKind("model")),
      ...fansFirst(ofKind("reference")),
      ...ofKind("oracle"),
      ...board.models,
    ]) {
      if (!names.has(model.name) && drawable(model)) {
        names.add(model.name);
        picked.push(model.id);
      }
    }
    return picked.slice(0, 3);
  };

  const modelsShown = () =>
    state.models.map((id) => board.models.find((model) => model.id === id)).filter(Boolean);

  // The positions, in the order of the scores, of the buses that the models can show: as a fan, or
  // by the risk of each step.
  const buses = async () => {
    const models = modelsShown();
    if (models.some((model) => model.whole || model.risk)) return [...ids.keys()];
    return withScenarios();
  };

  const withScenarios = async () => {
    const models = modelsShown();
    if (models.some((model) => model.whole)) return [...ids.keys()];
    const rows = await Promise.all(
      models.filter((model) => model.shown).map((model) => load(model.file)),
    );
    const shownIds = new Set(rows.flatMap((row) => row.shown.bus_id));
    return [...ids.keys()].filter((k) => shownIds.has(ids[k]));
  };

  const ranking = async () => {
    const model = modelsShown().find((item) => item.file);
    if (!model || state.order === "number") return null;
    const row = await load(model.file);
    if (state.order === "risk") {
      const risk = await unpack(row.by_bus.violation_probability);
      return { value: (k) => risk[k], text: percent };
    }
    const error = await unpack(row.by_bus.crps),
      kind = KINDS.indexOf(state.variable);
    return {
      value: (k) => error[k * 4 + kind],
      text: (value) => `CRPS ${significant(value, 2)}`,
    };
  };

  const list = async () => {
    const search = $("#bus-search").value.trim(),
      rank = await ranking();
    let positions = await buses();
    const all = positions.length,
      drawable = new Set(await withScenarios());
    if (search) positions = positions.filter((k) => String(ids[k]).includes(search));
    if (rank) positions.sort((a, b) => rank.value(b) - rank.value(a) || a - b);
    const shown = positions.slice(0, MAX_LISTED);
    options(
      $("#bus-list"),
      shown.map((k) => [
        ids[k],
        `Bus ${ids[k]}${rank ? `\u2003${rank.text(rank.value(k))}` : ""}${drawable.has(k) ? "" : "\u2003risk only"}`,
      ]),
      state.bus,
    );
    powerphase.drawn.buses = shown.map((k) => ids[k]);
    const meaning =
      state.order === "risk"
        ? "Percentages: mean probability of leaving the band over all steps and windows."
        : state.order === "error"
          ? "CRPS over all steps and windows."
          : "";
    const every = `${ids.length.toLocaleString("en")} buses`,
      fanBuses = `Sidecars have scenarios of ${drawable.size}; ${ALL} draws the voltages of all.`;
    const shownBuses =
      all < ids.length
        ? `${all} of ${every}: those in sidecars. ${ALL} shows all.`
        : drawable.size < all
          ? `${every}. ${fanBuses}`
          : `${every}.`;
    const note = `${shownBuses} ${positions.length ? meaning : "No bus has this number."}`;
    $("#bus-note").replaceChildren(...withCode(note));
  };

  const limits = (low, high) =>
    (board.band || []).filter((limit) => limit > low - 0.6 * (high - low) && limit < high + 0.6 * (high - low));

  const drawFan = (box, fan, domain, model, k, single) => {
    const factor = scale(state.variable),
      up = (list) => Array.from(list, (value) => value * factor);
    const label = `${title(board, model)}, bus ${state.bus}, ${NAMES[state.variable]}, ${day(board.windows[fan.window])}`;
    const chart = frame(box, {
      label,
      x: {
        domain: [0, 96],
        ticks: powerphase.charts.HOURS.filter((_, n) => single || n % 2 === 0),
      },
      y: { domain },
      margin: { left: 52, right: 14 },
      height: single ? 340 : 190,
    });
    const { sx, sy, plot, margin, width } = chart,
      xs = Array.from({ length: fan.levels[0].length }, (_, n) => sx(n));
    const levels = fan.levels.map((list) => list && up(list)),
      truth = fan.truth && up(fan.truth);
    const clip = `clip-${k}-${fan.window}`;
    chart.svg.prepend(
      s(
        "clipPath",
        { id: clip },
        s("rect", {
          x: margin.left,
          y: margin.top,
          width: width - margin.left - margin.right,
          height: chart.height - margin.top - margin.bottom,
        }),
      ),
    );
    const inside = s("g", { "clip-path": `url(#${clip})`, style: `--c: var(${color(model.name)})` });
    if (state.variable === "V") {
      for (const [side, limit] of (board.band || []).entries()) {
        if (limit < domain[0] || limit > domain[1]) continue;
        const y = sy(limit),
          top = side ? margin.top : y,
          bottom = side ? y : chart.height - margin.bottom;
        inside.append(
          s("rect", {
            class: "outside",
            x: margin.left,
            width: width - margin.left - margin.right,
            y: top,
            height: Math.max(0, bottom - top),
          }),
          s("line", { class: "limit", x1: margin.left, x2: width - margin.right, y1: y, y2: y }),
        );
      }
    }
    const ys = levels.map((list) => list && list.map(sy));
    inside.append(s("path", { class: "band-80", d: area(xs, ys[0], ys[4]) }));
    if (ys[1]) inside.append(s("path", { class: "band-50", d: area(xs, ys[1], ys[3]) }));
    const heaviest = Math.max(...fan.weights, 1e-9);
    fan.scenarios.forEach((scenario, m) =>
      inside.append(
        s("path", {
          class: "scenario",
          style: `opacity: ${(0.15 + (0.4 * fan.weights[m]) / heaviest).toFixed(2)}`,
          d: path(xs, up(scenario).map(sy)),
        }),
      ),
    );
    inside.append(
      s("path", {
        class: "median",
        d: path(xs, ys[2]),
        "data-values": levels[2].map((value) => value.toPrecision(6)).join(" "),
      }),
    );
    if (truth) inside.append(s("path", { class: "truth", d: path(xs, truth.map(sy)) }));
    plot.append(inside);
    const text = (value) => significant(value, state.variable === "V" ? 4 : 3);
    crosshair(chart, {
      count: xs.length,
      at: (n) => n,
      describe: (n) =>
        [
          `${clock(n)} UTC`,
          truth ? `actual ${text(truth[n])} ${unit(state.variable)}` : "",
          `median ${text(levels[2][n])}`,
          `80 %: ${text(levels[0][n])} to ${text(levels[4][n])}`,
        ]
          .filter(Boolean)
          .join("\n"),
    });
    powerphase.drawn.fans.push({
      model: model.id,
      window: fan.window,
      levels,
      scenarios: fan.scenarios.length,
      truth,
    });
  };

  const draw = async () => {
    const thisTurn = ++turn,
      models = modelsShown();
    const fansByModel = await Promise.all(
      models.map((model) => fans(model, ids, state.bus, state.variable)),
    );
    const risksByModel = await Promise.all(
      models.map((model, k) => (fansByModel[k] ? null : riskOf(model))),
    );
    if (thisTurn !== turn) return;
    last = { models, fansByModel, risksByModel };
    paint();
  };

  // The risk of the bus by step, for a model without its scenarios.
  const riskOf = async (model) => {
    const risk = state.variable === "V" ? await risks(model, ids) : null,
      bus = ids.indexOf(state.bus),
      steps = [...Array(STEPS).keys()];
    if (!risk || bus < 0) return null;
    return risk.windows.map((window, w) => ({
      window,
      probability: steps.map((t) => risk.risk(w, bus, t)),
      happened: risk.known && steps.map((t) => risk.happened(w, bus, t) > 0),
    }));
  };

  const drawRisk = (box, part, model, single) => {
    const chart = frame(box, {
      label: `${title(board, model)}, bus ${state.bus}, probability of leaving the band, ${day(board.windows[part.window])}`,
      x: {
        domain: [0, STEPS],
        ticks: powerphase.charts.HOURS.filter((_, n) => single || n % 2 === 0),
      },
      y: { domain: [0, 1], ticks: [0, 0.5, 1].map((at) => ({ at, text: `${100 * at} %` })) },
      margin: { left: 52, right: 14 },
      height: single ? 340 : 190,
    });
    const { sx, sy, plot, margin, height } = chart,
      xs = part.probability.map((_, t) => sx(t)),
      outside = part.happened ? [...part.happened.keys()].filter((t) => part.happened[t]) : [];
    plot.append(
      s(
        "g",
        { style: `--c: var(${color(model.name)})` },
        outside.map((t) =>
          s("rect", {
            class: "outside",
            x: sx(t),
            width: sx(t + 1) - sx(t),
            y: margin.top,
            height: height - margin.top - margin.bottom,
          }),
        ),
        s("path", { class: "median", d: path(xs, part.probability.map(sy)) }),
      ),
    );
    crosshair(chart, {
      count: STEPS,
      at: (t) => t,
      describe: (t) =>
        [
          `${clock(t)} UTC`,
          `risk ${percent(part.probability[t])}`,
          part.happened ? `actually ${part.happened[t] ? "outside" : "inside"}` : "",
        ]
          .filter(Boolean)
          .join("\n"),
    });
    powerphase.drawn.risks.push({ model: model.id, ...part });
  };

  // One scale for all fans, so that they can be compared; outlying scenarios are cut off before they
  // would flatten the truth.
  const domainOf = (every, factor) => {
    const lines = (fan) => (fan.scenarios.length ? fan.scenarios : fan.levels.filter(Boolean)),
      truths = every.map((fan) => fan.truth || fan.levels[2]);
    let [low, high] = extent(
      every.flatMap((fan, k) => [truths[k], ...lines(fan)]),
      0,
    );
    const [least, most] = extent(truths, 0),
      widths = every.map((fan) => Math.max(...fan.levels[4].map((v, n) => v - fan.levels[0][n]))),
      usual = widths.sort((a, b) => a - b)[Math.floor(widths.length / 2)],
      room = MAX_ROOM * Math.max(most - least, usual);
    [low, high] = extent([[Math.max(low, least - room), Math.min(high, most + room)]]);
    const near = state.variable === "V" ? limits(low, high) : [];
    return extent([[low, high, ...near]], near.length ? 0.03 : 0).map((value) => value * factor);
  };

  const missing = (model) => {
    if (drawable(model))
      return `There is no forecast of ${NAMES[state.variable]} at bus ${state.bus} by this model. Sidecars have scenarios of up to 12 buses; ${ALL} shows the voltages of all buses.`;
    return model.file
      ? `Only one of a model's seeds stores forecasts to draw, and this is another one; ${ALL} shows this one.`
      : `This row has no sidecar; ${SCORE} writes it.`;
  };

  const swatches = () =>
    [0, 1, 2].forEach((k) => {
      const model = board.models.find((item) => item.id === state.models[k]);
      $(`#model-${k}`).style.borderLeftColor = model ? `var(${color(model.name)})` : "";
    });

  const paint = () => {
    swatches();
    const { models, fansByModel, risksByModel } = last,
      box = $("#fans"),
      factor = scale(state.variable);
    const keep = (list) =>
      (list || []).filter((fan) => state.window === "all" || String(fan.window) === state.window);
    const every = fansByModel.flatMap(keep);
    powerphase.drawn.fans = [];
    powerphase.drawn.risks = [];
    const single = state.window !== "all";
    box.classList.toggle("single", single);
    const domain = every.length ? domainOf(every, factor) : null;
    $("#fan-legend").classList.toggle("voltage", state.variable === "V" && Boolean(board.band));
    $("#fan-band").textContent = `band ${bandText(board)}`;
    const head = h(
      "h2",
      { class: "fan-title" },
      `Bus ${state.bus}, ${NAMES[state.variable]} `,
      h("span", { class: "muted" }, `[${unit(state.variable)}], UTC`),
    );
    const drawings = models.map((_, k) => [...keep(fansByModel[k]), ...keep(risksByModel[k])]),
      cell = (drawing) =>
        h(
          "figure",
          {},
          h("figcaption", {}, day(board.windows[drawing.window])),
          h("div", { class: "fan", style: `height: ${single ? 340 : 190}px` }),
        ),
      content = (model, k) =>
        drawings[k].length
          ? [h("div", { class: "fan-cells" }, drawings[k].map(cell))]
          : [h("p", { class: "missing" }, withCode(missing(model)))];
    const rows = models.map((model, k) =>
      h(
        "section",
        {
          class: "fan-row",
          style: `--c: var(${color(model.name)})`,
          "aria-label": title(board, model),
        },
        h("h3", {}, key(model.name, fillOf(board, model.name)), title(board, model)),
        content(model, k),
      ),
    );
    const someRisk = risksByModel.some(Boolean);
    $("#fan-legend").hidden = !every.length;
    box.replaceChildren(
      head,
      ...(someRisk ? [h("p", { class: "note" }, withCode(RISK_ONLY))] : []),
      ...(rows.length
        ? rows
        : [h("p", { class: "missing" }, "No row of this grid has forecasts to draw.")]),
    );
    rows.forEach((row, k) =>
      $$(".fan", row).forEach((box, n) =>
        fansByModel[k]
          ? drawFan(box, drawings[k][n], domain, models[k], k, single)
          : drawRisk(box, drawings[k][n], models[k], single),
      ),
    );
  };

  const remember = () =>
    choose({
      board: board.key,
      bus: state.bus,
      variable: state.variable,
      window: state.window === "all" ? null : state.window,
      models: state.models.join(","),
      order: state.order,
    });

  const windows = () => {
    const model = modelsShown().find(drawable);
    const read = async () =>
      model && model.shown ? (await load(model.file)).shown.window : model?.whole?.windows || [];
    return read();
  };

  const show = async (nextBoard) => {
    const thisTurn = ++turn;
    board = nextBoard;
    const { chosen } = address();
    ids = await busIds(board);
    if (thisTurn !== turn) return;
    const chosenModels = chosen.get("models")
      ? chosen
          .get("models")
          .split(",")
          .filter((id) => board.models.some((model) => model.id === id))
      : [];
    state = {
      models: chosenModels.length ? chosenModels : defaults(),
      bus: Number(chosen.get("bus")) || board.first_bus || ids[0],
      variable: chosen.get("variable") || "V",
      window: chosen.get("window") || "all",
      order: chosen.get("order") || "risk",
    };
    for (const input of $$("#variable input")) input.checked = input.value === state.variable;
    $("#bus-order").value = state.order;
    const named = choices(board, board.models);
    [0, 1, 2].forEach((k) =>
      options($(`#model-${k}`), k ? [["", "none"], ...named] : named, state.models[k] || ""),
    );
    const shownWindows = await windows();
    if (thisTurn !== turn) return;
    options(
      $("#window"),
      [
        ["all", `all ${shownWindows.length} shown`],
        ...shownWindows.map((window) => [window, day(board.windows[window])]),
      ],
      state.window,
    );
    await list();
    await draw();
  };

  const start = () => {
    const change = (changes, redo) => {
      Object.assign(state, changes);
      remember();
      if (redo) list();
      draw();
    };
    $("#bus-search").addEventListener("input", list);
    $("#bus-search").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && powerphase.drawn.buses.length) {
        change({ bus: powerphase.drawn.buses[0] });
        $("#bus-list").value = state.bus;
      }
    });
    $("#bus-order").addEventListener("change", () => {
      state.order = $("#bus-order").value;
      remember();
      list();
    });
    $("#bus-list").addEventListener("change", () => change({ bus: Number($("#bus-list").value) }));
    $("#window").addEventListener("change", () => change({ window: $("#window").value }));
    for (const input of $$("#variable input"))
      input.addEventListener("change", () => change({ variable: input.value }, true));
    for (const k of [0, 1, 2])
      $(`#model-${k}`).addEventListener("change", () =>
        change({ models: [0, 1, 2].map((n) => $(`#model-${n}`).value).filter(Boolean) }, true),
      );
  };

  return { start, show, resize: () => last && paint() };
})();
