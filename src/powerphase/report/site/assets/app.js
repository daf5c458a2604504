// Shows the page and the board that the address names; each page does the rest.
"use strict";
(() => {
  const { $, $$, site, address, choose, pages } = powerphase;
  let current = null,
    turn = 0;

  pages.data = {
    start: () => {},
    show: (board) => {
      for (const part of $$("#page-data .board")) part.hidden = part.dataset.board !== board.key;
      pages.data.resize();
    },
    resize: () =>
      $$(".archetypes")
        .filter((box) => box.clientWidth)
        .forEach((box) => archetypes(box, site.archetypes[box.dataset.fingerprint])),
  };

  const archetypes = (box, facts) => {
    const { frame, path, extent, color, legend, crosshair } = powerphase.charts;
    const count = facts.shapes[0].length,
      [low, high] = extent(facts.shapes);
    const days = Array.from({ length: count / 96 + 1 }, (_, k) => ({
      at: 96 * k,
      text: new Date(Date.parse(`${facts.start}Z`) + 864e5 * k).toISOString().slice(5, 10),
    }));
    const chart = frame(box, {
      label: "Five daily load shapes over three days, normalised to unit mean",
      x: { domain: [0, count], ticks: days },
      y: { domain: [low, high], label: "share of the mean" },
      margin: { top: 24 },
    });
    const xs = Array.from({ length: count }, (_, k) => chart.sx(k));
    facts.shapes.forEach((shape, k) =>
      chart.plot.append(
        powerphase.s("path", {
          class: "line",
          style: `--c: var(${color(k)})`,
          d: path(xs, shape.map(chart.sy)),
        }),
      ),
    );
    crosshair(chart, {
      count,
      at: (k) => k,
      describe: (k) =>
        [
          `${powerphase.clock(k)} UTC`,
          ...facts.names.map((name, n) => `${name} ${facts.shapes[n][k].toFixed(2)}`),
        ].join("\n"),
    });
    legend(
      box,
      facts.names.map((name, k) => ({ color: color(k), text: name })),
    );
  };

  const boardFor = (chosen) => {
    const named = (key) => site.boards.find((board) => board.key === key);
    return named(chosen.get("board")) || named(site.start);
  };

  const show = () => {
    const { page, chosen } = address(),
      name = pages[page] ? page : "leaderboard",
      board = boardFor(chosen);
    for (const part of $$(".page")) part.hidden = part.id !== `page-${name}`;
    const query = chosen.get("board") ? `?board=${encodeURIComponent(chosen.get("board"))}` : "";
    for (const link of $$("#pages a")) {
      if (link.dataset.page === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.href = `#${link.dataset.page}${query}`;
    }
    for (const input of $$("#boards input")) {
      input.checked = input.value === board.key;
      if (input.checked) $("#boards").scrollLeft = input.parentElement.offsetLeft - 60; // on a phone, the list of boards scrolls
    }
    for (const heading of $$("[data-board-title]"))
      heading.textContent = `${board.title}, ${board.conditions}`;
    document.title = `${name[0].toUpperCase()}${name.slice(1)} · ${board.title} · powerphase`;
    current = name;
    powerphase.tip("");
    powerphase.problem("");
    const thisTurn = ++turn;
    powerphase.loading = true;
    Promise.resolve(pages[name].show(board)).finally(() => {
      if (thisTurn === turn) powerphase.loading = false;
    });
  };

  for (const page of Object.values(pages)) page.start();
  $("#boards").addEventListener("change", (event) => {
    choose({ board: event.target.value, bus: null, line: null, window: null, models: null, model: null });
    show();
  });
  window.addEventListener("hashchange", show);
  $(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // the part after # is the address of a page
    $("#main").focus();
  });
  let waiting = 0;
  let width = document.documentElement.clientWidth;
  window.addEventListener("resize", () => {
    if (width === document.documentElement.clientWidth) return; // only a phone's address bar changed
    width = document.documentElement.clientWidth;
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(() => pages[current].resize());
  });
  // Charts take their colours from the style sheet, but a canvas must be painted again.
  $("#theme").addEventListener("click", () => {
    powerphase.theme(powerphase.theme() === "dark" ? "light" : "dark");
    pages[current].resize();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    powerphase.theme();
    pages[current].resize();
  });
  show();
  powerphase.reveal();
  powerphase.ready = true;
})();
