// Reads the scenarios, or bands, of a bus from the files of rows and forecasts.
"use strict";
powerphase.scenarios = (() => {
  const { load, unpack } = powerphase;
  const LEVELS = [0.1, 0.25, 0.5, 0.75, 0.9],
    KINDS = ["P", "Q", "V", "theta"],
    TOP = 252,
    STEPS = 96,
    RISK_LEVELS = 240,
    EXCURSION_UNIT = 0.001;

  // Decodes a series on levels between two extremes from its differences modulo 256.
  const decode = (low, high, steps, first) => {
    const values = new Float32Array(STEPS);
    let level = 0;
    for (let k = 0; k < STEPS; k++) {
      level = (level + steps[first + k]) & 255;
      values[k] = low + (level / TOP) * (high - low);
    }
    return values;
  };
  const parts = (file) => Promise.all([file.low, file.high, file.steps].map(unpack));

  const title = (board, model) => {
    const several = board.models.filter((other) => other.name === model.name).length > 1;
    return several ? `${model.name} · seed ${model.seed}` : model.name;
  };

  // The options of a list of models, in the groups of the table.
  const choices = (board, models) => {
    const kinds = { models: "Models", references: "References", variants: "Variants" },
      names = [...Object.values(kinds), "Without a row"];
    const group = (name) => {
      const entry = board.entries.find((item) => item.name === name && item.kind !== "paper");
      return entry ? kinds[entry.group] : "Without a row";
    };
    return models
      .map((model) => [model.id, title(board, model), group(model.name)])
      .sort((a, b) => names.indexOf(a[2]) - names.indexOf(b[2]));
  };

  // From a sidecar: every scenario of some buses in some windows.
  const fromScenarios = async (row, bus, kind) => {
    const { shown } = row,
      index = shown ? shown.bus_id.indexOf(bus) : -1;
    if (index < 0) return null;
    const truth = await parts(await load(shown.truth)),
      [low, high, levelSteps] = await parts(shown),
      weight = await unpack(shown.weight);
    const [, buses, kinds, members, steps] = shown.steps.shape;
    return shown.window.map((window, w) => {
      const series = (w * buses + index) * kinds + kind;
      const target = decode(truth[0][series], truth[1][series], truth[2], series * steps);
      const weights = weight.subarray(series * members, (series + 1) * members);
      const scenarios = Array.from({ length: members }, (_, m) =>
        decode(low[series], high[series], levelSteps, (series * members + m) * steps),
      );
      const levels = LEVELS.map(() => new Float32Array(steps));
      for (let k = 0; k < steps; k++) {
        powerphase.charts
          .quantiles(
            scenarios.map((scenario) => scenario[k]),
            weights,
            LEVELS,
          )
          .forEach((value, l) => {
            levels[l][k] = value;
          });
      }
      return { window, levels, scenarios, weights, truth: target };
    });
  };

  // The series of a bus, from the file that contains it.
  const series = async (file, position, perFile, kind) => {
    const part = await load(`${file}-${Math.floor(position / perFile)}`);
    const [low, high, steps] = await parts(part);
    const [, kinds, windows] = part.low.shape,
      lines = part.steps.shape.length > 4 ? part.steps.shape[3] : 1;
    const bus = position % perFile;
    return Array.from({ length: windows }, (_, w) => {
      const first = (bus * kinds + kind) * windows + w;
      return Array.from({ length: lines }, (_, l) =>
        decode(low[first], high[first], steps, (first * lines + l) * STEPS),
      );
    });
  };

  // From a forecast file: bands of any bus.
  const fromBands = async (full, position, variable) => {
    const kind = full.variables.indexOf(variable);
    if (kind < 0 || position < 0) return null;
    const bands = await series(full.file, position, full.buses_per_file, kind);
    const truth = full.truth
      ? await series(full.truth, position, full.buses_per_file, kind)
      : null;
    return full.windows.map((window, w) => {
      const [low, median, high] = bands[w];
      return {
        window,
        levels: [low, null, median, null, high],
        scenarios: [],
        weights: [],
        truth: truth && truth[w][0],
      };
    });
  };

  // The normalised fans of a bus in all available windows, or null.
  const fans = async (model, ids, bus, variable) => {
    if (model.file) {
      const scenarios = await fromScenarios(
        await load(model.file),
        bus,
        KINDS.indexOf(variable),
      );
      if (scenarios) return scenarios;
    }
    return model.whole ? fromBands(model.whole, ids.indexOf(bus), variable) : null;
  };

  // The risk of all buses, from a sidecar or a forecast file that has it, or null.
  const risks = async (model, ids) => {
    const row = model.whole ? null : model.file && (await load(model.file)),
      source = model.whole ? await load(`${model.whole.file}-risk`) : row && row.risk;
    if (!source) return null;
    const names = ["probability", "happened", "excursion", "excursion_happened"],
      [probability, happened, excursion, beyond] = await Promise.all(
        names.map((name) => (source[name] ? unpack(source[name]) : null)),
      );
    const at = (w, bus, step) => (w * ids.length + bus) * STEPS + step,
      known = source.known !== false,
      // How far below and above the band [p.u.], or null in files that do not have it.
      sides = (units) => (w, bus) =>
        units && [0, 1].map((side) => units[(w * ids.length + bus) * 2 + side] * EXCURSION_UNIT);
    return {
      windows: [...source.window],
      all: true,
      known,
      risk: (...indices) => probability[at(...indices)] / RISK_LEVELS,
      happened: (...indices) => happened[at(...indices)],
      excursion: sides(excursion),
      beyond: known ? sides(beyond) : () => null,
    };
  };

  // The voltage band in words; by the limits of the case file, each bus has its own.
  const bandText = ({ band }) => (band ? `${band[0]} to ${band[1]} p.u.` : "its limits in the case file");

  // The risk of the buses with scenarios in a sidecar; that of the others is unknown. A row that
  // was scored by each bus's own limits has the risk of all.
  const risksOfSome = async (board, model, row, ids) => {
    if (!board.band) return null;
    const [lowest, highest] = board.band,
      outside = (v) => v < lowest || v > highest,
      byBus = new Map(),
      steps = [...Array(STEPS).keys()];
    for (const [k, position] of row.shown.position.entries()) {
      if (position === null) continue;
      const windows = await fans(model, ids, row.shown.bus_id[k], "V");
      const share = (fan, t) =>
        fan.scenarios.reduce((sum, scenario, m) => sum + (outside(scenario[t]) ? fan.weights[m] : 0), 0);
      byBus.set(
        position,
        windows.map((fan) => ({
          risk: steps.map((t) => share(fan, t)),
          happened: steps.map((t) => Number(outside(fan.truth[t]))),
        })),
      );
    }
    const pick = (name) => (w, bus, step) =>
      byBus.has(bus) ? byBus.get(bus)[w][name][step] : NaN;
    return {
      windows: row.shown.window,
      all: false,
      known: true,
      risk: pick("risk"),
      happened: pick("happened"),
    };
  };

  const busIds = async (board) =>
    board.n_buses ? unpack((await load(`${board.key}/buses`)).bus_id) : new Int32Array();

  return { fans, risks, risksOfSome, bandText, busIds, title, choices, LEVELS, KINDS, STEPS };
})();
