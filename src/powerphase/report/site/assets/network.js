// A network on a canvas: thousands of buses and branches, with zoom, pan and a bus or line under the
// pointer. A spot is a bus, or the middle of a line with a value; lines are numbered after the buses.
"use strict";
powerphase.network = (canvas, nodes, { onHover, onSelect, describe, nameOf }) => {
  const { h } = powerphase;
  const NO_LINES = { ends: [], values: [], marked: [], top: 1 };
  const PAD = 18,
    REACH = 14,
    REACH_LINE = 6,
    MAX_STRETCH = 1.6,
    ZOOM = [0.8, 60],
    MAX_NODES = 250,
    FEW = 150, // with more buses in view, those at 0 have no visible number
    MOVED = 4;
  const box = canvas.parentElement,
    buttons = new Map();
  let net = null,
    scene = { values: [], rings: [], top: 1, lines: NO_LINES },
    view = { scale: 1, x: 0, y: 0 },
    hovered = -1,
    selected = -1,
    current = -1; // the spot that the tab key reaches

  const palette = () => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    return {
      line: color("--net-line"),
      idle: color("--net-idle"),
      unknown: color("--net-unknown"),
      ink: color("--ink"),
      panel: color("--panel"),
      ramp: [0, 1, 2, 3, 4, 5].map((k) => color(`--r${k}`)),
    };
  };

  const fit = () => {
    const box = canvas.parentElement.getBoundingClientRect(),
      ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    canvas.style.width = `${box.width}px`;
    canvas.style.height = `${box.height}px`;
  };

  // The positions of the buses on the canvas. The drawing fills it, stretched by 1.6 at most.
  const placeAll = () => {
    const width = canvas.clientWidth,
      height = canvas.clientHeight,
      side = Math.min(width, height) - 2 * PAD;
    const along = (values, length, shift) => {
      const span = Math.min(length - 2 * PAD, MAX_STRETCH * side);
      return values.map((v) => (v - 0.5) * span * view.scale + length / 2 + shift);
    };
    net.xs = along(net.x, width, view.x);
    net.ys = along(net.y, height, view.y);
    const middles = (at) => scene.lines.ends.map(([a, b, part]) => at[a] + part * (at[b] - at[a]));
    net.spotX = [...net.xs, ...middles(net.xs)];
    net.spotY = [...net.ys, ...middles(net.ys)];
  };
  const isLine = (k) => k >= net.x.length;
  const valueOf = (k) =>
    (isLine(k) ? scene.lines.values[k - net.x.length] : scene.values[k]) || 0;

  const branches = (pen, color) => {
    pen.strokeStyle = color;
    pen.lineWidth = Math.min(1.4, (net.x.length > 3000 ? 0.5 : 0.8) * Math.sqrt(view.scale));
    pen.beginPath();
    for (let e = 0; e < net.branches.length; e += 2) {
      const a = net.branches[e],
        b = net.branches[e + 1];
      pen.moveTo(net.xs[a], net.ys[a]);
      pen.lineTo(net.xs[b], net.ys[b]);
    }
    pen.stroke();
  };

  // Lines at risk, the highest on top: the higher, the wider. Those marked have dark edges.
  const paintLines = (pen, { ramp, ink, panel }) => {
    const { ends, values, marked, top } = scene.lines,
      n = net.x.length,
      narrow = (n > 3000 ? 1.6 : 2) * Math.min(1.6, Math.sqrt(view.scale)),
      share = (l) => Math.min(1, (values[l] || 0) / top),
      stroke = (l, color, extra) => {
        const [a, b] = ends[l];
        pen.strokeStyle = color;
        pen.lineWidth = narrow * (1 + 1.2 * share(l)) + extra;
        pen.beginPath();
        pen.moveTo(net.xs[a], net.ys[a]);
        pen.lineTo(net.xs[b], net.ys[b]);
        pen.stroke();
      };
    const chosen = [hovered, selected].map((k) => k - n).filter((l) => l >= 0),
      drawn = [...ends.keys()].filter((l) => values[l] > 0).sort((a, b) => values[a] - values[b]);
    for (const l of chosen) {
      stroke(l, ink, 7);
      stroke(l, panel, 4);
    }
    for (const l of marked) stroke(l, ink, 2.4);
    for (const l of drawn) stroke(l, ramp[Math.min(5, Math.floor(6 * share(l)))], 0);
  };

  // One path for each colour, which is fast for thousands of buses.
  const circles = (pen, list, size) => {
    pen.beginPath();
    for (const k of list) {
      pen.moveTo(net.xs[k] + size, net.ys[k]);
      pen.arc(net.xs[k], net.ys[k], size, 0, 2 * Math.PI);
    }
  };

  const groupByColor = (colors) => {
    const groups = Array.from({ length: colors }, () => []),
      quiet = [],
      silent = [];
    scene.values.forEach((value, k) => {
      if (Number.isNaN(value)) silent.push(k);
      else if (value <= 0) quiet.push(k);
      else groups[Math.min(colors - 1, Math.floor((value / scene.top) * colors))].push(k);
    });
    return { groups, quiet, silent };
  };

  const paint = () => {
    if (!net) return;
    const started = performance.now(),
      colors = palette(),
      { line, idle, unknown, ink, ramp } = colors,
      ratio = window.devicePixelRatio || 1,
      pen = canvas.getContext("2d"),
      n = net.x.length;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    placeAll();
    branches(pen, line);
    paintLines(pen, colors);
    const radius = Math.max(1, Math.min(5, 34 / Math.sqrt(n) + 0.5)) * Math.sqrt(view.scale),
      { groups, quiet, silent } = groupByColor(ramp.length),
      fill = (list, color, size) => {
        pen.fillStyle = color;
        circles(pen, list, size);
        pen.fill();
      },
      ring = (list, width, size) => {
        pen.strokeStyle = ink;
        pen.lineWidth = width;
        circles(pen, list, size);
        pen.stroke();
      },
      large = radius * 2 + (n > 2000 ? 1 : 0);
    fill(silent, unknown, radius * 0.7);
    fill(quiet, idle, radius);
    groups.forEach((list, k) => fill(list, ramp[k], large * (0.62 + 0.075 * k)));
    ring(scene.rings, 1.2, large + 1.5);
    for (const k of [hovered, selected]) if (k >= 0 && !isLine(k)) ring([k], 2, large + 4);
    layButtons((k) => (isLine(k) ? 6 : scene.values[k] > 0 ? large + 3 : radius + 2));
    powerphase.drawn.painted_ms = performance.now() - started;
  };

  // The spots in view, the chosen one and the highest first; on a large grid only these, until it is
  // zoomed.
  const inView = () => {
    const { clientWidth, clientHeight } = canvas,
      inside = (v, length) => v >= 0 && v <= length,
      seen = (k) => inside(net.spotX[k], clientWidth) && inside(net.spotY[k], clientHeight),
      exists = (k) => !isLine(k) || valueOf(k) > 0 || k === selected;
    return [...net.spotX.keys()]
      .filter((k) => exists(k) && seen(k))
      .sort((a, b) => (b === selected) - (a === selected) || valueOf(b) - valueOf(a) || a - b)
      .slice(0, MAX_NODES);
  };

  // Each spot is a button with its name, which is written where it covers no other.
  const layButtons = (sizeOf) => {
    const list = inView(),
      risky = (k) => valueOf(k) > 0,
      taken = list.filter(risky).map((k) => ({
        spot: k,
        left: net.spotX[k] - sizeOf(k),
        right: net.spotX[k] + sizeOf(k),
        top: net.spotY[k] - sizeOf(k),
        bottom: net.spotY[k] + sizeOf(k),
      }));
    for (const [k, button] of buttons)
      if (!list.includes(k)) {
        button.remove();
        buttons.delete(k);
      }
    if (!list.includes(current)) current = list.length ? list[0] : -1;
    for (const k of list) {
      const button = buttons.get(k) || makeButton(k),
        [x, y, width, away] = [net.spotX[k], net.spotY[k], 6.5 * nameOf(k).length + 4, sizeOf(k)],
        label = { left: x - width / 2, right: x + width / 2, top: y + away, bottom: y + away + 11 },
        hits = (other) =>
          other.spot !== k &&
          other.left < label.right &&
          label.left < other.right &&
          other.top < label.bottom &&
          label.top < other.bottom;
      const free = (list.length <= FEW || risky(k) || k === selected) && !taken.some(hits);
      if (free) taken.push(label);
      button.style.transform = `translate(${x.toFixed(1)}px, ${y.toFixed(1)}px)`;
      button.style.setProperty("--away", `${away.toFixed(1)}px`);
      button.classList.toggle("named", free);
      button.setAttribute("aria-label", describe(k));
      button.setAttribute("aria-pressed", String(k === selected));
      button.tabIndex = k === current ? 0 : -1;
    }
  };

  const makeButton = (k) => {
    const kind = isLine(k) ? "data-line" : "data-bus",
      button = h("button", { type: "button", [kind]: nameOf(k) }, h("span", {}, nameOf(k)));
    button.addEventListener("click", () => select(k));
    button.addEventListener("focus", () => {
      if (!button.matches(":focus-visible")) return;
      const { left, top } = button.getBoundingClientRect();
      current = k;
      hover(k, { clientX: left, clientY: top });
    });
    button.addEventListener("blur", () => hover(-1));
    button.addEventListener("keydown", (event) => {
      const direction = DIRECTIONS[event.key];
      if (!direction) return;
      event.preventDefault();
      const next = neighbour(k, direction);
      if (next < 0) return;
      current = next;
      paint();
      buttons.get(next).focus();
    });
    buttons.set(k, button);
    nodes.append(button);
    return button;
  };

  // The closest spot with a button in a direction; steps aside count twice.
  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const neighbour = (from, [dx, dy]) => {
    let best = -1,
      least = Infinity;
    for (const k of buttons.keys()) {
      const x = net.spotX[k] - net.spotX[from],
        y = net.spotY[k] - net.spotY[from],
        along = x * dx + y * dy,
        aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (k === from || along <= 0 || along + 2 * aside >= least) continue;
      least = along + 2 * aside;
      best = k;
    }
    return best;
  };

  // Another model has other lines.
  const forgetLines = () => {
    for (const [k, button] of buttons)
      if (isLine(k)) {
        button.remove();
        buttons.delete(k);
      }
    [hovered, selected, current] = [hovered, selected, current].map((k) => (isLine(k) ? -1 : k));
  };

  const select = (k) => {
    selected = k;
    if (k >= 0) current = k;
    paint();
    onSelect(k);
  };

  const zoom = (factor, cx = canvas.clientWidth / 2, cy = canvas.clientHeight / 2) => {
    const scale = Math.max(ZOOM[0], Math.min(ZOOM[1], view.scale * factor)),
      k = scale / view.scale,
      mx = cx - canvas.clientWidth / 2,
      my = cy - canvas.clientHeight / 2;
    view = { scale, x: mx - (mx - view.x) * k, y: my - (my - view.y) * k };
    paint();
  };
  const move = (dx, dy) => {
    view.x += dx;
    view.y += dy;
    paint();
  };
  const whole = () => {
    view = { scale: 1, x: 0, y: 0 };
    paint();
  };

  const nearest = (x, y) => {
    let best = -1,
      least = REACH ** 2;
    for (let k = 0; net && net.xs && k < net.xs.length; k++) {
      const distance = (net.xs[k] - x) ** 2 + (net.ys[k] - y) ** 2;
      if (distance < least) {
        least = distance;
        best = k;
      }
    }
    const line = nearestLine(x, y);
    return line >= 0 && least > REACH_LINE ** 2 ? line : best;
  };

  // The line with a value whose drawn stretch is next to a point.
  const nearestLine = (x, y) => {
    let best = -1,
      least = REACH_LINE;
    for (const [l, [a, b]] of (net ? scene.lines.ends : []).entries()) {
      if (!(scene.lines.values[l] > 0)) continue;
      const [dx, dy] = [net.xs[b] - net.xs[a], net.ys[b] - net.ys[a]],
        along = ((x - net.xs[a]) * dx + (y - net.ys[a]) * dy) / (dx * dx + dy * dy || 1),
        t = Math.max(0, Math.min(1, along)),
        distance = Math.hypot(net.xs[a] + t * dx - x, net.ys[a] + t * dy - y);
      if (distance >= least) continue;
      least = distance;
      best = net.x.length + l;
    }
    return best;
  };

  const fingers = new Map();
  let travelled = 0;
  const position = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const drag = (event, before) => {
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    travelled += Math.hypot(dx, dy);
    // Only now, because the element that captures a pointer also takes its click.
    if (travelled > MOVED) box.setPointerCapture(event.pointerId);
    if (fingers.size === 1) {
      move(dx, dy);
    } else if (fingers.size === 2) {
      const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
      const gap = (finger) =>
        Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
      const [a, b] = [position(event), position(other)];
      zoom(gap(event) / (gap(before) || 1), (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
    }
    fingers.set(event.pointerId, event);
  };
  const hover = (k, event) => {
    if (k !== hovered) {
      hovered = k;
      paint();
    }
    onHover(k, event);
  };

  // The buttons lie on the canvas, so their box listens for both.
  const onDrawing = (event) => !event.target.closest(".zoom");
  box.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      zoom(Math.exp(-event.deltaY / 400), ...position(event));
    },
    { passive: false },
  );
  box.addEventListener("pointerdown", (event) => {
    if (!onDrawing(event)) return;
    if (!fingers.size) travelled = 0;
    fingers.set(event.pointerId, event);
  });
  box.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId);
    if (before) drag(event, before);
    else if (onDrawing(event)) hover(nearest(...position(event)), event);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    box.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  }
  box.addEventListener("pointerleave", (event) => {
    fingers.delete(event.pointerId);
    hover(-1, event);
  });
  canvas.addEventListener("click", (event) => {
    if (travelled <= MOVED) select(nearest(...position(event)));
  });
  canvas.addEventListener("keydown", (event) => {
    const moves = {
      ArrowLeft: () => move(40, 0),
      ArrowRight: () => move(-40, 0),
      ArrowUp: () => move(0, 40),
      ArrowDown: () => move(0, -40),
      "+": () => zoom(1.3),
      "=": () => zoom(1.3),
      "-": () => zoom(1 / 1.3),
      0: whole,
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  });

  return {
    zoom,
    whole,
    // Shows another network, or none.
    show: (drawing) => {
      net = drawing;
      scene = { ...scene, lines: NO_LINES };
      hovered = selected = current = -1;
      buttons.clear();
      nodes.replaceChildren();
      view = { scale: 1, x: 0, y: 0 };
      if (net) fit();
    },
    select,
    // Draws values by bus (NaN: unknown), scaled by `top`, and rings around some buses; lines with
    // their ends, the part of the way to their names, and values, some of them marked.
    draw: (nextScene) => {
      if (net && nextScene.lines.ends !== scene.lines.ends) forgetLines();
      scene = nextScene;
      paint();
    },
    resize: () => {
      if (!net) return;
      fit();
      paint();
    },
  };
};
