// The lines of a row: their risk of overload by window and step, their scores, and words for both.
"use strict";
powerphase.lines = (() => {
  const { unpack, clock, percent, withCode, SCORE } = powerphase;
  const STEPS = 96,
    RISK_LEVELS = 240,
    MAX_SPANS = 3;
  // The score of a line for each score of a bus, and its title; the others are of voltages alone.
  const SCORE_OF = {
    violation_probability: "overload_probability",
    violation: "overload",
    brier: "overload_brier",
    twcrps: "overload_twcrps",
    crps: "loading_crps",
  };
  const titles = {
    violation_probability: "mean probability of overload",
    violation: "share of the time overloaded",
    brier: "Brier score of overload",
    twcrps: "twCRPS of loading",
    crps: "CRPS of loading",
  };
  const ofLines = {
    risk: "Of lines, probability of a loading above the rating; edges mark those that were overloaded.",
    happened: "Of lines, which were above their ratings.",
  };

  const unpackAll = async (packed) => {
    const parts = Object.entries(packed).map(async ([name, part]) => [name, await unpack(part)]);
    return Object.fromEntries(await Promise.all(parts));
  };

  // The lines that a row's file has, or null.
  const read = async (row, ids) => {
    if (!row || !row.lines) return null;
    const { total, windows } = row.lines,
      position = new Map([...ids].map((id, k) => [id, k])),
      { bus_id, number, rating_mva } = await unpackAll(row.lines.identity),
      scores = await unpackAll(row.lines.scores),
      risk = row.lines.risk && (await unpackAll(row.lines.risk)),
      list = [...number].map((n, l) => ({
        name: `${bus_id[2 * l]}-${bus_id[2 * l + 1]}${n > 1 ? `/${n}` : ""}`,
        ends: [position.get(bus_id[2 * l]), position.get(bus_id[2 * l + 1])],
        rating: rating_mva[l],
      })),
      at = (w, l, step) => (w * list.length + l) * STEPS + step,
      timed = {
        risk: (w, l, step) => risk.probability[at(w, l, step)] / RISK_LEVELS,
        happened: (w, l, step) => risk.happened[at(w, l, step)],
      },
      value = (quantity, window, step) => {
        if (quantity in timed)
          return (l) => (risk ? timed[quantity](windows.indexOf(window), l, step) : NaN);
        const values = scores[SCORE_OF[quantity]];
        return (l) => (values ? values[l] : NaN);
      };
    const lines = {
      list,
      // The ends, and where between them a line is named: parallel lines in different places.
      drawn: list.map((line, l) => [...line.ends, Math.min(0.9, 0.4 + 0.1 * number[l])]),
      total: { atRisk: total[0], rated: total[1], inService: total[2] },
      hasSteps: Boolean(risk),
      score: (name, l) => scores[name][l],
      ...timed,
      peak: (w, l) => risk.peak[w * list.length + l],
      windowIndex: (window) => windows.indexOf(window),
      values: (quantity, window, step) =>
        Float32Array.from(list.keys(), value(quantity, window, step)),
      // The lines that end at a bus.
      of: (bus) => [...list.keys()].filter((l) => list[l].ends.includes(bus)),
      facts: (l, state, text) => facts(lines, l, state, text),
    };
    return lines;
  };

  // The times of the day at which something holds, such as "17:30 to 20:00".
  const spans = (holds) => {
    const found = [];
    for (let t = 0; t < STEPS; t++) {
      if (!holds(t)) continue;
      const last = found[found.length - 1];
      if (last && last[1] === t) last[1] = t + 1;
      else found.push([t, t + 1]);
    }
    const end = (step) => (step === STEPS ? "24:00" : clock(step)),
      texts = found.slice(0, MAX_SPANS).map(([from, to]) => `${clock(from)} to ${end(to)}`),
      more = found.length - texts.length;
    return texts.join(", ") + (more > 0 ? ` and ${more} more` : "");
  };

  // What the scenarios and the record say of a line on a day, in sentences.
  const dayFacts = (lines, l, w) => {
    const steps = [...Array(STEPS).keys()],
      risks = steps.map((t) => lines.risk(w, l, t)),
      highest = Math.max(...risks),
      hours = steps.filter((t) => lines.happened(w, l, t)).length / 4,
      peak = `${(100 * lines.peak(w, l)).toFixed(0)} % of its rating of ${lines.list[l].rating.toFixed(0)} MVA`,
      expected = highest
        ? `highest risk of the day ${percent(highest)} at ${clock(risks.indexOf(highest))}, above 0 from ${spans((t) => risks[t] > 0)}`
        : "no scenario overloads it that day";
    return [
      expected,
      hours
        ? `actually overloaded for ${hours} h, ${spans((t) => lines.happened(w, l, t))}, up to ${peak}`
        : `actually not overloaded that day: at most ${peak}`,
    ];
  };

  // What there is to know about a line, in sentences; `text` is the value that it is coloured by.
  const facts = (lines, l, { quantity, window, step }, text) => {
    const overall = meanFacts(lines, l),
      w = lines.windowIndex(Number(window));
    if (!(quantity in ofLines))
      return quantity in titles ? [`${titles[quantity]} ${text}`, overall] : [overall];
    if (!lines.hasSteps) return [overall];
    const now = quantity === "risk" ? `risk ${text}` : lines.happened(w, l, step) ? "overloaded" : "not overloaded";
    return [`${now} at ${clock(step)}`, ...dayFacts(lines, l, w), overall];
  };
  const meanFacts = (lines, l) =>
    `over all windows: mean probability of overload ${percent(lines.score("overload_probability", l))}, overloaded ${percent(lines.score("overload", l))} of the time`;

  // What there is to know about the lines of a row, or why there is nothing.
  const note = (row, lines, quantity) => {
    if (!row) return withCode(`A forecast file has no risk of lines; ${SCORE} writes a row that has it.`);
    if (!lines) return withCode(`This row was scored before lines were stored; ${SCORE} writes a row with their risk.`);
    const { atRisk, rated } = lines.total,
      count = (n) => n.toLocaleString("en");
    if (!rated) return ["No line of this grid has a rating, so overloads are unknown."];
    if (!atRisk) return [`None of ${count(rated)} rated lines is overloaded, and in no scenario of this model is one.`];
    const stored = lines.list.length < atRisk ? ` The worst ${lines.list.length} are stored.` : "",
      missing = quantity in ofLines
        ? lines.hasSteps ? "" : " This row has no risk of lines by step."
        : quantity in SCORE_OF ? "" : " Lines have no such score.";
    return [`${count(atRisk)} of ${count(rated)} rated lines are at risk in some window.${stored}${missing}`];
  };

  return { read, note, titles, ofLines };
})();
