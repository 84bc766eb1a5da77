// The cell: drawn from columns that the server has counted and sampled, and again after each round.

import { ask, atMostEvery, follow, url } from "./live.js";
import { colour, drawThemed, dress, showPlot } from "./plots.js";
import { fillTable } from "./tables.js";

const NEWS = /^(round\.(scheduled|aggregated|failed|cancelled)|clients\.enrolled|client\.removed)$/;
const NOW_AND_THEN_MS = 30000; // nobody tells of reports
const NO_TOUCH = { tools: "pan,wheel_zoom,box_zoom,reset", active_drag: null, active_scroll: null };
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);

let asked = 0;
let drawn = "";
let cell = null;

/** Ask for the cell; an answer that another question has overtaken is dropped, one that is the same not drawn. */
async function load() {
  const turn = ++asked;
  const answer = await ask(url("/dashboard/data/cell", { task_id: byId("task").value || null }));
  const text = answer ? await answer.text() : drawn;
  if (turn !== asked) return;
  byId("failure").hidden = answer !== null;
  if (text === drawn) return;
  drawn = text;
  cell = JSON.parse(text);
  show();
}

const refresh = atMostEvery(2000, load);

/** Fill the page; plots need their place to be visible first. */
function show() {
  if (!cell) return;
  const reports = cell.map.client_id.length;
  byId("no-clients").hidden = cell.enrolled > 0;
  byId("no-reports").hidden = cell.enrolled === 0 || reports > 0;
  byId("cell").hidden = reports === 0 && cell.fairness === null;
  showMap(reports);
  for (const [name, counted] of Object.entries(cell.distributions)) showDistribution(name, counted);
  byId("no-rounds").hidden = cell.fairness !== null;
  byId("fairness").hidden = cell.fairness === null;
  if (cell.fairness) showFairness(cell.fairness);
}

function showMap(reports) {
  const selected = cell.map.selected.filter(Boolean).length;
  const round = cell.round;
  byId("map-summary").replaceChildren(`${whole.format(reports)} client${reports === 1 ? "" : "s"} with a report`, ...(round === null
    ? ["; there is no round yet."]
    : [`, ${whole.format(selected)} of them selected in `, linkTo(round), ` (${round.state}).`]));
  const limits = [];
  if (cell.sampled < cell.enrolled) {
    limits.push(`Of ${whole.format(cell.enrolled)} clients ${whole.format(cell.sampled)} are drawn, always the same ones, and those selected.`);
  }
  if (cell.map.beyond_edge) limits.push(`${whole.format(cell.map.beyond_edge)} farther away are drawn at the edge.`);
  if (round?.removed) limits.push(`${whole.format(round.removed)} selected have been removed since.`);
  byId("map-limits").textContent = limits.join(" ");
  byId("distributions-note").textContent = cell.sampled < cell.enrolled
    ? `Of the same ${whole.format(cell.sampled)} clients, each with its newest report.` : "Of each client’s newest report.";
  drawMap();
}

function linkTo(round) {
  const link = document.createElement("a");
  link.href = url(`/dashboard/rounds/${round.round_id}`);
  const task = document.createElement("bdi");
  task.textContent = round.task;
  link.append(`round ${round.number} of `, task);
  return link;
}

function drawMap() {
  const { x_m, y_m, client_id, throughput_mbps, selected, edge_m } = cell.map;
  const place = byId("map-plot");
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: Math.min(place.clientWidth, 520), toolbar_location: "above", sizing_mode: "stretch_width", match_aspect: true,
    x_axis_label: "distance (m)", y_axis_label: "distance (m)",
  });
  const rates = throughput_mbps.length ? throughput_mbps : [1];
  const low = Math.min(...rates);
  // Cividis: perceptually uniform, and the same to the colour-blind. Rates lie orders of magnitude apart.
  const mapper = new Bokeh.LogColorMapper({
    palette: Bokeh.Palettes.Cividis256 ?? Bokeh.Palettes.cividis(256), low, high: Math.max(...rates, low * 1.01),
  });
  for (const share of [0.25, 0.5, 0.75, 1]) {
    figure.circle({ x: 0, y: 0, radius: share * edge_m, fill_color: null, line_color: colour("--rule") });
  }
  const marks = [
    [0, "circle", 7, "not selected", { line_color: colour("--muted"), line_width: 0.5 }],
    [1, "diamond", 16, "selected", { line_color: colour("--text"), line_width: 2 }],
  ];
  for (const [chosen, marker, size, name, line] of marks) {
    const of = (column) => column.filter((_, row) => selected[row] === chosen);
    const source = new Bokeh.ColumnDataSource({
      data: { x: of(x_m), y: of(y_m), client: of(client_id), mbps: of(throughput_mbps) },
    });
    const glyphs = figure.scatter({
      x: { field: "x" }, y: { field: "y" }, source, marker, size, ...line,
      fill_color: { field: "mbps", transform: mapper },
    });
    figure.add_tools(new Bokeh.HoverTool({
      renderers: [glyphs], tooltips: [["client", "@client"], ["throughput", "@mbps{0.000} Mbit/s"], ["", name]],
    }));
  }
  figure.scatter({ x: [0], y: [0], marker: "triangle", size: 14, color: colour("--text") });
  figure.add_layout(new Bokeh.ColorBar({
    color_mapper: mapper, title: "Mbit/s", width: 12, formatter: plainly(), background_fill_color: colour("--surface"),
    title_text_color: colour("--text"), major_label_text_color: colour("--text"), bar_line_color: colour("--rule"),
  }), "right");
  dress(figure);
  showPlot(figure, place);
}

function showDistribution(name, { edges, clients, median }) {
  const rows = clients.map((count, bin) => [number.format(edges[bin]), number.format(edges[bin + 1]), whole.format(count)]);
  fillTable(`${name}-table`, rows);
  byId(`${name}-summary`).textContent = median === null ? "No report." :
    `From ${number.format(edges[0])} to ${number.format(edges.at(-1))}, half of them above ${number.format(median)}.`;
  drawBars(`${name}-plot`, edges.slice(0, -1), edges.slice(1), clients, { type: name === "throughput_mbps" ? "log" : "linear" });
}

function showFairness({ rounds, clients, never, jain, times, most, least }) {
  byId("jain").textContent = jain === null ? "–" : jain.toFixed(3);
  byId("rounds").textContent = whole.format(rounds);
  byId("may-be-asked").textContent = whole.format(clients);
  const starts = times.from;
  byId("never").textContent = whole.format(never);
  byId("times-summary").textContent = most.times.length
    ? `From ${least.times[0]} to ${most.times[0]} times.` : "There is no client that the task may ask.";
  const rows = starts.map((start, bar) => [whole.format(start), whole.format(start + times.width - 1), whole.format(times.clients[bar])]);
  fillTable("times-table", rows);
  drawBars("times-plot", starts.map((one) => one - 0.5), starts.map((one) => one + times.width - 0.5), times.clients, { ticks: starts });
  for (const [name, who] of [["most", most], ["least", least]]) {
    fillTable(`${name}-selected`, who.client_id.map((id, place) => [id, whole.format(who.times[place])]), true);
  }
}

/** 0.01, not a power of ten. */
function plainly() {
  return new Bokeh.BasicTickFormatter({ use_scientific: false });
}

function drawBars(id, left, right, top, axis = {}) {
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: 220, sizing_mode: "stretch_width", x_axis_type: axis.type ?? "linear", y_axis_label: "clients", toolbar_location: null,
  });
  figure.quad({ left, right, top, bottom: 0, fill_color: colour("--series-1"), line_color: colour("--surface") });
  figure.y_range.start = 0;
  figure.xaxis.formatter = plainly();
  if (axis.ticks) figure.xaxis.ticker = new Bokeh.FixedTicker({ ticks: axis.ticks });
  dress(figure);
  showPlot(figure, byId(id));
}

byId("task").disabled = false;
byId("task").addEventListener("change", () => {
  history.replaceState(null, "", url("/dashboard/cell", { task_id: byId("task").value || null }));
  load();
});
drawThemed(show);
follow({
  onEvent: (event) => {
    if (NEWS.test(event.kind)) refresh();
  },
  onOpen: refresh,
});
setInterval(() => {
  if (!document.hidden) refresh();
}, NOW_AND_THEN_MS);
