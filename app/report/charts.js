// Charts over steps. All charts of a page show the same steps: dragging over one zooms into all of them, a double click
// shows all steps again. The values below the pointer are shown beside it.

let view = [0, 1];  // the steps that are shown
let allSteps = view;
let charts = [];
let marks = [];  // {kind, step, text}

function showCharts(rows, lastStep, events) {
  view = allSteps = [0, lastStep];
  marks = events;
  charts = rows.map(row => new Chart(row));
  return charts.map(chart => chart.figure);
}
function zoom(range) {
  if (range[1] <= range[0]) return;
  view = range;
  for (const chart of charts) chart.draw();
}

// The first index whose value is at least `value`.
function firstFrom(values, value) {
  let low = 0, high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < value) low = middle + 1; else high = middle;
  }
  return low;
}

class Chart {
  // {id, title, unit, note, wide, logarithmic, from_zero, crops, lines: [{label, color, style, x, y}]}. `style` is
  // empty, "faint" (the values that another line is the mean of), "points" or "dashed". With `crops`
  // the axis of y need not fit the beginning.
  constructor(chart) {
    Object.assign(this, chart);
    const [width, height] = this.wide ? [1310, 340] : [640, 250];
    this.plane = {left: 62, right: width - 14, top: 12, bottom: height - 36};
    const {left, right, top, bottom} = this.plane;
    const clip = svg("clipPath", {id: `clip-${this.id}`},
      svg("rect", {x: left, y: top - 4, width: right - left, height: bottom - top + 6}));
    [this.axes, this.marks, this.drawn, this.over] = [svg("g"), svg("g"), svg("g", {class: "lines"}), svg("g")];
    this.svg = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${this.title} by step`},
      clip, this.axes, this.marks, this.drawn, this.over);
    const caption = html("figcaption", {}, html("b", {}, this.title), ...this.note ? [html("span", {}, this.note)] : []);
    const keys = this.lines.filter(one => one.label).map(one => ({swatch: swatch(one.color), label: one.label}));
    this.figure = html("figure", {class: this.wide ? "chart wide" : "chart", id: this.id}, caption,
      ...keys.length ? [legend(keys)] : [], this.svg);
    this.listen();
    this.draw();
  }

  listen() {
    const on = (event, action) => this.svg.addEventListener(event, action);
    on("pointermove", event => this.hover(event));
    on("pointerleave", () => { if (this.drag === undefined) this.clear(); });
    on("pointerdown", event => {
      if (event.button) return;
      this.drag = this.stepAt(event);
      this.svg.setPointerCapture(event.pointerId);
    });
    on("pointerup", event => {
      const [from, to] = [this.drag, this.stepAt(event)].sort((a, b) => a - b);
      this.drag = undefined;
      this.clear();
      if (to - from > (view[1] - view[0]) / 80) zoom([Math.max(allSteps[0], from), Math.min(allSteps[1], to)]);
    });
    on("dblclick", () => zoom(allSteps));
  }

  x(step) {
    return this.plane.left + (step - view[0]) / (view[1] - view[0]) * (this.plane.right - this.plane.left);
  }
  y(value) {
    const scaled = this.logarithmic ? Math.log10 : v => v;
    const share = (scaled(value) - scaled(this.least)) / (scaled(this.most) - scaled(this.least));
    return this.plane.bottom - share * (this.plane.bottom - this.plane.top);
  }
  stepAt(event) {
    const frame = this.svg.getBoundingClientRect();
    const x = (event.clientX - frame.left) / frame.width * this.svg.viewBox.baseVal.width;
    return view[0] + (x - this.plane.left) / (this.plane.right - this.plane.left) * (view[1] - view[0]);
  }

  range() {
    let least = Infinity, most = -Infinity;
    const begin = view[0] === 0 ? 0.06 * this.crops * view[1] : view[0];
    for (const {x, y} of this.lines) {
      for (let i = firstFrom(x, begin); i < x.length && x[i] <= view[1]; i++) {
        least = Math.min(least, y[i]);
        most = Math.max(most, y[i]);
      }
    }
    if (least > most) return this.logarithmic ? [1, 10] : [0, 1];
    if (this.logarithmic) return [least / 1.1, most * 1.1];
    if (this.from_zero) [least, most] = [Math.min(least, 0), Math.max(most, 0)];
    const margin = 0.04 * (most - least) || (most === 0 ? 1 : 0.05 * Math.abs(most));
    return [this.from_zero && least === 0 ? 0 : least - margin, most + margin];
  }

  draw() {
    this.clear();
    [this.least, this.most] = this.range();
    const {top, bottom} = this.plane;
    const [first, last] = view;
    const steps = Math.max(1, Math.min(this.wide ? 12 : 7, Math.floor(last - first)));  // ticks are whole steps
    this.axes.replaceChildren(...axes(this.plane, {
      xs: ticks(first, last, steps), x: step => this.x(step), xLabel: "step",
      ys: this.logarithmic ? logTicks(this.least, this.most) : ticks(this.least, this.most, 5),
      y: value => this.y(value), yLabel: this.unit}));
    this.marks.replaceChildren(...marks.filter(mark => mark.step >= first && mark.step <= last).map(mark =>
      line(`mark ${mark.kind}`, this.x(mark.step), this.x(mark.step),
        mark.kind === "checkpoint" ? bottom - 6 : top, bottom, svg("title", {}, mark.text))));
    this.drawn.replaceChildren(...this.lines.flatMap(one => this.drawLine(one)));
  }

  drawLine({color, style, x, y}) {
    const begin = Math.max(0, firstFrom(x, view[0]) - 1), end = Math.min(x.length, firstFrom(x, view[1]) + 1);
    const points = [];
    for (let i = begin; i < end; i++) points.push([this.x(x[i]).toFixed(1), this.y(y[i]).toFixed(1)]);
    const hasDots = points.length === 1 || (style === "points" || style === "dashed") && points.length <= 120;
    const dots = points.filter(([cx, cy]) => hasDots && cx >= this.plane.left - 1 && cx <= this.plane.right + 1 && cy >= 0);
    return [svg("polyline", {class: `line c${color % 8} ${style}`, points: points.join(" "), "clip-path": `url(#clip-${this.id})`}),
      ...dots.map(([cx, cy]) => svg("circle", {class: `dot c${color % 8}`, cx, cy, r: 2.6}))];
  }

  clear() {
    this.over.replaceChildren();
    this.tip?.remove();
  }

  hover(event) {
    const {top, bottom} = this.plane;
    const at = Math.min(Math.max(this.stepAt(event), view[0]), view[1]);
    this.clear();
    if (this.drag !== undefined) {
      const [from, to] = [this.x(this.drag), this.x(at)].sort((a, b) => a - b);
      this.over.append(svg("rect", {class: "span", x: from, y: top, width: to - from, height: bottom - top}));
      return;
    }
    // The point of each line that is nearest to the pointer.
    const found = this.lines.filter(one => one.style !== "faint" && one.x.length).map(one => {
      let i = firstFrom(one.x, at);
      if (i === one.x.length || i > 0 && at - one.x[i - 1] < one.x[i] - at) i--;
      return {...one, step: one.x[i], value: one.y[i]};
    });
    if (!found.length) return;
    const {step} = found.reduce((a, b) => Math.abs(b.step - at) < Math.abs(a.step - at) ? b : a);
    const near = found.filter(one => Math.abs(one.step - step) <= (view[1] - view[0]) / 50);
    this.over.append(line("cross", this.x(step), this.x(step), top, bottom),
      ...near.map(one => svg("circle", {class: `dot c${one.color % 8}`, cx: this.x(one.step), cy: this.y(one.value), r: 3})));
    this.tip = html("div", {class: "tip"}, html("div", {class: "soft"}, `step ${step.toLocaleString("en-US")}`),
      ...near.map(one => html("div", {}, swatch(one.color), `${one.label}  ${longNumber(one.value)}`.trim())));
    this.figure.append(this.tip);
    const frame = this.figure.getBoundingClientRect(), left = event.clientX - frame.left, width = this.tip.offsetWidth;
    this.tip.style.left = (left + 14 + width > frame.width ? Math.max(4, left - 14 - width) : left + 14) + "px";
    this.tip.style.top = event.clientY - frame.top + 12 + "px";
  }
}
