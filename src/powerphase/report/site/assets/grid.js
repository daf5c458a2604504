// The grid page: buses coloured by a model's risk or score, step by step where it is known.
"use strict";
powerphase.pages.grid = (() => {
  const { $, h, choose, address, options, uniform, percent, clock, day, load, unpack } = powerphase;
  const { withCode, SCORE, ALL, NO_ARRAYS } = powerphase;
  const { busIds, choices, fans, risks } = powerphase.scenarios;
  const { key, fillOf } = powerphase.looks;
  const LISTED = 12,
    BAND = [0.95, 1.05],
    STEPS = 96,
    EVENING = 76,
    FRAME_MS = 120;
  const MEANS = {
    violation_probability: "mean probability of leaving the band",
    violation: "share of the time outside the band",
    safety_mbrier: "Safety_mBrier",
    brier: "Brier",
    twcrps: "twCRPS",
    necv: "NECV",
    "cvar_0.1": "CVaR_0.1",
    crps: "CRPS of V",
  };
  const TIMED = {
    risk: "Probability of leaving 0.95 to 1.05 p.u. in the model's scenarios; rings mark the voltages that left it.",
    happened: "Which voltages were outside 0.95 to 1.05 p.u.",
  };
  const SIDES = "▼ below and ▲ above the band, in p.u., by the furthest point of the day.",
    CALM = "No voltage leaves its band on this grid, and in no scenario of this model does one.";
  const SOME = `This row's sidecar has no risk by bus and step, so only buses with scenarios in it are coloured; ${SCORE} writes a row with risks, and ${ALL} reads them from a forecast.`;
  let board = null,
    ids = null,
    drawn = false,
    model = null,
    row = null,
    risk = null,
    values = null,
    order = [],
    digits = String,
    state = null,
    turn = 0,
    timer = 0;

  const stepwise = () => state.quantity in TIMED;
  const isShare = () => stepwise() || state.quantity.startsWith("violation");
  const text = (value) => (isShare() ? percent : digits)(value);
  const top = () => {
    if (isShare()) return 1;
    return order.length ? values[order[0]] : 1e-12;
  };

  // Where a voltage goes beyond the band, and how far: below, above, or both on the same day.
  const sidesText = (sides) =>
    ["below", "above"]
      .map((side, n) => sides[n] > 0 && `${side} by ${sides[n].toFixed(3)} p.u.`)
      .filter(Boolean)
      .join(" and ");
  const hoursOutside = (w, k) => {
    let steps = 0;
    for (let t = 0; t < STEPS; t++) steps += risk.happened(w, k, t) > 0 ? 1 : 0;
    return steps / 4;
  };
  const daily = () => stepwise() && risk && risk.all;

  // What is known about a bus on the chosen day, in sentences.
  const facts = (k) => {
    const now = Number.isNaN(values[k]) ? "not in this sidecar" : text(values[k]);
    if (!daily()) return [now];
    const w = windowIndex(),
      expected = risk.excursion(w, k),
      actual = risk.beyond(w, k),
      hours = hoursOutside(w, k),
      what = state.quantity === "risk" ? `risk ${now}` : values[k] > 0 ? "outside" : "inside",
      lines = [`${what} at ${clock(state.step)}`];
    if (expected && sidesText(expected))
      lines.push(`scenarios that leave the band go ${sidesText(expected)} on average that day`);
    if (risk.known && !hours) lines.push("actually inside all day");
    if (risk.known && hours) {
      const far = actual && sidesText(actual) ? `, ${sidesText(actual)} at most` : "";
      lines.push(`actually outside for ${hours} h${far}`);
    }
    return lines;
  };

  const network = powerphase.network($("#network"), $("#nodes"), {
    onHover: (k, event) => {
      if (k < 0) return powerphase.tip("");
      return powerphase.tip([`Bus ${ids[k]}`, ...facts(k)].join("\n"), event.clientX, event.clientY);
    },
    onSelect: (k) => {
      state.bus = k < 0 ? null : ids[k];
      remember();
      writeFacts();
    },
    describe: (k) => [`Bus ${ids[k]}`, ...facts(k)].join(", "),
    nameOf: (k) => String(ids[k]),
  });

  // The risk of the buses with scenarios in a sidecar; that of the others is unknown.
  const riskOfSome = async () => {
    const outside = (v) => v < BAND[0] || v > BAND[1],
      byBus = new Map(),
      steps = [...Array(STEPS).keys()];
    for (const [k, position] of row.shown.position.entries()) {
      if (position === null) continue;
      const windows = await fans(model, ids, row.shown.bus_id[k], "V");
      const share = (fan, t) =>
        fan.scenarios.reduce((sum, scenario, m) => sum + (outside(scenario[t]) ? fan.weights[m] : 0), 0);
      byBus.set(
        position,
        windows.map((fan) => ({
          risk: steps.map((t) => share(fan, t)),
          happened: steps.map((t) => Number(outside(fan.truth[t]))),
        })),
      );
    }
    const pick = (name) => (w, bus, step) =>
      byBus.has(bus) ? byBus.get(bus)[w][name][step] : NaN;
    return {
      windows: row.shown.window,
      all: false,
      known: true,
      risk: pick("risk"),
      happened: pick("happened"),
    };
  };

  const readRisk = async () =>
    (await risks(model, ids)) || (row && row.shown ? riskOfSome() : null);

  const windowIndex = () => Math.max(0, risk.windows.indexOf(Number(state.window)));

  const compute = async () => {
    const n = ids.length;
    values = new Float32Array(n).fill(NaN);
    if (stepwise() && risk) {
      const w = windowIndex();
      values.forEach((_, k) => (values[k] = risk[state.quantity](w, k, state.step)));
    } else if (row && state.quantity in MEANS) {
      const scores = await unpack(row.by_bus[state.quantity]),
        stride = scores.length / n;
      values.forEach((_, k) => (values[k] = scores[k * stride + (stride > 1 ? 2 : 0)]));
    }
    order = [...values.keys()].filter((k) => values[k] > 0);
    order.sort((a, b) => values[b] - values[a] || a - b);
    digits = uniform(values);
  };

  const rings = () => {
    if (state.quantity !== "risk" || !risk || !risk.known) return [];
    const w = windowIndex();
    return [...ids.keys()].filter((k) => risk.happened(w, k, state.step) > 0);
  };

  const canShow = (k) =>
    Boolean(model.whole || model.risk || (row && row.shown && row.shown.bus_id.includes(ids[k])));
  const forecastOf = (k) =>
    `#forecasts?${new URLSearchParams({ board: board.key, bus: ids[k], models: model.id })}`;

  // The side of the band that the list is about: where the model expects it, or where it happened.
  const arrow = (k) => {
    if (!daily()) return null;
    const sides = (state.quantity === "risk" ? risk.excursion : risk.beyond)(windowIndex(), k);
    if (!sides || !sidesText(sides)) return null;
    const marks = ["▼", "▲"].map((mark, n) => sides[n] > 0 && `${mark} ${sides[n].toFixed(3)}`);
    return h("small", { title: sidesText(sides) }, ` ${marks.filter(Boolean).join(" ")}`);
  };

  // The selected bus, above the list.
  const writeFacts = () => {
    const box = $("#bus-facts"),
      k = state.bus === null ? -1 : ids.indexOf(state.bus);
    box.hidden = k < 0;
    if (k < 0) return;
    const lines = facts(k).map((line) => h("p", {}, `${line[0].toUpperCase()}${line.slice(1)}.`)),
      link = canShow(k) ? h("a", { href: forecastOf(k) }, "Show its forecast") : null;
    box.replaceChildren(h("h2", {}, `Bus ${ids[k]}`), ...lines, ...(link ? [link] : []));
  };

  const listItem = (k) => {
    const share = Math.min(1, values[k] / top()),
      shade = `var(--r${Math.min(5, Math.floor(6 * share))})`,
      bar = h("i", { style: `width: ${(100 * share).toFixed(1)}%; background: ${shade}` }),
      label = [h("span", {}, `Bus ${ids[k]}`, arrow(k)), h("b", {}, text(values[k])), bar],
      inner = canShow(k) ? h("a", { href: forecastOf(k) }, label) : h("span", {}, label);
    return h("li", { "data-bus": ids[k] }, inner);
  };

  // Whether no voltage leaves its band, neither actually nor in the model's scenarios.
  const isCalm = () => {
    const entry = board.entries.find((e) => e.name === model.name && e.kind !== "paper");
    return !board.truth.violations && Boolean(entry) && entry.mean.safety_mbrier === 0;
  };
  // Why the list is empty.
  const nothing = () => {
    if (isCalm()) return CALM;
    return stepwise() ? "No bus at this time." : "It is 0 at every bus.";
  };

  const writeTexts = () => {
    const sliding = stepwise() && Boolean(risk),
      [from, , to] = $("#ramp").children;
    $("#grid-slider").hidden = $("#grid-window-field").hidden = !stepwise();
    $("#step").disabled = $("#play").disabled = !sliding;
    $("#step").setAttribute("aria-valuetext", `${clock(state.step)} UTC`);
    $("#step-time").textContent = `${clock(state.step)} UTC`;
    from.textContent = text(0);
    to.textContent = text(top());
    const what =
        TIMED[state.quantity] || `By bus, over all steps and windows: ${MEANS[state.quantity]}.`,
      how = "Choose a bus for its numbers. Zoom with the wheel, a pinch or + and −; move by dragging or with the arrow keys.";
    const sides = sliding && risk.all && risk.excursion(0, 0) ? SIDES : "",
      note = [isCalm() ? CALM : "", what, sides, sliding && !risk.all ? SOME : "", drawn ? how : ""].join(" ");
    $("#grid-note").replaceChildren(...withCode(note));
    const when = stepwise()
      ? `at ${clock(state.step)}, ${board.windows[Number(state.window)].slice(0, 10)}`
      : "";
    $("#at-risk-title").textContent = stepwise()
      ? `${state.quantity === "risk" ? "Highest risk" : "Outside"} ${when}`
      : `Highest ${MEANS[state.quantity]}`;
    const above = order.filter((k) => values[k] > 0.5).length;
    const count = `${order.length.toLocaleString("en")} buses above 0`;
    $("#at-risk-count").textContent = !order.length
      ? nothing()
      : state.quantity === "risk"
        ? `${count}, ${above.toLocaleString("en")} above 50 %`
        : count;
    $("#at-risk").replaceChildren(...order.slice(0, LISTED).map(listItem));
    writeFacts();
    $("#network").setAttribute(
      "aria-label",
      `Network of ${ids.length} buses, ${order.length} above zero; the list next to it has the highest`,
    );
  };

  const refresh = async () => {
    const thisTurn = ++turn;
    await compute();
    if (thisTurn !== turn) return;
    const marked = rings();
    powerphase.drawn.network = { ...state, values, rings: marked.map((k) => ids[k]) };
    writeTexts();
    network.draw({ values, rings: marked, top: top() });
  };

  // The window in which most voltages leave the band, which is the most interesting.
  const busiest = () => {
    const count = (w) => {
      let sum = 0;
      for (let k = 0; k < ids.length; k++)
        for (let t = 0; t < STEPS; t += 4) sum += risk.happened(w, k, t) || 0;
      return sum;
    };
    const counts = risk.windows.map((_, w) => count(w));
    return risk.windows[counts.indexOf(Math.max(...counts))];
  };

  const pickModel = async () => {
    $("#grid-look").replaceChildren(key(model.name, fillOf(board, model.name)));
    row = model.file ? await load(model.file) : null;
    risk = await readRisk();
    if (risk && !risk.windows.includes(Number(state.window))) state.window = busiest();
    const timed = risk ? [["risk", "risk, step by step"]] : [];
    if (!risk && stepwise()) state.quantity = "violation_probability";
    if (risk && risk.known) timed.push(["happened", "actual violations, step by step"]);
    const means = row ? Object.entries(MEANS) : [];
    options($("#grid-quantity"), [...timed, ...means], state.quantity);
    const windows = risk ? risk.windows.map((window) => [window, day(board.windows[window])]) : [];
    options($("#grid-window"), windows, state.window);
    await refresh();
  };

  const readDrawing = async () => {
    const file = await load(board.network.file),
      position = await unpack(file.position),
      n = ids.length,
      unit = (part) => Float32Array.from(part, (v) => v / 65535);
    return {
      x: unit(position.subarray(0, n)),
      y: unit(position.subarray(n)),
      branches: await unpack(file.branches),
    };
  };

  const show = async (nextBoard) => {
    const thisTurn = ++turn;
    board = nextBoard;
    stop();
    const { chosen } = address(),
      models = board.models.filter((item) => item.file || item.whole),
      missing = $("#network-missing");
    ids = await busIds(board);
    const drawing = board.network ? await readDrawing() : null;
    if (thisTurn !== turn) return;
    drawn = Boolean(drawing);
    missing.hidden = drawn && models.length > 0;
    const why = models.length
      ? "There is no drawing of this grid; powerphase has drawings of the grids in its catalogue. The list of buses works without it."
      : NO_ARRAYS;
    missing.replaceChildren(...withCode(why));
    $("#network").hidden = $("#page-grid .zoom").hidden = !drawn;
    network.show(drawing);
    if (!models.length) return;
    model =
      models.find((item) => item.id === chosen.get("model")) ||
      models.find((item) => item.kind === "model" && !item.name.includes("+")) ||
      models[0];
    options($("#grid-model"), choices(board, models), model.id);
    const chosenQuantity = chosen.get("by"),
      defaultQuantity =
        isCalm() && model.file
          ? "crps" // a map of risk would be empty, but errors are everywhere
          : model.risk || model.whole
            ? "risk"
            : "violation_probability";
    state = {
      quantity: chosenQuantity in TIMED || chosenQuantity in MEANS ? chosenQuantity : defaultQuantity,
      window: chosen.get("window") ?? -1,
      step: Math.max(0, Math.min(STEPS - 1, Number(chosen.get("step") ?? EVENING) || 0)),
      bus: Number(chosen.get("bus")) || null,
    };
    $("#step").value = state.step;
    await pickModel();
    if (board === nextBoard && state.bus !== null) network.select(ids.indexOf(state.bus));
  };

  const remember = () => {
    const { quantity, window, step, bus } = state;
    choose({ board: board.key, model: model.id, by: quantity, window, step, bus });
  };
  const change = (changes) => {
    Object.assign(state, changes);
    remember();
    refresh();
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    $("#play").textContent = "▶";
    $("#play").setAttribute("aria-label", "Play the day");
  };
  const play = () => {
    $("#play").textContent = "❚❚";
    $("#play").setAttribute("aria-label", "Pause");
    timer = setInterval(() => {
      if ($("#page-grid").hidden) return stop();
      state.step = (state.step + 1) % STEPS;
      $("#step").value = state.step;
      return refresh();
    }, FRAME_MS);
  };

  const start = () => {
    $("#grid-model").addEventListener("change", () => {
      model = board.models.find((item) => item.id === $("#grid-model").value);
      remember();
      pickModel();
    });
    $("#grid-quantity").addEventListener("change", () =>
      change({ quantity: $("#grid-quantity").value }),
    );
    $("#grid-window").addEventListener("change", () => change({ window: $("#grid-window").value }));
    $("#step").addEventListener("input", () => {
      state.step = Number($("#step").value);
      refresh();
    });
    $("#step").addEventListener("change", remember);
    $("#zoom-in").addEventListener("click", () => network.zoom(1.4));
    $("#zoom-out").addEventListener("click", () => network.zoom(1 / 1.4));
    $("#zoom-fit").addEventListener("click", network.whole);
    $("#play").addEventListener("click", () => (timer ? stop() : play()));
  };

  return { start, show, resize: network.resize };
})();
