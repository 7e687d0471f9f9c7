// The page of octavo report. data: {charts: [{metric, title, unit, note, ...}], runs: [{name, dir, last_step, axes, summary,
// counts, events, starts, config}], lines: [{name, runs, metrics}], reload_s}. A line of several runs is their mean.

const {runs} = data;
const single = runs.length === 1;
// Runs that share a name are told apart by their folders.
const labels = runs.map(run => runs.filter(other => other.name === run.name).length > 1 ? run.dir : run.name);
// Of many lines only the kColors with the lowest last losses have colors.
const many = data.lines.length > 12;
const lastLoss = ({metrics: {validation_loss: validation, loss}}) =>
  (data.lines.every(line => line.metrics.validation_loss) ? validation : loss?.mean ?? loss)?.y.at(-1) ?? Infinity;
const ranked = [...data.lines].sort((a, b) => lastLoss(a) - lastLoss(b));
const lines = data.lines.map((line, i) => {
  const place = many ? ranked.indexOf(line) : i, muted = many && place >= kColors;
  return {...line, run: line.runs[0], color: muted ? "muted" : place, label: muted ? `${data.lines.length - kColors} others` : line.name};
});
const lineOf = run => lines.find(line => line.runs.includes(run));

// The x axes: the step, and what every run has beside it.
function xAxesOf() {
  // The value at a step between two points. Repeated steps leave wall times that decrease; they are drawn as waiting.
  const at = key => {
    const points = runs.map(run => {
      let most = 0;
      return {x: run.axes[key].x, y: run.axes[key].y.map(value => most = Math.max(most, value))};
    });
    return (run, step) => {
      const {x, y} = points[run], i = Math.min(firstFrom(x, step), x.length - 1), before = Math.max(i - 1, 0);
      return x[i] <= step || i === before ? y[i] : y[before] + (y[i] - y[before]) * (step - x[before]) / (x[i] - x[before]);
    };
  };
  const has = key => runs.every(run => run.axes?.[key]);
  const found = [{name: "steps", label: "step", at: (run, step) => step, text: step => `step ${step.toLocaleString("en-US")}`}];
  if (has("tokens")) found.push({name: "tokens", label: "tokens", at: at("tokens"), text: tokens => `${shortNumber(tokens)} tokens`});
  if (has("wall_s")) {
    const longest = Math.max(...runs.map(run => run.axes.wall_s.y.at(-1)));
    const [unit, size] = longest > 7200 ? ["hours", 3600] : longest > 120 ? ["minutes", 60] : ["seconds", 1];
    const wall = at("wall_s");
    found.push({name: "wall time", label: `${unit} of wall time, restarts included`, at: (run, step) => wall(run, step) / size,
      text: time => `${digits(time, 3)} ${unit}`});
  }
  return found;
}

// The lines of a metric: its values, and where there is one their mean. A muted line and one with a band have no values.
function linesOf({run, metrics}, key, row, line) {
  const points = ({x, y, low, high}, style) => {
    const scaled = y.map(value => value === null ? NaN : value * row.scale);
    const kept = scaled.map((value, i) => i).filter(i => Math.abs(scaled[i]) < 1e300);
    const band = low ? {low: kept.map(i => low[i] * row.scale), high: kept.map(i => high[i] * row.scale)} : {};
    return {name: line.label, ...line, run, style, x: kept.map(i => x[i]), y: kept.map(i => scaled[i]), ...band};
  };
  const metric = metrics[key];
  if (!metric) return [];
  if (!metric.mean) return [points(metric, line.style)];
  return [...line.color === "muted" || metric.mean.low ? [] : [points(metric, "faint")], points(metric.mean, "")];
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
  const keys = [...new Set(lines.flatMap(line => Object.keys(line.metrics)))].filter(key => key.split("/")[0] === row.metric).sort();
  const nameOf = key => key.slice(row.metric.length + 1);
  if (single) {
    const validation = linesOf(lines[0], `validation_${row.metric}`, row, {color: 1, style: "validation", label: "validation"});
    const training = keys.flatMap((key, color) => linesOf(lines[0], key, row,
      {color, style: "points", label: validation.length ? "training" : nameOf(key) || row.title}));
    return [chart(row, row.metric, row.title, [...training, ...validation])];
  }
  return keys.map((key, i) => {
    const inOrder = [...lines].sort((a, b) => (b.color === "muted") - (a.color === "muted"));
    const drawn = inOrder.flatMap(line => {
      const {name, label, color} = line, isMuted = color === "muted";
      return [...linesOf(line, key, row, {color, style: isMuted ? "" : "points", label, name}),
        ...isMuted ? [] : linesOf(line, `validation_${row.metric}`, row, {color, style: "validation", label, name: `${name}, validation`})];
    });
    const note = drawn.some(one => one.style === "validation") ? [row.note, "rings: validation"].filter(Boolean).join("; ") : row.note;
    const name = nameOf(key);
    return {...chart(row, keys.length > 1 ? `${row.metric}-${i}` : row.metric, name ? `${row.title}: ${name}` : row.title, drawn), note};
  });
}

const marksOf = (run, i) => run.events.filter(event => event.step !== null && event.kind !== "note" && event.step <= run.last_step)
  .filter(event => !many || event.kind !== "checkpoint" && lineOf(i).color !== "muted")
  .map(event => ({...event, run: i, label: lineOf(i).label, color: single ? "" : look(lineOf(i).color), text: single ? event.text : `${labels[i]}: ${event.text}`}));

function summary() {
  const heads = ["steps", "tokens", "last loss", "least validation loss", "wps", "MFU", "memory", "goodput", "restarts", "checkpoints", "skipped"];
  const percent = value => value === undefined ? "-" : `${(100 * value).toFixed(1)}%`;
  return table("summary", [{text: "run", class: "run"}, ...heads.map(numeric)], runs.map((run, i) => {
    const {tokens, loss, validation_loss: validation, wps, mfu, memory_gib: memory, goodput, skipped_steps: skipped} = run.summary;
    return [html("span", {}, swatch(lineOf(i).color, "box"), labels[i]), `${run.last_step} / ${run.config["training.steps"] ?? "?"}`,
      shortNumber(tokens?.last), longNumber(loss?.tail_mean),
      validation ? `${longNumber(validation.least.y)} at ${longNumber(validation.least.x)}` : "-",
      wps?.median < 1000 ? wps.median.toFixed(1) : longNumber(wps?.median), percent(mfu?.median),
      memory ? `${digits(memory.last, 3)} GiB` : "-", percent(goodput?.last),
      Math.max(run.counts.restart ?? 0, run.starts.length - 1), run.counts.checkpoint ?? 0, longNumber(skipped?.last ?? 0)];
  }), () => "", "cards");
}

// A table of what each run has a list of, below a heading; nothing where all lists are empty.
function lists(title, id, heads, kind, rowsOf, note = "") {
  const rows = runs.flatMap(run => rowsOf(run).map(row => single ? row : [run.name, ...row]));
  if (!rows.length) return [];
  const shown = [...note ? [html("p", {class: "soft"}, note)] : [], table(id, single ? heads : ["run", ...heads], rows, () => "", kind)];
  return [html("h2", {}, title), ...many ? [html("details", {}, html("summary", {}, "Show"), ...shown)] : shown];
}

function events() {
  const leftOut = runs.reduce((sum, run) => sum + Object.values(run.counts).reduce((a, b) => a + b, 0) - run.events.length, 0);
  return lists("Events", "events", [{text: "time", class: "nowrap"}, numeric("step"), "what", "log"], "lines",
    run => run.events.map(event => [event.time, event.step ?? "", {text: event.kind, class: `kind ${event.kind}`}, event.text]),
    leftOut ? `Without the ${leftOut} oldest of those kinds that have many.` : "");
}

function starts() {
  const nowrap = text => ({text, class: "nowrap"});
  return lists("Starts", "starts", [nowrap("time (UTC)"), nowrap("version"), "on", "hosts", {text: "command", class: "mono"}], "cards",
    run => run.starts.map(start => [start.time, start.version, start.runs_on, start.hosts, start.command]));
}

function configs() {
  const rows = [...new Set(runs.flatMap(run => Object.keys(run.config)))].sort().map(key => [key, ...runs.map(run => run.config[key] ?? "-")]);
  if (!rows.length) return [];
  const differs = ([, ...values]) => values.some(value => value !== values[0]);
  const mono = text => ({text, class: "mono"});
  const shown = (id, some) => table(id, ["key", ...runs.map(run => run.name)].map(mono), some, row => differs(row) ? "diff" : "");
  const differing = rows.filter(differs).filter(([key]) => !many || !/^(logging|checkpoint|plan)\./.test(key));
  // The columns are the keys if there are many runs.
  const transposed = () => table("config-differences", [{text: "run", class: "run"}, ...differing.map(([key]) => mono(key))],
    runs.map((run, i) => [html("span", {}, swatch(lineOf(i).color, "box"), labels[i]), ...differing.map(([, ...values]) => values[i])]));
  return [html("h2", {}, single ? "Config" : "Configs"),
    ...single ? [] : [differing.length ? many ? transposed() : shown("config-differences", differing) : html("p", {}, "All keys have the same values.")],
    html("details", {}, html("summary", {}, "Every key"), shown("config", rows))];
}

const drawn = data.charts.flatMap(chartsOf).filter(one => one.lines.some(({y}) => y.length));
const reload = data.reload_s ? `Loaded at ${new Date().toLocaleTimeString("en-GB")}, and again every ${data.reload_s} s. ` : "";
show(many ? `${runs.length} runs` : labels.join(", "),
  html("p", {class: "soft"}, `octavo report of ${single ? runs[0].dir : `${runs.length} runs`}. ${reload}Drag over a chart to zoom into all of ` +
    "them, double-click to see all steps again. On the x axis, | is a checkpoint, \u25b3 a restart, and \u25b2 a skipped step, a rollback " +
    `or a warning${single ? "" : ", in the color of its run"}.`),
  summary(), html("p", {class: "soft below"}, "The last loss is the mean of the last tenth of the logged steps, at most 20 of them. " +
    "wps and MFU are medians of the second half of the run." +
    (lines.some(line => line.runs.length > 1) ? " Runs that differ only in their seeds are one line, their mean, with a band from the smallest to the largest value." : "") +
    (many ? ` The charts have colors for the ${kColors} lines with the lowest last loss.` : "")),
  html("h2", {}, "Metrics"), ...showCharts(drawn, xAxesOf(), runs.flatMap(marksOf)),
  ...configs(), ...events(), ...starts());
drawCharts();
if (data.reload_s) setTimeout(() => location.reload(), 1000 * data.reload_s);
document.documentElement.dataset.charts = charts.length;
