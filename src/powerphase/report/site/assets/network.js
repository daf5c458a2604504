// A network on a canvas: thousands of buses and branches, with zoom, pan and a bus under the pointer.
"use strict";
powerphase.network = (canvas, nodes, { onHover, onSelect, describe, nameOf }) => {
  const { h } = powerphase;
  const PAD = 18,
    REACH = 14,
    MAX_STRETCH = 1.6,
    ZOOM = [0.8, 60],
    MAX_NODES = 250,
    FEW = 150, // with more buses in view, those at 0 have no visible number
    MOVED = 4;
  const box = canvas.parentElement,
    buttons = new Map();
  let net = null,
    scene = { values: [], rings: [], top: 1 },
    view = { scale: 1, x: 0, y: 0 },
    hovered = -1,
    selected = -1,
    current = -1; // the bus that the tab key reaches

  const palette = () => {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    return {
      line: color("--net-line"),
      idle: color("--net-idle"),
      unknown: color("--net-unknown"),
      ink: color("--ink"),
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
  };

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
      { line, idle, unknown, ink, ramp } = palette(),
      ratio = window.devicePixelRatio || 1,
      pen = canvas.getContext("2d"),
      n = net.x.length;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    placeAll();
    branches(pen, line);
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
    for (const k of [hovered, selected]) if (k >= 0) ring([k], 2, large + 4);
    layButtons((k) => (scene.values[k] > 0 ? large + 3 : radius + 2));
    powerphase.drawn.painted_ms = performance.now() - started;
  };

  // The buses in view, the highest first; on a large grid only these, until it is zoomed.
  const inView = () => {
    const { clientWidth, clientHeight } = canvas,
      seen = (k) =>
        net.xs[k] >= 0 && net.xs[k] <= clientWidth && net.ys[k] >= 0 && net.ys[k] <= clientHeight,
      value = (k) => scene.values[k] || 0;
    return [...net.xs.keys()]
      .filter(seen)
      .sort((a, b) => value(b) - value(a) || a - b)
      .slice(0, MAX_NODES);
  };

  // Each bus is a button with its number, which is written where it covers no other.
  const layButtons = (sizeOf) => {
    const list = inView(),
      risky = (k) => scene.values[k] > 0,
      taken = list.filter(risky).map((k) => ({
        bus: k,
        left: net.xs[k] - sizeOf(k),
        right: net.xs[k] + sizeOf(k),
        top: net.ys[k] - sizeOf(k),
        bottom: net.ys[k] + sizeOf(k),
      }));
    for (const [k, button] of buttons)
      if (!list.includes(k)) {
        button.remove();
        buttons.delete(k);
      }
    if (!list.includes(current)) current = list.length ? list[0] : -1;
    for (const k of list) {
      const button = buttons.get(k) || makeButton(k),
        [x, y, width, away] = [net.xs[k], net.ys[k], 6.5 * nameOf(k).length + 4, sizeOf(k)],
        label = { left: x - width / 2, right: x + width / 2, top: y + away, bottom: y + away + 11 },
        hits = (other) =>
          other.bus !== k &&
          other.left < label.right &&
          label.left < other.right &&
          other.top < label.bottom &&
          label.top < other.bottom;
      const free = (list.length <= FEW || risky(k)) && !taken.some(hits);
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
    const button = h("button", { type: "button", "data-bus": nameOf(k) }, h("span", {}, nameOf(k)));
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

  // The closest bus with a button in a direction; steps aside count twice.
  const DIRECTIONS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const neighbour = (from, [dx, dy]) => {
    let best = -1,
      least = Infinity;
    for (const k of buttons.keys()) {
      const x = net.xs[k] - net.xs[from],
        y = net.ys[k] - net.ys[from],
        along = x * dx + y * dy,
        aside = Math.abs(x * dy) + Math.abs(y * dx);
      if (k === from || along <= 0 || along + 2 * aside >= least) continue;
      least = along + 2 * aside;
      best = k;
    }
    return best;
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
  const hover = (bus, event) => {
    if (bus !== hovered) {
      hovered = bus;
      paint();
    }
    onHover(bus, event);
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
      hovered = selected = current = -1;
      buttons.clear();
      nodes.replaceChildren();
      view = { scale: 1, x: 0, y: 0 };
      if (net) fit();
    },
    select,
    // Draws values by bus (NaN: unknown), scaled by `top`, and rings around some buses.
    draw: (nextScene) => {
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
