// The grid page: buses and lines coloured by a model's risk or score, step by step where it is known.
"use strict";
powerphase.pages.grid = (() => {
  const { $, h, choose, address, options, uniform, percent, clock, day, load, unpack } = powerphase;
  const { withCode, SCORE, ALL, NO_ARRAYS } = powerphase;
  const { busIds, choices, risks, risksOfSome, bandText } = powerphase.scenarios;
  const { key, fillOf } = powerphase.looks;
  const { read: readLines, note: lineNote, titles, ofLines } = powerphase.lines;
  const LISTED = 12,
    LISTED_LINES = 8,
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
  const NO_ENDS = [];
  const TIMED = {
    risk: (band) =>
      `Probability of leaving ${band} in the model's scenarios; rings mark the voltages that left it.`,
    happened: (band) => `Which voltages were outside ${band} at that time.`,
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
    lines = null,
    lineValues = [],
    order = [],
    lineOrder = [],
    digits = String,
    state = null,
    turn = 0,
    timer = 0;

  const stepwise = () => state.quantity in TIMED;
  const isShare = () => stepwise() || state.quantity.startsWith("violation");
  const text = (value) => (isShare() ? percent : digits)(value);
  const topOf = (list, ranked) => {
    if (isShare()) return 1;
    return ranked.length ? list[ranked[0]] : 1e-12;
  };
  const top = () => topOf(values, order);
  const topLine = () => topOf(lineValues, lineOrder);
  const lineText = (value) => (isShare() ? percent : uniform(lineValues))(value);

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

  // The numbers that the drawing gives to buses and, after them, to lines.
  const lineOf = (k) => k - ids.length;
  const titleOf = (k) => (lineOf(k) < 0 ? `Bus ${ids[k]}` : `Line ${nameOf(k)}`);
  const nameOf = (k) => (lineOf(k) < 0 ? String(ids[k]) : lines.list[lineOf(k)].name);
  const selectedSpot = () => {
    if (state.line && lines) {
      const l = lines.list.findIndex((line) => line.name === state.line);
      return l < 0 ? -1 : ids.length + l;
    }
    return state.bus === null ? -1 : ids.indexOf(state.bus);
  };

  const lineFacts = (l) => lines.facts(l, state, lineText(lineValues[l]));

  // What is known about a bus or a line on the chosen day, in sentences.
  const facts = (k) => {
    if (lineOf(k) >= 0) return lineFacts(lineOf(k));
    const now = Number.isNaN(values[k]) ? "not in this sidecar" : text(values[k]);
    if (!daily()) return [now];
    const w = windowIndex(),
      expected = risk.excursion(w, k),
      actual = risk.beyond(w, k),
      hours = hoursOutside(w, k),
      what = state.quantity === "risk" ? `risk ${now}` : values[k] > 0 ? "outside" : "inside",
      said = [`${what} at ${clock(state.step)}`];
    if (expected && sidesText(expected))
      said.push(`scenarios that leave the band go ${sidesText(expected)} on average that day`);
    if (risk.known && !hours) said.push("actually inside all day");
    if (risk.known && hours) {
      const far = actual && sidesText(actual) ? `, ${sidesText(actual)} at most` : "";
      said.push(`actually outside for ${hours} h${far}`);
    }
    return said;
  };

  const network = powerphase.network($("#network"), $("#nodes"), {
    onHover: (k, event) => {
      if (k < 0) return powerphase.tip("");
      return powerphase.tip([titleOf(k), ...facts(k)].join("\n"), event.clientX, event.clientY);
    },
    onSelect: (k) => {
      state.bus = k < 0 || lineOf(k) >= 0 ? null : ids[k];
      state.line = lineOf(k) >= 0 ? nameOf(k) : null;
      remember();
      writeFacts();
    },
    describe: (k) => [titleOf(k), ...facts(k)].join(", "),
    nameOf,
  });

  const readRisk = async () =>
    (await risks(model, ids)) || (row && row.shown ? risksOfSome(board, model, row, ids) : null);

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
    lineValues = lines ? lines.values(state.quantity, Number(state.window), state.step) : [];
    order = ranked(values);
    lineOrder = ranked(lineValues);
    digits = uniform(values);
  };
  const ranked = (list) =>
    [...list.keys()].filter((k) => list[k] > 0).sort((a, b) => list[b] - list[a] || a - b);

  const overloaded = () => {
    if (state.quantity !== "risk" || !lines || !lines.hasSteps) return [];
    const w = lines.windowIndex(Number(state.window));
    return [...lines.list.keys()].filter((l) => lines.happened(w, l, state.step));
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

  const sentence = (text) => h("p", {}, `${text[0].toUpperCase()}${text.slice(1)}.`);
  const pick = (k) =>
    h("button", { type: "button", class: "pick", onclick: () => network.select(k) }, titleOf(k));

  // The lines that end at a bus and are at risk, with what is known about each.
  const linesOf = (k) => {
    if (!lines || !lines.total.rated) return [];
    const list = lines.of(k);
    if (!list.length) return [h("p", {}, "None of its lines is among those at risk.")];
    const item = (l) => {
      const said = lineFacts(l),
        short = said.slice(0, Math.max(1, said.length - 1)); // the mean is in the line's own facts
      return h("li", {}, pick(ids.length + l), ` ${short.join("; ")}.`);
    };
    return [h("h3", {}, "Its lines at risk"), h("ul", {}, list.map(item))];
  };

  // The selected bus or line, above the lists.
  const writeFacts = () => {
    const box = $("#bus-facts"),
      k = selectedSpot();
    box.hidden = k < 0;
    if (k < 0) return;
    const isLine = lineOf(k) >= 0,
      link = !isLine && canShow(k) && h("a", { href: forecastOf(k) }, "Show its forecast"),
      ends = isLine ? lines.list[lineOf(k)].ends.filter((end) => end >= 0).map(pick) : linesOf(k);
    box.replaceChildren(h("h2", {}, titleOf(k)), ...facts(k).map(sentence), ...(link ? [link] : []), ...ends);
  };

  const bar = (part) => {
    const share = Math.min(1, part),
      shade = `var(--r${Math.min(5, Math.floor(6 * share))})`;
    return h("i", { style: `width: ${(100 * share).toFixed(1)}%; background: ${shade}` });
  };
  const lineItem = (l) => {
    const now = overloaded().includes(l) ? h("small", {}, " overloaded") : null,
      label = [h("span", {}, titleOf(ids.length + l), now), h("b", {}, lineText(lineValues[l]))],
      onclick = () => network.select(ids.length + l);
    label.push(bar(lineValues[l] / topLine()));
    return h("li", { "data-line": lines.list[l].name }, h("button", { type: "button", onclick }, label));
  };
  const listItem = (k) => {
    const label = [
        h("span", {}, `Bus ${ids[k]}`, arrow(k)),
        h("b", {}, text(values[k])),
        bar(values[k] / top()),
      ],
      inner = canShow(k) ? h("a", { href: forecastOf(k) }, label) : h("span", {}, label);
    return h("li", { "data-bus": ids[k] }, inner);
  };

  // Whether no voltage leaves its band, neither actually nor in the model's scenarios.
  const isCalm = () => {
    const entry = board.entries.find((e) => e.name === model.name && e.kind !== "paper");
    return !board.truth.violations && Boolean(entry) && entry.mean.safety_mbrier === 0;
  };
  const linesAtRisk = () => {
    const entry = board.entries.find((e) => e.name === model.name && e.kind !== "paper");
    return board.truth.overloads > 0 || Boolean(entry && entry.mean.overload_brier > 0);
  };
  // Why the list is empty.
  const nothing = () => {
    if (isCalm()) return CALM;
    return stepwise() ? "No bus at this time." : "It is 0 at every bus.";
  };

  // The worst lines, and why there are none.
  const writeLines = () => {
    const when = stepwise() ? ` at ${clock(state.step)}` : "",
      what = { risk: "most at risk", happened: "overloaded" }[state.quantity] || "with the highest";
    const mean = titles[state.quantity] ? ` ${titles[state.quantity]}` : "";
    $("#lines-title").textContent = lineOrder.length ? `Lines ${what}${mean}${when}` : "Lines";
    const none = lines && lines.total.atRisk && stepwise() && lines.hasSteps ? " None at this time." : "";
    const note = lineNote(row, lines, state.quantity);
    $("#lines-note").replaceChildren(...note, lineOrder.length ? "" : none);
    $("#worst-lines").replaceChildren(...lineOrder.slice(0, LISTED_LINES).map(lineItem));
    $("#line-legend").hidden = !drawn || !lineOrder.length;
    $("#line-legend .marked").hidden = state.quantity !== "risk";
  };

  const writeTexts = () => {
    const sliding = stepwise() && Boolean(risk),
      [from, , to] = $("#ramp").children;
    $("#grid-slider").hidden = $("#grid-window-field").hidden = !stepwise();
    $("#step").disabled = $("#play").disabled = !sliding;
    $("#step").setAttribute("aria-valuetext", `${clock(state.step)} UTC`);
    $("#step-time").textContent = `${clock(state.step)} UTC`;
    from.textContent = text(0);
    const isScore = !isShare() && lineOrder.length;
    to.textContent = isScore ? `buses ${text(top())}, lines ${lineText(topLine())}` : text(top());
    const what = stepwise()
        ? TIMED[state.quantity](bandText(board))
        : `By bus, over all steps and windows: ${MEANS[state.quantity]}.`,
      lineWhat = (lines && lines.list.length && ofLines[state.quantity]) || "",
      how = "Choose a bus or a line for its numbers. Zoom with the wheel, a pinch or + and −; move by dragging or with the arrow keys.";
    const sides = sliding && risk.all && risk.excursion(0, 0) ? SIDES : "",
      note = [isCalm() ? CALM : "", what, lineWhat, sides, sliding && !risk.all ? SOME : "", drawn ? how : ""].join(" ");
    $("#grid-note").replaceChildren(...withCode(note));
    const when = stepwise()
      ? `at ${clock(state.step)}, ${board.windows[Number(state.window)].slice(0, 10)}`
      : "";
    $("#at-risk-title").textContent = stepwise()
      ? `Buses ${state.quantity === "risk" ? "most at risk" : "outside"} ${when}`
      : `Buses with the highest ${MEANS[state.quantity]}`;
    const above = order.filter((k) => values[k] > 0.5).length;
    const count = `${order.length.toLocaleString("en")} buses above 0`;
    $("#at-risk-count").textContent = !order.length
      ? nothing()
      : state.quantity === "risk"
        ? `${count}, ${above.toLocaleString("en")} above 50 %`
        : count;
    $("#at-risk").replaceChildren(...order.slice(0, LISTED).map(listItem));
    writeLines();
    writeFacts();
    $("#network").setAttribute(
      "aria-label",
      `Network of ${ids.length} buses, ${order.length} of them and ${lineOrder.length} lines above zero; the lists next to it have the highest`,
    );
  };

  const refresh = async () => {
    const thisTurn = ++turn;
    await compute();
    if (thisTurn !== turn) return;
    const ringed = rings(),
      marked = overloaded(),
      namesOf = (list) => list.map((l) => lines.list[l].name);
    powerphase.drawn.network = {
      ...state,
      values,
      rings: ringed.map((k) => ids[k]),
      lines: lines && { names: lines.list.map((line) => line.name), values: lineValues, marked: namesOf(marked) },
    };
    writeTexts();
    network.draw({
      ...{ values, rings: ringed, top: top() },
      lines: { ends: lines ? lines.drawn : NO_ENDS, values: lineValues, marked, top: topLine() },
    });
  };

  // The window in which most voltages or lines leave their limits, which is the most interesting.
  const busiest = () => {
    const count = (w) => {
      let sum = 0;
      for (let k = 0; k < ids.length; k++)
        for (let t = 0; t < STEPS; t += 4) sum += risk.happened(w, k, t) || 0;
      if (!lines || !lines.hasSteps) return sum;
      const n = lines.windowIndex(risk.windows[w]);
      for (const l of lines.list.keys())
        for (let t = 0; t < STEPS; t += 4) sum += lines.happened(n, l, t);
      return sum;
    };
    const counts = risk.windows.map((_, w) => count(w));
    return risk.windows[counts.indexOf(Math.max(...counts))];
  };

  const pickModel = async () => {
    $("#grid-look").replaceChildren(key(model.name, fillOf(board, model.name)));
    row = model.file ? await load(model.file) : null;
    risk = await readRisk();
    lines = await readLines(row, ids);
    if (risk && !risk.windows.includes(Number(state.window))) state.window = busiest();
    const timed = risk ? [["risk", "risk, step by step"]] : [];
    if (!risk && stepwise()) state.quantity = "violation_probability";
    if (risk && risk.known) timed.push(["happened", "actual violations, step by step"]);
    const means = row ? Object.entries(MEANS) : [];
    options($("#grid-quantity"), [...timed, ...means], state.quantity);
    const windows = risk ? risk.windows.map((window) => [window, day(board.windows[window])]) : [];
    options($("#grid-window"), windows, state.window);
    await refresh();
    if (state.line) network.select(selectedSpot()); // other lines have other numbers
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
        isCalm() && !linesAtRisk() && model.file
          ? "crps" // a map of risk would be empty, but errors are everywhere
          : model.risk || model.whole
            ? "risk"
            : "violation_probability";
    state = {
      quantity: chosenQuantity in TIMED || chosenQuantity in MEANS ? chosenQuantity : defaultQuantity,
      window: chosen.get("window") ?? -1,
      step: Math.max(0, Math.min(STEPS - 1, Number(chosen.get("step") ?? EVENING) || 0)),
      bus: Number(chosen.get("bus")) || null,
      line: chosen.get("line"),
    };
    $("#step").value = state.step;
    await pickModel();
    if (board === nextBoard && selectedSpot() >= 0) network.select(selectedSpot());
  };

  const remember = () => {
    const { quantity, window, step, bus, line } = state;
    choose({ board: board.key, model: model.id, by: quantity, window, step, bus, line });
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
