// Sorts and filters the tables of the page, and draws fidelity against safety.
"use strict";
powerphase.pages.leaderboard = (() => {
  const { $, $$, h, s, site, choose, address, options, significant } = powerphase;
  const { frame, extent, logTicks } = powerphase.charts;
  const { marker, key, color, FILLS } = powerphase.looks;
  const LOG_FROM = 8; // axes are logarithmic if the largest value is this many times the smallest
  let board = null;

  const valueOf = (cell) => {
    const text = cell.dataset.value;
    return text === "" || text === undefined
      ? null
      : Number.isNaN(Number(text))
        ? text
        : Number(text);
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "string" ? a.localeCompare(b) : a - b;
  };

  const sort = (table, column, descending) => {
    const heads = $$("thead tr:last-child th", table);
    heads.forEach((head, k) =>
      head.setAttribute(
        "aria-sort",
        k !== column ? "none" : descending ? "descending" : "ascending",
      ),
    );
    for (const body of table.tBodies) {
      const rows = $$("tr.entry", body);
      const ordered = rows
        .map((row) => [valueOf(row.cells[column]), row])
        .sort(([a], [b]) =>
          a === null || b === null || !descending ? compare(a, b) : compare(b, a),
        );
      body.append(...ordered.map(([, row]) => row));
    }
  };

  const shownGroups = () =>
    $$("#board-filter input[name=group]")
      .filter((box) => box.checked)
      .map((box) => box.value);

  // A test of whether an entry is shown, in the table and in the chart alike.
  const chosenEntries = () => {
    const text = $("#filter").value.trim().toLowerCase(),
      groups = shownGroups();
    return (group, name) => groups.includes(group) && name.toLowerCase().includes(text);
  };

  const filter = () => {
    const isShown = chosenEntries();
    for (const part of $$("#page-leaderboard .board")) {
      let any = false;
      for (const body of $$("tbody", part)) {
        let some = false;
        for (const row of $$("tr.entry", body)) {
          row.hidden = !isShown(body.dataset.group, row.dataset.name);
          some ||= !row.hidden;
        }
        body.hidden = !some;
        any ||= some;
      }
      $(".none", part).hidden = any;
      $(".scroll", part).hidden = !any;
    }
    scatter();
  };

  const shown = () => {
    const isShown = chosenEntries();
    return board.entries.filter((entry) => isShown(entry.group, entry.name));
  };

  const spread = (points, axis) => {
    const positive = points.map((p) => p[axis]).filter((value) => value > 0);
    return positive.length ? Math.max(...positive) / Math.min(...positive) : 1;
  };

  const linearAxis = (points, axis) => {
    const ends = points.flatMap((p) => [p[axis] - p[`${axis}s`], p[axis] + p[`${axis}s`]]);
    const [low, high] = extent([ends], 0.08);
    const fromZero = Math.min(...ends) >= 0 && low <= 0.3 * high;
    return { domain: [fromZero ? 0 : low, high] };
  };
  // Zeros are drawn at the low end, with their own tick.
  const logAxis = (points, axis) => {
    const positive = points.map((p) => p[axis]).filter((value) => value > 0),
      zeros = positive.length < points.length,
      least = Math.min(...positive) / 1.4,
      low = zeros ? least / 4 : least,
      high = Math.max(...points.map((p) => p[axis] + p[`${axis}s`])) * 1.4;
    const ticks = logTicks([least, high]).map((at) => ({ at }));
    return {
      domain: [low, high],
      log: true,
      ticks: zeros ? [{ at: low, text: "0" }, ...ticks] : ticks,
    };
  };

  // A free position for a name: next to its point, farther away with a line, or none.
  const labelPosition = (x, y, text, occupied, chart) => {
    const width = 6.2 * text.length;
    for (const far of [10, 20, 32, 46])
      for (let k = 0; k < 16; k++) {
        const angle = (Math.PI / 8) * (k % 2 ? -Math.ceil(k / 2) : k / 2),
          dx = far * Math.cos(angle),
          dy = far * Math.sin(angle) * 1.15,
          anchor = dx > 3 ? "start" : dx < -3 ? "end" : "middle",
          left = x + dx - { start: 0, middle: width / 2, end: width }[anchor],
          box = { left, right: left + width, top: y + dy - 7, bottom: y + dy + 7 };
        const inside =
          box.left > chart.margin.left &&
          box.right < chart.width - 2 &&
          box.top > chart.margin.top - 14 &&
          box.bottom < chart.height - chart.margin.bottom;
        const hits = (t) =>
          t.left < box.right && box.left < t.right && t.top < box.bottom && box.top < t.bottom;
        if (inside && !occupied.some(hits)) {
          occupied.push(box);
          return { x: x + dx, y: y + dy, anchor, far };
        }
      }
    return null;
  };

  const label = (mark, x, y, text, spot) => {
    if (!spot) return;
    if (spot.far > 10)
      mark.prepend(s("line", { class: "lead", x1: x, y1: y, x2: spot.x, y2: spot.y }));
    const { x: left, y: high, anchor } = spot;
    mark.append(s("text", { x: left, y: high, dy: "0.32em", "text-anchor": anchor }, text));
  };

  const bars = (p, { sx, sy }) => {
    const line = (x1, x2, y1, y2) => s("line", { class: "bar", x1, x2, y1, y2 }),
      across = p.xs && line(sx(p.x - p.xs), sx(p.x + p.xs), sy(p.y), sy(p.y)),
      up = p.ys && line(sx(p.x), sx(p.x), sy(p.y - p.ys), sy(p.y + p.ys));
    return [across, up].filter(Boolean);
  };

  const drawPoint = (p, chart, facts) => {
    const x = chart.sx(p.x),
      y = chart.sy(p.y);
    const mark = s(
      "g",
      {
        class: "point",
        style: `--c: var(${color(p.e.name)})`,
        tabindex: "0",
        role: "img",
        "aria-label": facts.join(", "),
        "data-name": p.e.name,
        "data-x": p.x,
        "data-y": p.y,
      },
      bars(p, chart),
      marker(p.e.name, x, y, FILLS[p.e.group]),
    );
    const showTip = (event) => {
      const r = mark.getBoundingClientRect();
      powerphase.tip(facts.join("\n"), event.clientX || r.left, event.clientY || r.top);
    };
    for (const kind of ["pointermove", "focus"]) mark.addEventListener(kind, showTip);
    for (const kind of ["pointerleave", "blur"])
      mark.addEventListener(kind, () => powerphase.tip(""));
    return mark;
  };

  const scatter = () => {
    const box = $("#scatter"),
      nx = $("#scatter-x").value,
      ny = $("#scatter-y").value,
      [across, up] = [site.scores[nx], site.scores[ny]];
    const points = shown()
      .map((e) => ({ e, x: e.mean[nx], y: e.mean[ny], xs: e.std[nx] || 0, ys: e.std[ny] || 0 }))
      .filter((p) => p.x !== null && p.y !== null);
    powerphase.drawn.scatter = points.map((p) => ({ name: p.e.name, x: p.x, y: p.y }));
    const heading = `${up.title} against ${across.title}`;
    $("#scatter-title").textContent = heading[0].toUpperCase() + heading.slice(1);
    note(across, up);
    if (!points.length) {
      box.replaceChildren(h("p", { class: "missing" }, "None of the rows shown has both scores."));
      return;
    }
    const chosenLog = address().chosen.get("log"),
      log = chosenLog ? chosenLog === "1" : ["x", "y"].some((axis) => spread(points, axis) > LOG_FROM);
    $("#scatter-log").checked = log;
    const axis = (name) => {
      const positive = points.every((p) => p[name] >= 0) && points.some((p) => p[name] > 0);
      return (log && positive ? logAxis : linearAxis)(points, name);
    };
    const chart = frame(box, {
      role: "group",
      label: `${heading}, ${points.length} rows; the table above has the numbers`,
      x: { ...axis("x"), label: `${across.title} [${across.unit}] →` },
      y: { ...axis("y"), label: `↑ ${up.title} [${up.unit}]` },
      margin: { top: 30, left: 60, right: 20 },
    });
    const at = (p) => [chart.sx(p.x), chart.sy(p.y)],
      around = ([x, y]) => ({ left: x - 6, right: x + 6, top: y - 6, bottom: y + 6 }),
      occupied = points.map((p) => around(at(p)));
    const marks = points.map((p) => {
      const name = p.e.group === "paper" ? `${p.e.name} (paper)` : p.e.name,
        scored = (score, value) => `${score.title} ${significant(value, 4)}`,
        mark = drawPoint(p, chart, [name, scored(across, p.x), scored(up, p.y)]);
      label(mark, ...at(p), name, labelPosition(...at(p), name, occupied, chart));
      return mark;
    });
    chart.plot.append(...marks.reverse()); // the first rows of the table are drawn on top
  };

  const note = (across, up) => {
    const calm = !board.truth.violations,
      better = [up.ordering && "down", across.ordering && "left"].filter(Boolean).join(" and "),
      words = [
        "Each point is a row shown in the table above; bars are one standard deviation over",
        better ? `seeds. ${better[0].toUpperCase()}${better.slice(1)} is better.` : "seeds.",
        "A model has the same colour and marker on all pages; variants are hollow, the paper’s rows pale.",
      ];
    if (calm && up.safety)
      words.push("No voltage left its band on this grid: any value above 0 is a false alarm.");
    if (calm && !up.safety)
      words.push("No voltage left its band on this grid, so safety scores say little here.");
    $("#scatter-note").textContent = words.join(" ");
  };

  // If no voltage leaves its band, safety scores are zero for nearly all models: lines say more.
  const calmAxis = () => {
    const ranked = board.entries.filter((e) => e.rank !== null && e.group !== "paper"),
      haveLines = ranked.every((e) => e.mean.overload_brier !== null);
    return board.truth.overloads && haveLines ? "overload_brier" : "energy";
  };
  const chooseAxes = () => {
    const { chosen } = address();
    $("#scatter-x").value = chosen.get("x") || "crps";
    $("#scatter-y").value = chosen.get("y") || (board.truth.violations ? "brier" : calmAxis());
  };

  // Keyboard users see the text that a pointer shows as the title.
  const explain = (button) => {
    button.addEventListener("focus", () => {
      const { left, top } = button.getBoundingClientRect();
      if (button.matches(":focus-visible")) powerphase.tip(button.title, left, top);
    });
    button.addEventListener("blur", () => powerphase.tip(""));
  };

  const start = () => {
    const { chosen } = address(),
      names = Object.entries(site.scores).map(([name, score]) => [
        name,
        score.title,
        score.group,
      ]);
    for (const id of ["#scatter-x", "#scatter-y"]) options($(id), names);
    $("#filter").value = chosen.get("filter") || "";
    $("#filter").addEventListener("input", () => {
      choose({ filter: $("#filter").value });
      filter();
    });
    for (const box of $$("#board-filter input[name=group]")) box.addEventListener("change", filter);
    for (const [id, key] of [
      ["#scatter-x", "x"],
      ["#scatter-y", "y"],
    ])
      $(id).addEventListener("change", () => {
        choose({ [key]: $(id).value });
        scatter();
      });
    $("#scatter-log").addEventListener("change", () => {
      choose({ log: $("#scatter-log").checked ? "1" : "0" });
      scatter();
    });
    for (const row of $$("table.scores tr.entry"))
      $("th", row).prepend(key(row.dataset.name, FILLS[row.parentElement.dataset.group]));
    for (const table of $$("table.scores")) {
      $$("thead tr:last-child th", table).forEach((head, column) =>
        $("button", head).addEventListener("click", () => {
          sort(table, column, head.getAttribute("aria-sort") === "ascending");
        }),
      );
      for (const button of $$("thead button", table)) explain(button);
    }
  };

  const show = (nextBoard) => {
    board = nextBoard;
    for (const part of $$("#page-leaderboard .board"))
      part.hidden = part.dataset.board !== board.key;
    chooseAxes();
    filter();
  };

  return { start, show, resize: () => board && scatter() };
})();
