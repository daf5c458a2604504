// The look of a model on all pages: its colour, marker and dashes, as in the figures. Variants and
// other seeds have other dashes; a variant's marker is hollow, and that of the paper's row pale.
"use strict";
powerphase.looks = (() => {
  const { s, site } = powerphase;
  // The number of corners and their rotation; the depth of a star's notches; the relative width.
  const MARKERS = {
    "^": [3, 0],
    v: [3, 180],
    "<": [3, 270],
    ">": [3, 90],
    D: [4, 0],
    d: [4, 0, 0, 0.65],
    s: [4, 45],
    p: [5, 0],
    h: [6, 0],
    H: [6, 30],
    8: [8, 22.5],
    "*": [5, 0, 0.42],
    P: [4, 0, 0.5],
    X: [4, 45, 0.5],
    "+": [4, 0, 0.3],
    1: [3, 180, 0.25],
    2: [3, 0, 0.25],
    3: [3, 270, 0.25],
    4: [3, 90, 0.25],
    x: [4, 45, 0.3],
    "|": [4, 0, 0, 0.25],
    _: [4, 0, 0, 1.6],
  };
  const DASHES = ["7 3", "2 3", "9 3 2 3", "4 2", "12 4", "6 2 2 2 2 2"];
  const SIZE = 6.5,
    DASH = 3; // scale of the figures' dashes, so that no line looks like the dotted truth

  const modelOf = (name) => name.split("+")[0];
  const look = (name) => site.looks[modelOf(name)];
  const color = (name) => look(name).color;

  const outline = (kind, x, y, size) => {
    if (!(kind in MARKERS)) {
      const r = 0.88 * size; // a disc looks larger than a polygon of the same radius
      return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
    }
    const [corners, rotation, notch, width = 1] = MARKERS[kind],
      count = notch ? 2 * corners : corners;
    const points = Array.from({ length: count }, (_, k) => {
      const angle = ((rotation + (360 * k) / count) * Math.PI) / 180,
        radius = size * (notch ? 1.3 * (k % 2 ? notch : 1) : 1);
      const across = x + width * radius * Math.sin(angle);
      return `${across.toFixed(1)} ${(y - radius * Math.cos(angle)).toFixed(1)}`;
    });
    return `M${points.join("L")}Z`;
  };

  const marker = (name, x, y, fill = "", size = SIZE) =>
    s("path", { class: `dot ${fill}`, d: outline(look(name).marker, x, y, size) });

  const FILLS = { variants: "hollow", paper: "pale" };
  const fillOf = (board, name) => {
    const entry = board.entries.find((item) => item.name === name && item.kind !== "paper");
    return (entry && FILLS[entry.group]) || "";
  };

  // Each seed and variant of a model has its dashes, regardless of which are shown.
  const dashes = (board, model) => {
    const same = board.models.filter((item) => modelOf(item.name) === modelOf(model.name));
    const index = same.findIndex((item) => item.id === model.id),
      dashed = look(model.name).dashes.map((length) => DASH * length).join(" ");
    return index ? DASHES[(index - 1) % DASHES.length] : dashed || "none";
  };

  const key = (name, fill = "", dash = null) =>
    s(
      "svg",
      {
        class: "look",
        width: dash ? 28 : 14,
        height: 14,
        style: `--c: var(${color(name)})`,
        "aria-hidden": "true",
      },
      dash && s("path", { class: "line", "stroke-dasharray": dash, d: "M0 7H28" }),
      marker(name, dash ? 14 : 7, 7, fill, 5.5),
    );

  return { color, marker, key, fillOf, dashes, FILLS };
})();
