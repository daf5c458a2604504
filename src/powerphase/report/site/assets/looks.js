// How a model looks on all pages: its colour, marker and dashes, as in the figures. Variants and
// other seeds have dashes of their own; a variant's marker is hollow, and the paper's is pale.
"use strict";
powerphase.looks = (() => {
  const { s, site } = powerphase;
  // Corners and their turn; of a star also how deep it is cut, of a thin marker how wide it is.
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
  };
  const DASHES = ["7 3", "2 3", "9 3 2 3", "4 2", "12 4", "6 2 2 2 2 2"];
  const SIZE = 6.5,
    DASH = 3; // the unit of the figures' dashes, so long that none looks like what happened's dots

  const modelOf = (name) => name.split("+")[0];
  const look = (name) => site.looks[modelOf(name)];
  const color = (name) => look(name).color;

  const outline = (kind, x, y, size) => {
    if (!(kind in MARKERS)) {
      const r = 0.88 * size; // a disc looks larger than what has corners
      return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`;
    }
    const [corners, turn, cut, width = 1] = MARKERS[kind],
      count = cut ? 2 * corners : corners;
    const points = Array.from({ length: count }, (_, k) => {
      const angle = ((turn + (360 * k) / count) * Math.PI) / 180,
        radius = size * (cut ? 1.3 * (k % 2 ? cut : 1) : 1);
      const across = x + width * radius * Math.sin(angle);
      return `${across.toFixed(1)} ${(y - radius * Math.cos(angle)).toFixed(1)}`;
    });
    return `M${points.join("L")}Z`;
  };

  const marker = (name, x, y, fill = "", size = SIZE) =>
    s("path", { class: `dot ${fill}`, d: outline(look(name).marker, x, y, size) });

  const FILLS = { variants: "hollow", paper: "pale" };
  const fillOf = (board, name) => {
    const entry = board.entries.find((one) => one.name === name && one.kind !== "paper");
    return (entry && FILLS[entry.group]) || "";
  };

  // Seeds and variants of a model have dashes of their own, whichever of them are shown.
  const dashes = (board, model) => {
    const same = board.models.filter((one) => modelOf(one.name) === modelOf(model.name));
    const place = same.findIndex((one) => one.id === model.id),
      own = look(model.name).dashes.map((length) => DASH * length).join(" ");
    return place ? DASHES[(place - 1) % DASHES.length] : own || "none";
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
