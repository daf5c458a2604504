// What every page uses: data loaded as scripts, packed arrays, the address, small DOM helpers.
"use strict";
window.powerphase = (() => {
  const received = new Map();
  const requested = new Map();

  // Data files call this, and `load` waits for it.
  const put = (key, value) => received.set(key, value);

  // Shows why a page cannot be drawn.
  const problem = (text) => {
    $("#problem").hidden = !text;
    $("#problem").textContent = text;
  };

  // A script tag instead of fetch(), which a page opened from a file may not use.
  const load = (key) => {
    if (!requested.has(key)) {
      requested.set(
        key,
        new Promise((resolve, reject) => {
          const tag = document.createElement("script");
          tag.src = `data/${key.split("/").map(encodeURIComponent).join("/")}.js`;
          tag.onload = () => {
            resolve(received.get(key));
            tag.remove();
          };
          tag.onerror = () => {
            problem(`A file of this site is missing: data/${key}.js. Copy the whole folder, or build the site again.`);
            requested.delete(key);
            reject(new Error(key));
          };
          document.head.append(tag);
        }),
      );
    }
    return requested.get(key);
  };

  const HALF = new Float32Array(65536).map((_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1,
      power = (bits >> 10) & 31,
      part = bits & 1023;
    if (power === 31) return part ? NaN : sign * Infinity;
    return sign * (power ? 2 ** (power - 15) * (1 + part / 1024) : 2 ** -14 * (part / 1024));
  });
  const VIEWS = {
    u1: Uint8Array,
    u2: Uint16Array,
    u4: Uint32Array,
    i4: Int32Array,
    f2: Uint16Array,
    f4: Float32Array,
  };
  const unpacked = new WeakMap();

  const inflate = async (text) => {
    const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  };

  // The numbers of a packed array, in C order.
  const unpack = (packed) => {
    if (!unpacked.has(packed))
      unpacked.set(
        packed,
        inflate(packed.data).then((bytes) => {
          const size = Number(packed.type[1]),
            count = bytes.length / size,
            ordered = new Uint8Array(bytes.length);
          for (let b = 0; b < size; b++)
            for (let k = 0; k < count; k++) ordered[k * size + b] = bytes[b * count + k];
          const view = new VIEWS[packed.type](ordered.buffer);
          return packed.type === "f2" ? Float32Array.from(view, (bits) => HALF[bits]) : view;
        }),
      );
    return unpacked.get(packed);
  };

  // Creates elements from plain values; text is never read as markup.
  const SVG = "http://www.w3.org/2000/svg";
  const fill = (node, attributes, children) => {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return node;
  };
  const h = (name, attributes, ...children) =>
    fill(document.createElement(name), attributes, children);
  const s = (name, attributes, ...children) =>
    fill(document.createElementNS(SVG, name), attributes, children);
  // A sentence with `commands` in backticks, whose words are never broken across lines.
  const withCode = (text) =>
    text.split("`").map((part, k) => {
      if (k % 2 === 0) return part;
      const words = part.split(" ").flatMap((word) => [h("span", { class: "whole" }, word), " "]);
      return h("code", {}, words.slice(0, -1));
    });
  const SCORE = "`powerphase score FORECAST --data STORE --out results`";
  const ALL = "`powerphase report … --forecasts FORECAST`";
  const NO_ARRAYS = `The rows of this grid have no sidecars; ${SCORE} writes them.`;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // The address after #: a page and the choices on it, so that a link reproduces the view.
  const address = () => {
    const [page, query] = location.hash.slice(1).split("?");
    return { page: page || "leaderboard", chosen: new URLSearchParams(query || "") };
  };
  const choose = (changes) => {
    const { page, chosen } = address();
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === "") chosen.delete(name);
      else chosen.set(name, value);
    }
    const text = chosen.toString();
    history.replaceState(null, "", `#${page}${text ? `?${text}` : ""}`);
  };

  const significant = (value, digits = 3) => {
    if (value === null || value === undefined || Number.isNaN(value)) return "–";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size < 1e-4 || size >= 1e5) return value.toExponential(digits - 1);
    return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
  };
  const percent = (share) => {
    if (share === 0 || share === 1) return `${100 * share} %`;
    return share < 0.001 ? "< 0.1 %" : `${(100 * share).toFixed(1)} %`;
  };
  // One notation for all numbers of a column, with three digits for the largest.
  const uniform = (values) => {
    const known = [...values].filter(Number.isFinite).map(Math.abs),
      most = known.reduce((a, b) => Math.max(a, b), 0);
    if (most > 0 && most < 1e-3) return (value) => (value ? value.toExponential(2) : "0");
    const decimals = most ? Math.max(0, 2 - Math.floor(Math.log10(most))) : 0,
      least = 10 ** -decimals;
    return (value) => {
      if (!value) return "0";
      return Math.abs(value) < least / 2 ? `< ${least.toFixed(decimals)}` : value.toFixed(decimals);
    };
  };
  const clock = (step) =>
    `${String(Math.floor(step / 4) % 24).padStart(2, "0")}:${String((step % 4) * 15).padStart(2, "0")}`;
  const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const day = (start) => `${DAYS[new Date(`${start}Z`).getUTCDay()]} ${start.slice(0, 10)}`;

  // Each item is a value and its text, with the name of its group in a long list.
  const options = (select, items, chosen) => {
    const groups = new Map();
    select.replaceChildren();
    for (const [value, text, group] of items) {
      if (group && !groups.has(group)) {
        groups.set(group, h("optgroup", { label: group }));
        select.append(groups.get(group));
      }
      const selected = String(value) === String(chosen);
      (groups.get(group) || select).append(h("option", { value, selected }, text));
    }
  };

  const tip = (text, x, y) => {
    const box = $("#tip");
    box.hidden = !text;
    if (!text) return;
    box.replaceChildren(...text.split("\n").map((line, k) => h(k ? "span" : "strong", {}, line)));
    const pageWidth = document.documentElement.clientWidth,
      { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(x + 14, pageWidth - width - 8))}px`;
    box.style.top = `${Math.max(8, y - height - 12)}px`;
  };

  // The page stays hidden until it is laid out; an error must not leave it hidden.
  document.documentElement.classList.add("waiting");
  const reveal = () => document.documentElement.classList.remove("waiting");
  window.addEventListener("error", reveal);

  // The theme: the one chosen on this page, or the system's.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const storage = (use) => {
    try {
      return use(localStorage);
    } catch {
      return null;
    } // some browsers have no storage for files
  };
  const theme = (chosen) => {
    if (chosen) storage((local) => local.setItem("powerphase-theme", chosen));
    const current = chosen || storage((local) => local.getItem("powerphase-theme"));
    document.documentElement.dataset.theme = current || (dark.matches ? "dark" : "light");
    return document.documentElement.dataset.theme;
  };
  theme();

  return {
    put,
    load,
    unpack,
    h,
    s,
    withCode,
    SCORE,
    ALL,
    NO_ARRAYS,
    $,
    $$,
    address,
    choose,
    significant,
    percent,
    uniform,
    clock,
    day,
    options,
    tip,
    reveal,
    problem,
    theme,
    drawn: {},
    pages: {},
    get site() {
      return received.get("site");
    },
  };
})();
