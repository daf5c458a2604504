// A network on a canvas: thousands of buses and branches, with zoom, pan and a bus under the pointer.
"use strict";
powerphase.network = (canvas, { onHover }) => {
  const PAD = 18,
    REACH = 14,
    MAX_STRETCH = 1.6,
    ZOOM = [0.8, 60];
  let net = null,
    scene = { values: [], rings: [], top: 1 },
    view = { scale: 1, x: 0, y: 0 },
    hovered = -1;

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
    if (hovered >= 0) ring([hovered], 2, large + 4);
    powerphase.drawn.painted_ms = performance.now() - started;
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
  const drag = (event, before) => {
    if (fingers.size === 1) {
      move(event.clientX - before.clientX, event.clientY - before.clientY);
    } else if (fingers.size === 2) {
      const other = [...fingers.values()].find((finger) => finger.pointerId !== event.pointerId);
      const gap = (finger) =>
        Math.hypot(finger.clientX - other.clientX, finger.clientY - other.clientY);
      const middle = [event.offsetX + other.offsetX, event.offsetY + other.offsetY];
      zoom(gap(event) / (gap(before) || 1), middle[0] / 2, middle[1] / 2);
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
    if (before) drag(event, before);
    else hover(nearest(event.offsetX, event.offsetY), event);
  });
  for (const kind of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(kind, (event) => fingers.delete(event.pointerId));
  }
  canvas.addEventListener("pointerleave", (event) => hover(-1, event));
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
      hovered = -1;
      view = { scale: 1, x: 0, y: 0 };
      if (net) fit();
    },
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
