// Charts over the x axis that is chosen for all of them: steps, tokens or wall time. Dragging over a chart zooms into
// all of them, a double click shows all steps again. The values below the pointer are shown beside it.

// What the reader chose. It survives that the page loads itself again. `view` is the shown range of the x axis, null:
// all of it. `hidden` has labels of lines; `logarithmic` and `whole` (an axis that is not cut) are by id of a chart.
const state = {axis: "steps", view: null, hidden: [], logarithmic: {}, whole: {}, ...history.state};
let xAxes = [];  // {name, label, at(run, step), text(value)}
let axis;         // the one of them that is shown
let view = [0, 1];
let charts = [];
let marks = [];   // {kind, step, run, label, color, text}
const toolbar = html("div", {class: "bar"});

function showCharts(rows, ofX, events) {
  xAxes = ofX;
  marks = events;
  charts = rows.map(row => new Chart(row));
  addEventListener("resize", drawCharts);
  return [toolbar, html("div", {class: "charts"}, ...charts.map(chart => chart.figure))];
}

function drawCharts() {
  axis = xAxes.find(one => one.name === state.axis) ?? xAxes[0];
  const lines = charts.flatMap(chart => chart.lines);
  for (const one of lines) one.at = one.x.map(step => axis.at(one.run, step));
  view = state.view ?? [0, lines.reduce((most, {at}) => Math.max(most, at.at(-1) ?? 0), 0) || 1];
  toolbar.replaceChildren(html("span", {class: "soft"}, "x axis:"),
    ...xAxes.map(one => button(one.name, one === axis, () => change({axis: one.name, view: null}))),
    ...state.view ? [button("show all", false, () => zoom(null))] : []);
  for (const chart of charts) chart.draw();
}
function change(values) {
  Object.assign(state, values);
  history.replaceState(state, "");
  drawCharts();
}
const zoom = range => change({view: range});
const toggle = (name, id) => change({[name]: {...state[name], [id]: !state[name][id]}});

// The first index whose value is at least `value`.
function firstFrom(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}
function nearest(values, value) {
  const i = firstFrom(values, value);
  return i === values.length || i > 0 && value - values[i - 1] < values[i] - value ? i - 1 : i;
}

class Chart {
  // {id, title, unit, note, wide, logarithmic, from_zero, lines: [{run, label, name, color, style, x, y}]}. Lines of one
  // label are hidden together; `name` is what the tip calls a line. `style` is "points", "validation", empty, or "faint"
  // (the values that the line of the same label is the mean of). A line may have a band from `low` to `high`.
  constructor(chart) {
    Object.assign(this, chart);
    this.clip = svg("rect");
    [this.axes, this.marks, this.drawn, this.over] = [svg("g"), svg("g"), svg("g", {class: "lines"}), svg("g")];
    this.svg = svg("svg", {role: "img", "aria-label": `${this.title} by step`},
      svg("clipPath", {id: `clip-${this.id}`}, this.clip), this.axes, this.drawn, this.marks, this.over);
    [this.keys, this.buttons] = [html("div", {class: "legend"}), html("span", {class: "buttons"})];
    const note = this.note ? [html("span", {class: "note"}, this.note)] : [];
    this.figure = html("figure", {class: this.wide ? "chart wide" : "chart", id: this.id},
      html("figcaption", {}, html("b", {}, this.title), ...note, this.buttons), this.keys, this.svg);
    this.listen();
  }

  listen() {
    const on = (event, action) => this.svg.addEventListener(event, action);
    on("pointermove", event => this.hover(event));
    on("pointerleave", () => { if (this.drag === undefined) this.clear(); });
    on("pointerdown", event => {
      if (event.button) return;
      this.drag = this.valueAt(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    on("pointerup", event => {
      const [from, to] = [this.drag, this.valueAt(event)].sort((a, b) => a - b);
      this.drag = undefined;
      if (to - from > (view[1] - view[0]) / 80) zoom([Math.max(0, from), Math.min(view[1], to)]); else this.hover(event);
    });
    on("dblclick", () => zoom(null));
  }

  x(value) {
    return this.plane.left + (value - view[0]) / (view[1] - view[0]) * (this.plane.right - this.plane.left);
  }
  y(value) {
    const scaled = this.isLog ? Math.log10 : v => v;
    const share = (scaled(value) - scaled(this.least)) / (scaled(this.most) - scaled(this.least));
    return this.plane.bottom - share * (this.plane.bottom - this.plane.top);
  }
  valueAt(event) {
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    return view[0] + (x - this.plane.left) / (this.plane.right - this.plane.left) * (view[1] - view[0]);
  }

  // Sets the range of the y axis. A linear axis is cut at the 3% largest or smallest values of each line if these would
  // more than double it. `beyond` are the extremes that are out of the range, or would be.
  setRange() {
    const sorted = this.shown.flatMap(({at, y, low = [], high = []}) => [y, low, high].map(values => ({at, y: values})))
      .map(({at, y}) => y.filter((_, i) => at[i] >= view[0] && at[i] <= view[1]).sort((a, b) => a - b))
      .filter(values => values.length);
    const ends = share => [Math.min(...sorted.map(values => values[Math.ceil(share * (values.length - 1))])),
      Math.max(...sorted.map(values => values[Math.floor((1 - share) * (values.length - 1))]))];
    let [least, most] = sorted.length ? ends(0) : [0, 1];
    this.canLog = !this.from_zero && least > 0 && most > 1.5 * least;
    this.isLog = this.canLog && Boolean(this.logarithmic) !== Boolean(state.logarithmic[this.id]);
    this.beyond = [];
    if (this.isLog) {
      [this.least, this.most] = [least / 1.1, most * 1.1];
      return;
    }
    let [low, high] = sorted.some(values => values.length >= 20) ? ends(0.03) : [least, most];
    if (this.from_zero) [least, most, low, high] = [Math.min(least, 0), Math.max(most, 0), Math.min(low, 0), Math.max(high, 0)];
    const fits = end => high === low || end >= low - (high - low) && end <= high + (high - low);
    this.beyond = [least, most].filter(end => !fits(end));
    if (!state.whole[this.id]) [least, most] = [fits(least) ? least : low, fits(most) ? most : high];
    const margin = 0.04 * (most - least) || (most === 0 ? 1 : 0.05 * Math.abs(most));
    [this.least, this.most] = [this.from_zero && least === 0 ? 0 : least - margin, most + margin];
  }

  draw() {
    this.clear();
    const width = this.svg.clientWidth || (this.wide ? 1310 : 640), height = this.wide ? 340 : 250;
    const {left, right, top, bottom} = this.plane = {left: 62, right: width - 14, top: 12, bottom: height - 36};
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    fill(this.clip, {x: left, y: top - 4, width: right - left, height: bottom - top + 6}, []);
    this.shown = this.lines.filter(one => !state.hidden.includes(one.label));
    this.setRange();
    const [first, last] = view;
    const most = Math.max(2, Math.round(width / 100));
    this.axes.replaceChildren(...axes(this.plane, {
      xs: ticks(first, last, axis === xAxes[0] ? Math.max(1, Math.min(most, Math.floor(last - first))) : most),  // whole steps
      x: value => this.x(value), xLabel: axis.label,
      ys: this.isLog ? logTicks(this.least, this.most) : ticks(this.least, this.most, 5),
      y: value => this.y(value), yLabel: this.unit}));
    this.placed = marks.filter(mark => !state.hidden.includes(mark.label)).map(mark => ({...mark, at: axis.at(mark.run, mark.step)}))
      .filter(({at}) => at >= first && at <= last);
    this.marks.replaceChildren(...this.placed.map(({kind, at, color}) => svg("path", {class: `mark ${kind} ${color}`,
      d: kind === "checkpoint" ? `M${this.x(at).toFixed(1)} ${bottom}v-7` : `M${this.x(at).toFixed(1)} ${bottom - 9}l4.5 9h-9z`})));
    this.drawn.replaceChildren(...this.shown.flatMap(one => this.drawLine(one)));
    this.drawKeys();
  }

  drawKeys() {
    const keys = [...new Map(this.lines.map(one => [one.label, one])).values()].sort((a, b) => (a.color === "muted") - (b.color === "muted"));
    const isOff = label => state.hidden.includes(label);
    this.keys.replaceChildren(...keys.length > 1 || keys[0].label !== this.title ? keys.map(({label, color}) => button(label, !isOff(label),
      () => change({hidden: isOff(label) ? state.hidden.filter(other => other !== label) : [...state.hidden, label]}), swatch(color))) : []);
    const cut = state.whole[this.id] ? "cut the axis" : `axis cut, values reach ${this.beyond.map(longNumber).join(" and ")}: show all`;
    this.buttons.replaceChildren(...this.beyond.length ? [button(cut, Boolean(state.whole[this.id]), () => toggle("whole", this.id))] : [],
      ...this.canLog ? [button("log", this.isLog, () => toggle("logarithmic", this.id))] : []);
  }

  drawLine({color, style, at, y, low, high}) {
    const {left, right, top, bottom} = this.plane;
    const begin = Math.max(0, firstFrom(at, view[0]) - 1), end = Math.min(at.length, firstFrom(at, view[1]) + 1);
    const pointsOf = values => values.slice(begin, end).map((value, i) => [this.x(at[begin + i]).toFixed(1), this.y(value).toFixed(1)]);
    const points = pointsOf(y);
    const band = low ? [svg("polygon", {class: `band ${look(color)}`, points: [...pointsOf(low), ...pointsOf(high).reverse()].join(" "),
      "clip-path": `url(#clip-${this.id})`})] : [];
    const hasDots = points.length === 1 || points.length <= ({points: 40, validation: 120}[style] ?? 0);
    const dots = points.filter(([cx, cy]) => hasDots && cx >= left - 1 && cx <= right + 1 && cy >= top - 4 && cy <= bottom + 2);
    return [...band, svg("polyline", {class: `line ${look(color)} ${style}`, points: points.join(" "), "clip-path": `url(#clip-${this.id})`}),
      ...dots.map(([cx, cy]) => svg("circle", {class: `dot ${look(color)} ${style}`, cx, cy, r: 2.6}))];
  }

  clear() {
    this.over.replaceChildren();
    this.tip?.remove();
  }

  hover(event) {
    const {top, bottom} = this.plane;
    const value = Math.min(Math.max(this.valueAt(event), view[0]), view[1]);
    this.clear();
    if (this.drag !== undefined) {
      const [from, to] = [this.x(this.drag), this.x(value)].sort((a, b) => a - b);
      this.over.append(svg("rect", {class: "span", x: from, y: top, width: to - from, height: bottom - top}));
      return;
    }
    // The point of each line that is nearest to the pointer, and those of them near to the nearest of all.
    const found = this.shown.filter(one => one.style !== "faint" && one.at.length).map(one => ({...one, i: nearest(one.at, value)}));
    if (!found.length) return;
    const {run, x, at, i} = found.reduce((a, b) => Math.abs(b.at[b.i] - value) < Math.abs(a.at[a.i] - value) ? b : a);
    const place = at[i];
    const height = event.clientY - this.svg.getBoundingClientRect().top, away = one => Math.abs(this.y(one.y[one.i]) - height);
    const near = found.filter(one => Math.abs(one.at[one.i] - place) <= (view[1] - view[0]) / 50);
    if (near.length > kColors) near.sort((a, b) => away(a) - away(b)).splice(kColors);
    const events = this.placed.filter(mark => Math.abs(this.x(mark.at) - this.x(place)) < 8);
    this.over.append(line("cross", this.x(place), this.x(place), top, bottom),
      ...near.map(one => svg("circle", {class: `dot ${look(one.color)}`, cx: this.x(one.at[one.i]), cy: this.y(one.y[one.i]), r: 3})));
    this.tip = html("div", {class: "tip"},
      html("div", {class: "soft"}, xAxes.map(one => one.text(one.at(run, x[i]))).join(", ")),
      ...near.map(one => html("div", {}, swatch(one.color), `${one.name} `, html("b", {}, longNumber(one.y[one.i])), ` ${this.unit}${this.rawOf(one)}`)),
      ...events.slice(0, 3).map(mark => html("div", {class: "event"}, mark.text)),
      ...events.length > 3 ? [html("div", {class: "soft"}, `and ${events.length - 3} more events`)] : []);
    this.figure.append(this.tip);
    const frame = this.figure.getBoundingClientRect(), left = event.clientX - frame.left, width = this.tip.offsetWidth;
    this.tip.style.left = (left + 14 + width > frame.width ? Math.max(4, left - 14 - width) : left + 14) + "px";
    this.tip.style.top = event.clientY - frame.top + 12 + "px";
  }

  // What a smoothed line is the mean of, at the pointed step.
  rawOf({label, style, at, i}) {
    const raw = style === "" && this.shown.find(one => one.style === "faint" && one.label === label);
    return raw ? `, smoothed; raw ${longNumber(raw.y[nearest(raw.at, at[i])])}` : "";
  }
}
