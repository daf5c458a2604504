// The grid page: buses coloured by a model's risk or score, step by step where it is known.
"use strict";
powerphase.pages.grid = (() => {
  const { $, h, choose, address, options, uniform, percent, clock, day, load, unpack } = powerphase;
  const { withCode, SCORE, ALL, NO_ARRAYS } = powerphase;
  const { busIds, choices, fans } = powerphase.scenarios;
  const { key, fillOf } = powerphase.looks;
  const LISTED = 12,
    BAND = [0.95, 1.05],
    STEPS = 96,
    EVENING = 76,
    RISK_LEVELS = 240,
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

  const network = powerphase.network($("#network"), {
    onHover: (k, event) => {
      const value = k < 0 || Number.isNaN(values[k]) ? "not in this sidecar" : text(values[k]);
      powerphase.tip(k < 0 ? "" : `Bus ${ids[k]}\n${value}`, event.clientX, event.clientY);
    },
  });

  // The risk of all buses, from a sidecar or a forecast file that has it.
  const riskOfAll = async (source) => {
    const [probability, happened] = await Promise.all([
      unpack(source.probability),
      unpack(source.happened),
    ]);
    const at = (w, bus, step) => (w * ids.length + bus) * STEPS + step;
    return {
      windows: source.window,
      all: true,
      known: source.known !== false,
      risk: (...indices) => probability[at(...indices)] / RISK_LEVELS,
      happened: (...indices) => happened[at(...indices)],
    };
  };

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

  const readRisk = async () => {
    if (model.whole) return riskOfAll(await load(`${model.whole.file}-risk`));
    if (row && row.risk) return riskOfAll(row.risk);
    return row && row.shown ? riskOfSome() : null;
  };

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

  const listItem = (k) => {
    const share = Math.min(1, values[k] / top()),
      shade = `var(--r${Math.min(5, Math.floor(6 * share))})`,
      bar = h("i", { style: `width: ${(100 * share).toFixed(1)}%; background: ${shade}` }),
      label = [h("span", {}, `Bus ${ids[k]}`), h("b", {}, text(values[k])), bar],
      query = new URLSearchParams({ board: board.key, bus: ids[k], models: model.id }),
      has = model.whole || (row && row.shown && row.shown.bus_id.includes(ids[k])),
      inner = has ? h("a", { href: `#forecasts?${query}` }, label) : h("span", {}, label);
    return h("li", { "data-bus": ids[k] }, inner);
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
      how = "Zoom with the wheel, a pinch or + and −; move by dragging or with the arrow keys.";
    const note = [what, sliding && !risk.all ? SOME : "", drawn ? how : ""].join(" ");
    $("#grid-note").replaceChildren(...withCode(note));
    const when = stepwise()
      ? `at ${clock(state.step)}, ${board.windows[Number(state.window)].slice(0, 10)}`
      : "";
    $("#at-risk-title").textContent = stepwise()
      ? `${state.quantity === "risk" ? "Highest risk" : "Outside"} ${when}`
      : `Highest ${MEANS[state.quantity]}`;
    const above = order.filter((k) => values[k] > 0.5).length;
    $("#at-risk-count").textContent =
      state.quantity === "risk"
        ? `${order.length.toLocaleString("en")} buses above 0, ${above.toLocaleString("en")} above 50 %`
        : `${order.length.toLocaleString("en")} buses above 0`;
    const none = h("li", { class: "muted" }, stepwise() ? "None." : "All are zero.");
    $("#at-risk").replaceChildren(...(order.length ? order.slice(0, LISTED).map(listItem) : [none]));
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
      defaultQuantity = model.risk || model.whole ? "risk" : "violation_probability";
    state = {
      quantity: chosenQuantity in TIMED || chosenQuantity in MEANS ? chosenQuantity : defaultQuantity,
      window: chosen.get("window") ?? -1,
      step: Math.max(0, Math.min(STEPS - 1, Number(chosen.get("step") ?? EVENING) || 0)),
    };
    $("#step").value = state.step;
    await pickModel();
  };

  const remember = () => {
    const { quantity, window, step } = state;
    choose({ board: board.key, model: model.id, by: quantity, window, step });
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
