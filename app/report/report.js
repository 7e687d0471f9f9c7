// The page of octavo report. data: {charts: [{metric, title, unit, note, ...}], runs: [{name, dir, last_step, metrics,
// summary, counts, events, starts, config}]}.

const {runs} = data;
const single = runs.length === 1;
// Runs that share a name are told apart by their folders.
const labels = runs.map(run => runs.filter(other => other.name === run.name).length > 1 ? run.dir : run.name);

// The lines of a run's metric: its values, and where there is one their mean.
function linesOf(run, key, row, look) {
  const points = ({x, y}, style, label) => {
    const scaled = y.map(value => value === null ? NaN : value * row.scale);
    const kept = scaled.map((value, i) => i).filter(i => Math.abs(scaled[i]) < 1e300);
    return {...look, style, label, x: kept.map(i => x[i]), y: kept.map(i => scaled[i])};
  };
  const metric = run.metrics[key];
  if (!metric) return [];
  if (!metric.mean) return [points(metric, look.style, look.label)];
  return [points(metric, "faint", ""), points(metric.mean, "", look.label)];
}

function chart(row, id, title, lines) {
  const values = lines.flatMap(one => one.y);
  const least = values.reduce((a, b) => Math.min(a, b), Infinity), most = values.reduce((a, b) => Math.max(a, b), 0);
  return {...row, id, title, lines, logarithmic: row.logarithmic && least > 0 && most > 20 * least};
}

// A row is one metric, or a group of them, as of a loss by dataset. For one run a chart has a line for each metric of
// the group, for several a chart for each metric has a line for each run. The validation of a metric is in its chart.
function chartsOf(row, place) {
  row = {...row, wide: place === 0};
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.metrics)))].filter(key => key.split("/")[0] === row.metric).sort();
  const nameOf = key => key.slice(row.metric.length + 1);
  if (single) {
    const validation = linesOf(runs[0], `validation_${row.metric}`, row, {color: 1, style: "points", label: "validation"});
    const look = (key, color) => ({color, style: "points", label: validation.length ? "training" : nameOf(key)});
    const lines = keys.flatMap((key, i) => linesOf(runs[0], key, row, look(key, i)));
    return [chart(row, row.metric, row.title, [...lines, ...validation])];
  }
  return keys.map((key, i) => {
    const lines = runs.flatMap((run, color) => [...linesOf(run, key, row, {color, style: "points", label: labels[color]}),
      ...linesOf(run, `validation_${row.metric}`, row, {color, style: "dashed", label: ""})]);
    const note = lines.some(one => one.style === "dashed") ? [row.note, "dashed: validation"].filter(Boolean).join("; ") : row.note;
    const name = nameOf(key);
    return {...chart(row, keys.length > 1 ? `${row.metric}-${i}` : row.metric, name ? `${row.title}: ${name}` : row.title, lines), note};
  });
}

const marksOf = (run, i) => run.events.filter(event => event.step !== null && event.kind !== "note" && event.step <= run.last_step)
  .map(event => ({...event, text: single ? event.text : `${labels[i]}: ${event.text}`}));

function summary() {
  const heads = ["steps", "tokens", "loss", "least validation loss", "wps", "MFU", "memory", "goodput", "restarts", "checkpoints", "skipped"];
  const percent = value => value === undefined ? "-" : `${(100 * value).toFixed(1)}%`;
  return table("summary", ["run", ...heads.map(numeric)], runs.map((run, i) => {
    const {tokens, loss, validation_loss: validation, wps, mfu, memory_gib: memory, goodput, skipped_steps: skipped} = run.summary;
    return [html("span", {}, swatch(i, "box"), run.name), `${run.last_step} / ${run.config["training.steps"] ?? "?"}`,
      shortNumber(tokens?.last), longNumber(loss?.last),
      validation ? `${longNumber(validation.least.y)} at ${longNumber(validation.least.x)}` : "-",
      wps?.median < 1000 ? wps.median.toFixed(1) : longNumber(wps?.median), percent(mfu?.median),
      memory ? `${longNumber(memory.last)} GiB` : "-", percent(goodput?.last),
      Math.max(run.counts.restart ?? 0, run.starts.length - 1), run.counts.checkpoint ?? 0, longNumber(skipped?.last ?? 0)];
  }));
}

// A table of what each run has a list of, below a heading; nothing where all lists are empty.
function lists(title, id, heads, rowsOf, note = "") {
  const rows = runs.flatMap(run => rowsOf(run).map(row => single ? row : [run.name, ...row]));
  if (!rows.length) return [];
  return [html("h2", {}, title), ...note ? [html("p", {class: "soft"}, note)] : [], table(id, single ? heads : ["run", ...heads], rows)];
}

function events() {
  const leftOut = runs.reduce((sum, run) => sum + Object.values(run.counts).reduce((a, b) => a + b, 0) - run.events.length, 0);
  return lists("Events", "events", [{text: "time", class: "nowrap"}, numeric("step"), "what", "log"],
    run => run.events.map(event => [event.time, event.step ?? "", {text: event.kind, class: `kind ${event.kind}`}, event.text]),
    leftOut ? `Without the ${leftOut} oldest of those kinds that have many.` : "");
}

function starts() {
  const nowrap = text => ({text, class: "nowrap"});
  return lists("Starts", "starts", [nowrap("time (UTC)"), nowrap("version"), "on", "hosts", {text: "command", class: "mono"}],
    run => run.starts.map(start => [start.time, start.version, start.runs_on, start.hosts, start.command]));
}

function configs() {
  const rows = [...new Set(runs.flatMap(run => Object.keys(run.config)))].sort().map(key => [key, ...runs.map(run => run.config[key] ?? "-")]);
  if (!rows.length) return [];
  const differs = ([, ...values]) => values.some(value => value !== values[0]);
  const mono = text => ({text, class: "mono"});
  const shown = (id, some) => table(id, ["key", ...runs.map(run => run.name)].map(mono), some, row => differs(row) ? "diff" : "");
  const differing = rows.filter(differs);
  return [html("h2", {}, single ? "Config" : "Configs"),
    ...single ? [] : [differing.length ? shown("config-differences", differing) : html("p", {}, "All keys have the same values.")],
    html("details", {}, html("summary", {}, "Every key"), shown("config", rows))];
}

const drawn = data.charts.flatMap(chartsOf).filter(one => one.lines.some(({y}) => y.length));
show(runs.map(run => run.name).join(", "),
  html("p", {class: "soft"}, `octavo report of ${single ? runs[0].dir : `${runs.length} runs`}. Drag over a chart to zoom into all of ` +
    "them, double-click to see all steps again. Dashed lines are restarts, ticks on the axis are checkpoints, red lines are " +
    "skipped steps, rollbacks and warnings."),
  summary(), html("h2", {}, "Metrics"),
  html("div", {class: "charts"}, ...showCharts(drawn, Math.max(1, ...runs.map(run => run.last_step)), runs.flatMap(marksOf))),
  ...configs(), ...events(), ...starts());
document.documentElement.dataset.charts = charts.length;
