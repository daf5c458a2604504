// The network on a canvas: buses coloured by what a model says of them, step by step where that is known.
"use strict";
powerphase.pages.grid = (() => {
  const { $, h, choose, address, options, significant, percent, clock, day, load, unpack } =
    powerphase;
  const { busIds, title, fans } = powerphase.forecasts;
  const LISTED = 12,
    BAND = [0.95, 1.05],
    STEPS = 96,
    RISK_LEVELS = 240;
  const MEANS = {
    violation_probability: ["mean probability of leaving the band", percent],
    violation: ["share of the time that it left the band", percent],
    safety_mbrier: ["Safety_mBrier", significant],
    brier: ["Brier", significant],
    twcrps: ["twCRPS", significant],
    necv: ["NECV", significant],
    "cvar_0.1": ["CVaR_0.1", significant],
    crps: ["CRPS of V", significant],
  };
  let board = null,
    ids = null,
    net = null,
    model = null,
    row = null,
    risk = null,
    values = null,
    turn = 0;
  let state = { quantity: "risk", window: 0, step: 76 },
    view = { scale: 1, x: 0, y: 0 },
    order = [],
    timer = 0,
    hovered = -1;
  const canvas = $("#network");

  const stepwise = () => state.quantity === "risk" || state.quantity === "happened";

  const palette = () => {
    const style = getComputedStyle(document.documentElement),
      color = (name) => style.getPropertyValue(name).trim();
    return {
      line: color("--net-line"),
      idle: color("--net-idle"),
      unknown: color("--net-unknown"),
      ramp: [0, 1, 2, 3, 4, 5].map((k) => color(`--r${k}`)),
      ink: color("--ink"),
    };
  };

  // Probabilities of all buses by step where a sidecar or a forecast file has them, else of some buses.
  const readRisk = async () => {
    const source = model.whole ? await load(`${model.whole.file}-risk`) : row && row.risk;
    if (source) {
      const [probability, happened] = await Promise.all([
        unpack(source.probability),
        unpack(source.happened),
      ]);
      return {
        windows: source.window,
        all: true,
        known: source.known !== false,
        at: (w, place, step) => probability[(w * ids.length + place) * STEPS + step] / RISK_LEVELS,
        happened: (w, place, step) => happened[(w * ids.length + place) * STEPS + step],
      };
    }
    if (!row) return null;
    const places = row.shown.position,
      lists = new Map();
    for (let k = 0; k < places.length; k++) {
      if (places[k] === null) continue;
      const found = await fans(model, ids, row.shown.bus_id[k], "V");
      lists.set(
        places[k],
        found.map((fan) => ({
          risk: Array.from({ length: STEPS }, (_, t) =>
            fan.scenarios.reduce(
              (sum, one, m) => sum + (one[t] < BAND[0] || one[t] > BAND[1] ? fan.weights[m] : 0),
              0,
            ),
          ),
          happened: Array.from(fan.truth, (v) => (v < BAND[0] || v > BAND[1] ? 1 : 0)),
        })),
      );
    }
    return {
      windows: row.shown.window,
      all: false,
      known: true,
      at: (w, place, step) => (lists.has(place) ? lists.get(place)[w].risk[step] : NaN),
      happened: (w, place, step) => (lists.has(place) ? lists.get(place)[w].happened[step] : NaN),
    };
  };

  const compute = async () => {
    const n = ids.length;
    values = new Float32Array(n).fill(NaN);
    if (stepwise() && risk) {
      const w = Math.max(0, risk.windows.indexOf(Number(state.window))),
        pick = state.quantity === "risk" ? risk.at : risk.happened;
      for (let k = 0; k < n; k++) values[k] = pick(w, k, state.step);
    } else if (row && state.quantity in MEANS) {
      const own = await unpack(row.by_bus[state.quantity]),
        stride = own.length / n;
      for (let k = 0; k < n; k++) values[k] = own[k * stride + (stride > 1 ? 2 : 0)];
    }
    order = [...values.keys()]
      .filter((k) => values[k] > 0)
      .sort((a, b) => values[b] - values[a] || a - b);
    powerphase.drawn.network = {
      values,
      step: state.step,
      quantity: state.quantity,
      window: state.window,
      all: Boolean(risk && risk.all),
    };
  };

  const top = () =>
    stepwise() || state.quantity.startsWith("violation")
      ? 1
      : Math.max(...order.slice(0, 1).map((k) => values[k]), 1e-12);
  const text = (value) => (stepwise() ? percent(value) : MEANS[state.quantity][1](value));

  const fit = () => {
    const box = canvas.parentElement.getBoundingClientRect(),
      ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    canvas.style.width = `${box.width}px`;
    canvas.style.height = `${box.height}px`;
  };
  const place = (k) => {
    const pad = 18,
      side = Math.min(canvas.clientWidth, canvas.clientHeight) - 2 * pad;
    const wide = canvas.clientWidth - 2 * pad,
      tall = canvas.clientHeight - 2 * pad;
    const sx = Math.min(wide, 1.6 * side),
      sy = Math.min(tall, 1.6 * side);
    const x = (canvas.clientWidth - sx) / 2 + net.x[k] * sx,
      y = (canvas.clientHeight - sy) / 2 + net.y[k] * sy;
    return [
      (x - canvas.clientWidth / 2) * view.scale + canvas.clientWidth / 2 + view.x,
      (y - canvas.clientHeight / 2) * view.scale + canvas.clientHeight / 2 + view.y,
    ];
  };

  const paint = () => {
    if (!net) return;
    const begun = performance.now(),
      { line, idle, unknown, ramp, ink } = palette();
    const ratio = window.devicePixelRatio || 1,
      pen = canvas.getContext("2d"),
      n = ids.length;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    const xs = new Float32Array(n),
      ys = new Float32Array(n);
    for (let k = 0; k < n; k++) [xs[k], ys[k]] = place(k);
    pen.strokeStyle = line;
    pen.lineWidth = Math.min(1.4, (n > 3000 ? 0.5 : 0.8) * Math.sqrt(view.scale));
    pen.beginPath();
    for (let e = 0; e < net.branches.length; e += 2) {
      const a = net.branches[e],
        b = net.branches[e + 1];
      pen.moveTo(xs[a], ys[a]);
      pen.lineTo(xs[b], ys[b]);
    }
    pen.stroke();
    const radius = Math.max(1, Math.min(5, 34 / Math.sqrt(n) + 0.5)) * Math.sqrt(view.scale),
      high = top();
    // One path for each colour: thousands of buses in a handful of strokes.
    const groups = ramp.map(() => []),
      quiet = [],
      silent = [];
    for (let k = 0; k < n; k++) {
      if (Number.isNaN(values[k])) silent.push(k);
      else if (values[k] <= 0) quiet.push(k);
      else groups[Math.min(ramp.length - 1, Math.floor((values[k] / high) * ramp.length))].push(k);
    }
    const dots = (list, color, size) => {
      pen.fillStyle = color;
      pen.beginPath();
      for (const k of list) {
        pen.moveTo(xs[k] + size, ys[k]);
        pen.arc(xs[k], ys[k], size, 0, 2 * Math.PI);
      }
      pen.fill();
    };
    dots(silent, unknown, radius * 0.7);
    dots(quiet, idle, radius);
    groups.forEach((list, k) =>
      dots(list, ramp[k], radius * (1.25 + 0.15 * k) + (n > 2000 ? 1 : 0)),
    );
    if (hovered >= 0) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.beginPath();
      pen.arc(xs[hovered], ys[hovered], radius * 2 + 3, 0, 2 * Math.PI);
      pen.stroke();
    }
    net.xs = xs;
    net.ys = ys;
    powerphase.drawn.network.painted_ms = performance.now() - begun;
  };

  const words = () => {
    const start = board.windows[Number(state.window)],
      sliding = stepwise() && Boolean(risk);
    $("#grid-slider").hidden = !stepwise();
    $("#grid-window-field").hidden = !stepwise();
    $("#step").disabled = !sliding;
    $("#play").disabled = !sliding;
    $("#step").setAttribute("aria-valuetext", `${clock(state.step)} UTC`);
    $("#step-time").textContent = `${clock(state.step)} UTC`;
    const ends = $("#ramp").children;
    ends[0].textContent = text(0);
    ends[2].textContent = text(top());
    const known =
      risk && risk.all
        ? ""
        : "This row's sidecar has no risk by bus and step, so only the buses whose scenarios it carries are coloured; rows scored anew, or forecast files (--forecasts), bring all.";
    const what =
      state.quantity === "risk"
        ? "Probability of leaving 0.95 to 1.05 p.u., by the model's scenarios."
        : state.quantity === "happened"
          ? "Which voltages were outside 0.95 to 1.05 p.u."
          : `By bus, over all steps and windows: ${MEANS[state.quantity][0]}.`;
    $("#grid-note").textContent =
      `${what} ${stepwise() ? known : ""} ${net ? "Wheel or pinch to zoom, drag to move; with the keyboard + − and arrows." : ""}`;
    $("#at-risk-title").textContent = stepwise()
      ? `${state.quantity === "risk" ? "Highest risk" : "Outside"} at ${clock(state.step)}, ${day(start).slice(4)}`
      : `Highest ${MEANS[state.quantity][0]}`;
    const key = encodeURIComponent(board.key),
      id = encodeURIComponent(model.id),
      shown = new Set(row ? row.shown.bus_id : []);
    $("#at-risk").replaceChildren(
      ...(order.length
        ? order.slice(0, LISTED).map((k) => {
            const label = [
              h("span", {}, `Bus ${ids[k]}`),
              h("b", {}, text(values[k])),
              h("i", {
                style: `width: ${(100 * Math.min(1, values[k] / top())).toFixed(1)}%; background: var(--r${Math.min(5, Math.floor((6 * values[k]) / top()))})`,
              }),
            ];
            return h(
              "li",
              { "data-bus": ids[k] },
              shown.has(ids[k]) || model.whole
                ? h("a", { href: `#forecasts?board=${key}&bus=${ids[k]}&models=${id}` }, label)
                : h("span", {}, label),
            );
          })
        : [h("li", { class: "muted" }, stepwise() ? "None." : "All are zero.")]),
    );
    canvas.setAttribute(
      "aria-label",
      `Network of ${ids.length} buses, ${order.length} above zero; the list beside it names the highest`,
    );
  };

  const refresh = async () => {
    const mine = ++turn;
    await compute();
    if (mine === turn) {
      words();
      paint();
    }
  };

  const choices = () => {
    const timed = [
      ["risk", "risk, step by step"],
      ...(risk && risk.known ? [["happened", "what happened, step by step"]] : []),
    ];
    options(
      $("#grid-quantity"),
      [...timed, ...(row ? Object.entries(MEANS).map(([name, [words]]) => [name, words]) : [])],
      state.quantity,
    );
    options(
      $("#grid-window"),
      risk ? risk.windows.map((window) => [window, day(board.windows[window])]) : [],
      state.window,
    );
  };

  const pickModel = async () => {
    row = model.file ? await load(model.file) : null;
    risk = await readRisk();
    if (risk && !risk.windows.includes(Number(state.window))) state.window = busiest();
    choices();
    await refresh();
  };

  // The window in which most voltages leave the band, as that is what one looks for.
  const busiest = () => {
    let best = risk.windows[0],
      most = -1;
    risk.windows.forEach((window, w) => {
      let count = 0;
      for (let k = 0; k < ids.length; k++)
        for (let t = 0; t < STEPS; t += 4) count += risk.happened(w, k, t) || 0;
      if (count > most) {
        most = count;
        best = window;
      }
    });
    return best;
  };

  const show = async (given) => {
    board = given;
    stop();
    const { chosen } = address();
    ids = await busIds(board);
    const models = board.models.filter((one) => one.file || one.whole),
      missing = $("#network-missing");
    net = null;
    if (board.network) {
      const drawing = await load(board.network.file),
        place = await unpack(drawing.place),
        n = ids.length;
      net = {
        x: Float32Array.from(place.subarray(0, n), (v) => v / 65535),
        y: Float32Array.from(place.subarray(n), (v) => v / 65535),
        branches: await unpack(drawing.branches),
      };
    }
    missing.hidden = Boolean(net) && models.length > 0;
    missing.textContent = models.length
      ? "There is no drawing of this grid; the package has those of its catalogue. The list beside this place works without."
      : "No row of this grid has arrays beside it; score a forecast again to have them.";
    canvas.hidden = !net;
    $("#page-grid .zoom").hidden = !net;
    if (!models.length) return;
    model =
      models.find((one) => one.id === chosen.get("model")) ||
      models.find((one) => one.kind === "model" && !one.name.includes("+")) ||
      models[0];
    options(
      $("#grid-model"),
      models.map((one) => [one.id, title(board, one)]),
      model.id,
    );
    state = {
      quantity: chosen.get("by") || (model.risk || model.whole ? "risk" : "violation_probability"),
      window: chosen.get("window") ?? -1,
      step: Number(chosen.get("step") ?? 76),
    };
    $("#step").value = state.step;
    view = { scale: 1, x: 0, y: 0 };
    if (net) fit();
    await pickModel();
  };

  const remember = () =>
    choose({
      board: board.key,
      model: model.id,
      by: state.quantity,
      window: state.window,
      step: state.step,
    });
  const stop = () => {
    clearInterval(timer);
    timer = 0;
    $("#play").textContent = "▶";
    $("#play").setAttribute("aria-label", "Play the day");
  };

  const zoom = (factor, cx = canvas.clientWidth / 2, cy = canvas.clientHeight / 2) => {
    const scale = Math.max(0.8, Math.min(60, view.scale * factor)),
      k = scale / view.scale;
    const mx = cx - canvas.clientWidth / 2,
      my = cy - canvas.clientHeight / 2;
    view = { scale, x: mx - (mx - view.x) * k, y: my - (my - view.y) * k };
    paint();
  };
  const nearest = (x, y) => {
    let best = -1,
      least = 14 ** 2;
    for (let k = 0; net && net.xs && k < ids.length; k++) {
      const d = (net.xs[k] - x) ** 2 + (net.ys[k] - y) ** 2;
      if (d < least) {
        least = d;
        best = k;
      }
    }
    return best;
  };

  const gestures = () => {
    const fingers = new Map();
    canvas.addEventListener(
      "wheel",
      (event) => {
        event.preventDefault();
        zoom(Math.exp(-event.deltaY / 400), event.offsetX, event.offsetY);
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, event);
    });
    canvas.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (before && fingers.size === 1) {
        view.x += event.clientX - before.clientX;
        view.y += event.clientY - before.clientY;
        paint();
      }
      if (before && fingers.size === 2) {
        const other = [...fingers.values()].find((one) => one.pointerId !== event.pointerId);
        const gap = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
        zoom(
          gap(event) / (gap(before) || 1),
          (event.offsetX + other.offsetX) / 2,
          (event.offsetY + other.offsetY) / 2,
        );
      }
      if (before) {
        fingers.set(event.pointerId, event);
        return;
      }
      const found = nearest(event.offsetX, event.offsetY);
      if (found !== hovered) {
        hovered = found;
        paint();
      }
      powerphase.tip(
        found >= 0
          ? `Bus ${ids[found]}\n${Number.isNaN(values[found]) ? "not in this sidecar" : text(values[found])}`
          : "",
        event.clientX,
        event.clientY,
      );
    });
    for (const kind of ["pointerup", "pointercancel"])
      canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => {
      hovered = -1;
      powerphase.tip("");
      paint();
    });
    canvas.addEventListener("keydown", (event) => {
      const moves = {
        ArrowLeft: [40, 0],
        ArrowRight: [-40, 0],
        ArrowUp: [0, 40],
        ArrowDown: [0, -40],
      };
      if (event.key === "+" || event.key === "=") zoom(1.3);
      else if (event.key === "-") zoom(1 / 1.3);
      else if (event.key === "0") {
        view = { scale: 1, x: 0, y: 0 };
        paint();
      } else if (moves[event.key]) {
        event.preventDefault();
        view.x += moves[event.key][0];
        view.y += moves[event.key][1];
        paint();
      }
    });
  };

  const start = () => {
    $("#grid-model").addEventListener("change", () => {
      model = board.models.find((one) => one.id === $("#grid-model").value);
      remember();
      pickModel();
    });
    $("#grid-quantity").addEventListener("change", () => {
      state.quantity = $("#grid-quantity").value;
      remember();
      refresh();
    });
    $("#grid-window").addEventListener("change", () => {
      state.window = $("#grid-window").value;
      remember();
      refresh();
    });
    $("#step").addEventListener("input", () => {
      state.step = Number($("#step").value);
      refresh();
    });
    $("#step").addEventListener("change", remember);
    $("#zoom-in").addEventListener("click", () => zoom(1.4));
    $("#zoom-out").addEventListener("click", () => zoom(1 / 1.4));
    $("#zoom-fit").addEventListener("click", () => {
      view = { scale: 1, x: 0, y: 0 };
      paint();
    });
    $("#play").addEventListener("click", () => {
      if (timer) {
        stop();
        return;
      }
      $("#play").textContent = "❚❚";
      $("#play").setAttribute("aria-label", "Pause");
      timer = setInterval(() => {
        if ($("#page-grid").hidden) {
          stop();
          return;
        }
        state.step = (state.step + 1) % STEPS;
        $("#step").value = state.step;
        refresh();
      }, 120);
    });
    gestures();
  };

  return {
    start,
    show,
    resize: () => {
      if (net) {
        fit();
        paint();
      }
    },
  };
})();
