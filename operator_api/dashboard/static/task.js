// The page of a task: its plots, and those of the tasks it is compared with. New rounds are streamed into the
// plots that are there. No name gets into a plot: Bokeh would take what stands between $$ for mathematics.

import { ask, atMostEvery, follow, refreshParts, showLoading, url } from "./live.js";
import { colour, drawThemed, dress, seriesColours, showPlot } from "./plots.js";

const AXES = { minutes: "elapsed minutes", number: "round" };
const MARKERS = ["circle", "square", "triangle", "diamond", "inverted_triangle", "hex"];
const MATTERS = /^(task\.(?!deleted)|round\.|model\.|update\.)/; // of a deleted task there is nothing to ask
const OVER = new Set(["aggregated", "failed", "cancelled"]);

/** The rounds of a task as far as they are known here. */
class TaskProgress {
  constructor(taskId) {
    this.taskId = taskId;
    this.rounds = [];
    this.failed = false;
    this.refresh = atMostEvery(1000, () => this.load());
  }

  /** Ask for the rounds from the first that can still change; the others stay as they are. */
  async load() {
    const unsettled = this.rounds.findIndex((round) => !round.settled);
    const kept = unsettled < 0 ? this.rounds.length : unsettled;
    const answer = await ask(url(`/dashboard/data/tasks/${this.taskId}`, { first: kept + 1 }));
    this.failed = !answer;
    showLoading(tasks.some(({ failed }) => failed) ? "failure" : "");
    if (!answer) return;
    const told = await answer.json();
    const fresh = told.number.map((number, place) => ({
      number,
      minutes: told.elapsed_s[place] === null ? null : told.elapsed_s[place] / 60,
      accuracy: told.accuracy[place],
      loss: told.loss[place],
      selected: told.selected[place],
      received: told.received[place],
      settled: OVER.has(told.state[place]) &&
        (told.accuracy[place] !== null || !told.evaluates || told.state[place] !== "aggregated"),
    }));
    this.rounds = [...this.rounds.slice(0, kept), ...fresh];
    for (const plot of plots) plot.update();
  }

  /** What a line shows: the rounds that have a value and a place on the axis, in columns. */
  points(field, axis) {
    const shown = this.rounds.filter((round) => round[field] !== null && round[axis] !== null);
    return columnsOf(shown, field, axis);
  }

  /** Where it first reached each of the thresholds. */
  arrivals(axis) {
    const first = thresholds.map((threshold) => this.rounds.find(({ accuracy }) => accuracy !== null && accuracy >= threshold));
    return columnsOf(first.filter((round) => round), "accuracy", axis);
  }
}

function columnsOf(rounds, field, axis) {
  return {
    x: rounds.map((round) => round[axis]),
    y: rounds.map((round) => round[field]),
    number: rounds.map((round) => round.number),
    minutes: rounds.map((round) => round.minutes ?? NaN),
  };
}

/** A plot of one or two numbers per round, with a line for each of them and each task. */
class ProgressPlot {
  constructor(id, fields) {
    this.box = document.getElementById(id);
    this.fields = fields;
    this.lines = tasks.flatMap((task, place) => fields.map((field) => ({ task, place, field })));
    for (const line of this.lines) line.source = new Bokeh.ColumnDataSource({ data: columnsOf([], "number", "number") });
    this.arrivals = tasks.map(() => new Bokeh.ColumnDataSource({ data: columnsOf([], "number", "number") }));
    this.drawn = false;
  }

  /** Bring the lines up to date; the plot is drawn when there is something to see on it. */
  update() {
    for (const { task, field, source } of this.lines) bring(source, task.points(field, axis));
    tasks.forEach((task, place) => bring(this.arrivals[place], task.arrivals(axis)));
    for (const xaxis of this.figure?.xaxis ?? []) xaxis.axis_label = AXES[axis];
    if (this.drawn || !this.lines.some(({ source }) => source.data.x.length)) return;
    this.drawn = true;
    this.box.hidden = document.getElementById("axis").hidden = false;
    drawThemed(() => this.draw());
  }

  draw() {
    const isShare = this.fields[0] === "accuracy";
    this.figure = new Bokeh.Plotting.Figure({
      height: 320,
      sizing_mode: "stretch_width",
      tools: "pan,box_zoom,reset,save",
      toolbar_location: "above",
      x_axis_label: AXES[axis],
      y_range: isShare ? new Bokeh.Range1d({ start: 0, end: 1 }) : new Bokeh.DataRange1d({ start: 0 }),
    });
    // The sources outlive this figure, which is made anew when the page turns dark: each gets copies of its own.
    for (const line of this.lines) line.source = copyOf(line.source);
    this.arrivals = this.arrivals.map(copyOf);
    for (const line of this.lines) this.addLine(line);
    if (isShare) this.addThresholds();
    const value = isShare ? "@y{0.0 %}" : "@y{0.[000]}";
    const hover = [["round", "@number"], ["minutes", "@minutes{0.0}"], [this.fields.join(" or "), value]];
    this.figure.add_tools(new Bokeh.HoverTool({ tooltips: hover }));
    if (isShare) {
      for (const yaxis of this.figure.yaxis) yaxis.formatter = new Bokeh.NumeralTickFormatter({ format: "0 %" });
    }
    dress(this.figure);
    showPlot(this.figure, this.box.querySelector(".plot"));
  }

  addLine({ place, field, source }) {
    const line_color = seriesColours()[place];
    // Selected: wide and pale, so that received can be seen where both are equal.
    const style = field === "selected" ? { line_width: 8, line_alpha: 0.3 } : { line_width: 2 };
    this.figure.line({ field: "x" }, { field: "y" }, { source, line_color, ...style });
    if (field === "selected") return;
    this.figure.scatter({ field: "x" }, { field: "y" }, {
      source, marker: MARKERS[place], size: 6, fill_color: line_color, line_color,
    });
  }

  addThresholds() {
    for (const location of thresholds) {
      const span = { location, dimension: "width", line_color: colour("--deadline"), line_dash: [3, 3], line_width: 1 };
      this.figure.add_layout(new Bokeh.Span(span));
    }
    this.arrivals.forEach((source, place) => {
      this.figure.scatter({ field: "x" }, { field: "y" }, {
        source, marker: "star", size: 16, fill_color: seriesColours()[place], line_color: colour("--text"),
      });
    });
  }
}

function copyOf(source) {
  return new Bokeh.ColumnDataSource({ data: source.data });
}

/** Give a source these columns: if they only go on where it ends, by streaming what is new. */
function bring(source, columns) {
  const before = source.data;
  const length = before.x.length;
  const goesOn = ["x", "y"].every((name) => before[name].every((value, place) => value === columns[name][place]));
  if (!goesOn) source.data = columns;
  else if (columns.x.length > length) source.stream(cut(columns, length));
}

function cut(columns, start) {
  return Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values.slice(start)]));
}

const progress = document.getElementById("progress");
const taskIds = progress.dataset.tasks.split(" ");
const thresholds = progress.dataset.thresholds.split(" ").map(Number);
const tasks = taskIds.map((taskId) => new TaskProgress(taskId));
const plots = [
  new ProgressPlot("accuracy", ["accuracy"]),
  new ProgressPlot("loss", ["loss"]),
  new ProgressPlot("clients", ["selected", "received"]),
];
let axis = document.querySelector("input[name=axis]:checked").value; // a browser may remember it

document.getElementById("axis").addEventListener("change", (event) => {
  axis = event.target.value;
  for (const plot of plots) plot.update();
});

const parts = url(`/dashboard/data/tasks/${taskIds[0]}/parts`) + location.search;
const refreshText = atMostEvery(1000, () => refreshParts(parts));

showLoading("loading");

function refreshAll() {
  refreshText();
  for (const task of tasks) task.refresh();
}

follow({
  taskId: tasks.length === 1 ? taskIds[0] : null,
  onOpen: refreshAll,
  onEvent: (event) => {
    const task = tasks.find(({ taskId }) => taskId === event.task_id);
    if (!task || !MATTERS.test(event.kind)) return;
    refreshText();
    task.refresh();
  },
});
