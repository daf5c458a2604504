// Sorts and filters the tables that the page came with, and draws fidelity against safety.
"use strict";
powerphase.pages.leaderboard = (() => {
  const { $, $$, s, site, choose, address, options, significant } = powerphase;
  const { frame, color, extent } = powerphase.charts;
  const GROUPS = { models: 0, references: 5, variants: 3, paper: 1 };
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

  const filter = () => {
    const text = $("#filter").value.trim().toLowerCase(),
      groups = shownGroups();
    for (const part of $$("#page-leaderboard .board")) {
      let any = false;
      for (const body of $$("tbody", part)) {
        const on = groups.includes(body.dataset.group);
        let some = false;
        for (const row of $$("tr.entry", body)) {
          row.hidden = !on || !row.dataset.name.toLowerCase().includes(text);
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
    const text = $("#filter").value.trim().toLowerCase(),
      groups = shownGroups();
    return board.entries.filter(
      (entry) => groups.includes(entry.group) && entry.name.toLowerCase().includes(text),
    );
  };

  const domain = (points, axis, log) => {
    const ends = points.flatMap((p) => [
      p[axis] - (p[`${axis}s`] || 0),
      p[axis] + (p[`${axis}s`] || 0),
    ]);
    if (!log) {
      const [low, high] = extent([ends], 0.08);
      return [Math.min(...ends) >= 0 ? Math.max(0, low > 0.3 * high ? low : 0) : low, high];
    }
    const positive = ends.concat(points.map((p) => p[axis])).filter((value) => value > 0);
    const low = Math.min(...positive),
      high = Math.max(...positive);
    return [10 ** (Math.log10(low) - 0.15), 10 ** (Math.log10(high) + 0.15)];
  };

  // Beside its point, where no other label is; else the point has to do with its title.
  const place = (x, y, text, taken, chart) => {
    const wide = 6.3 * text.length,
      tries = [
        [9, 4, "start"],
        [-9, 4, "end"],
        [0, -10, "middle"],
        [0, 18, "middle"],
      ];
    for (const [dx, dy, anchor] of tries) {
      const left = x + dx - (anchor === "end" ? wide : anchor === "middle" ? wide / 2 : 0);
      const box = { left, right: left + wide, top: y + dy - 11, bottom: y + dy + 3 };
      const out =
        box.left < chart.margin.left ||
        box.right > chart.width - 2 ||
        box.top < 0 ||
        box.bottom > chart.height - chart.margin.bottom;
      if (
        !out &&
        !taken.some(
          (t) =>
            t.left < box.right && box.left < t.right && t.top < box.bottom && box.top < t.bottom,
        )
      ) {
        taken.push(box);
        return { x: x + dx, y: y + dy, anchor };
      }
    }
    return null;
  };

  const shape = (group, x, y) => {
    if (group === "paper")
      return s("path", {
        class: "dot hollow",
        d: `M${x} ${y - 6}L${x + 5.5} ${y + 4}L${x - 5.5} ${y + 4}Z`,
      });
    if (group === "references")
      return s("rect", { class: "dot", x: x - 4.5, y: y - 4.5, width: 9, height: 9 });
    if (group === "variants")
      return s("path", {
        class: "dot",
        d: `M${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}L${x - 6} ${y}Z`,
      });
    return s("circle", { class: "dot", cx: x, cy: y, r: 6 });
  };

  const scatter = () => {
    const box = $("#scatter"),
      nx = $("#scatter-x").value,
      ny = $("#scatter-y").value,
      log = $("#scatter-log").checked;
    const points = shown()
      .map((e) => ({ e, x: e.mean[nx], y: e.mean[ny], xs: e.std[nx], ys: e.std[ny] }))
      .filter((p) => p.x !== null && p.y !== null);
    powerphase.drawn.scatter = points.map((p) => ({
      name: p.e.name,
      group: p.e.group,
      x: p.x,
      y: p.y,
    }));
    if (!points.length) {
      box.replaceChildren(
        powerphase.h("p", { class: "missing" }, "No row that is shown has both scores."),
      );
      return;
    }
    const positive = (axis) => log && points.some((p) => p[axis] > 0);
    const title = (name) => `${site.scores[name].title} [${site.scores[name].unit}]`;
    const chart = frame(box, {
      label: `${site.scores[ny].title} against ${site.scores[nx].title}, ${points.length} rows`,
      x: {
        domain: domain(points, "x", positive("x")),
        log: positive("x"),
        label: `${title(nx)} →`,
      },
      y: {
        domain: domain(points, "y", positive("y")),
        log: positive("y"),
        label: `↑ ${title(ny)}`,
      },
      margin: { top: 28, left: 60, right: 20 },
    });
    const { sx, sy } = chart,
      taken = points.map((p) => ({
        left: sx(p.x) - 5,
        right: sx(p.x) + 5,
        top: sy(p.y) - 5,
        bottom: sy(p.y) + 5,
      }));
    points.sort((a, b) => (a.e.group === "models") - (b.e.group === "models")); // models on top
    for (const p of points) {
      const x = sx(p.x),
        y = sy(p.y),
        c = color(GROUPS[p.e.group]);
      const mark = s(
        "g",
        {
          class: "point",
          style: `--c: var(${c})`,
          tabindex: "0",
          role: "img",
          "aria-label": `${p.e.name}${p.e.group === "paper" ? ", the paper's" : ""}: ${site.scores[nx].title} ${significant(p.x)}, ${site.scores[ny].title} ${significant(p.y)}`,
          "data-name": p.e.name,
          "data-x": p.x,
          "data-y": p.y,
        },
        p.xs
          ? s("line", {
              class: "bar",
              x1: sx(Math.max(p.x - p.xs, positive("x") ? 1e-12 : -Infinity)),
              x2: sx(p.x + p.xs),
              y1: y,
              y2: y,
            })
          : null,
        p.ys
          ? s("line", {
              class: "bar",
              x1: x,
              x2: x,
              y1: sy(Math.max(p.y - p.ys, positive("y") ? 1e-12 : -Infinity)),
              y2: sy(p.y + p.ys),
            })
          : null,
        shape(p.e.group, x, y),
      );
      const spot = place(x, y, p.e.name, taken, chart);
      if (spot)
        mark.append(s("text", { x: spot.x, y: spot.y, "text-anchor": spot.anchor }, p.e.name));
      const say = (event) => {
        const r = mark.getBoundingClientRect();
        powerphase.tip(
          `${p.e.name}${p.e.group === "paper" ? " (paper)" : ""}\n${site.scores[nx].title} ${significant(p.x, 4)}\n${site.scores[ny].title} ${significant(p.y, 4)}`,
          event.clientX || r.left,
          event.clientY || r.top,
        );
      };
      for (const kind of ["pointermove", "focus"]) mark.addEventListener(kind, say);
      for (const kind of ["pointerleave", "blur"])
        mark.addEventListener(kind, () => powerphase.tip(""));
      chart.plot.append(mark);
    }
    const names = {
      models: "models",
      references: "references",
      variants: "variants",
      paper: "the paper’s, on its own data",
    };
    const here = Object.keys(names).filter((group) => points.some((p) => p.e.group === group));
    powerphase.charts.legend(
      box,
      here.map((group) => ({ color: color(GROUPS[group]), text: names[group] })),
    );
  };

  const start = () => {
    const { chosen } = address(),
      names = Object.entries(site.scores).map(([name, score]) => [
        name,
        `${score.title}${score.safety ? " (safety)" : ""}`,
      ]);
    options($("#scatter-x"), names, chosen.get("x") || "crps");
    options($("#scatter-y"), names, chosen.get("y") || "brier");
    $("#scatter-log").checked = chosen.get("log") === "1";
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
      choose({ log: $("#scatter-log").checked ? "1" : null });
      scatter();
    });
    for (const table of $$("table.scores")) {
      $$("thead tr:last-child th", table).forEach((head, column) =>
        $("button", head).addEventListener("click", () => {
          sort(table, column, head.getAttribute("aria-sort") === "ascending");
        }),
      );
    }
  };

  const show = (given) => {
    board = given;
    for (const part of $$("#page-leaderboard .board"))
      part.hidden = part.dataset.board !== board.key;
    filter();
  };

  return { start, show, resize: () => board && scatter() };
})();
