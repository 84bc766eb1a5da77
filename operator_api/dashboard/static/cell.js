// The cell: drawn from columns that the server has counted and sampled, and again after each round.

import { ask, atMostEvery, clientUrl, follow, showLoading, url } from "./live.js";
import { colour, drawThemed, dress, seriesColours, showPlot } from "./plots.js";
import { fillTable } from "./tables.js";

const NEWS = /^(round\.(requesting|scheduled|aggregating|aggregated|failed|cancelled)|clients\.enrolled|client\.removed|cell\.changed)$/;
const NOW_AND_THEN_MS = 30000; // reports have no events
const SHOWN_MS = 3600000; // of the block grid
const NO_TOUCH = { tools: "pan,wheel_zoom,box_zoom,reset", active_drag: null, active_scroll: null };
const number = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const whole = new Intl.NumberFormat("en");
const byId = (id) => document.getElementById(id);

let asked = 0;
let drawn = "";
let cell = null;

/** Load the cell; outdated responses are dropped, unchanged ones are not drawn again. */
async function load() {
  const turn = ++asked;
  const answer = await ask(url("/dashboard/data/cell", chosen()));
  const text = answer ? await answer.text() : drawn;
  if (turn !== asked) return;
  showLoading(answer ? "" : "failure");
  if (text === drawn) return;
  drawn = text;
  cell = JSON.parse(text);
  show();
}

const refresh = atMostEvery(2000, load);

/** What the form says, for the query. */
function chosen() {
  return { task_id: byId("task").value || null, cell_id: byId("cell-choice").value || null };
}

/** Fill the page; plots need their place to be visible first. */
function show() {
  if (!cell) return;
  const reports = cell.map.client_id.length;
  byId("no-clients").hidden = cell.enrolled > 0;
  byId("no-reports").hidden = cell.enrolled === 0 || reports > 0;
  byId("cell").hidden = reports === 0 && cell.fairness === null;
  byId("blocks").hidden = cell.blocks === null;
  if (cell.blocks) showBlocks(cell.blocks);
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

/** The grid of resource blocks over the last hour, and what is held now. */
function showBlocks(blocks) {
  const { task_id, task, number, first, count, from_ms, until_ms } = blocks.allocations;
  const range = (row) => `${first[row]} to ${first[row] + count[row] - 1}`;
  const held = until_ms.flatMap((until, row) => until === null ? [`${range(row)} by round ${number[row]} of ${task[row]}`] : []);
  byId("blocks-summary").textContent = `${whole.format(blocks.held)} of ${whole.format(blocks.resource_blocks)} blocks are held now${held.length
    ? `: ${held.join(", ")}.` : "."}`;
  const clock = (ms) => new Date(ms).toLocaleTimeString();
  fillTable("blocks-table", task.map((name, row) => [
    name, whole.format(number[row]), range(row), clock(from_ms[row]), until_ms[row] === null ? "held now" : clock(until_ms[row]),
  ]), task_id.map((id) => url(`/dashboard/tasks/${id}`)));
  const now = Date.now();
  const tasks = [...new Set(task_id)];
  const colours = seriesColours();
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: 320, sizing_mode: "stretch_width", toolbar_location: "above", x_axis_type: "datetime",
    x_range: [now - SHOWN_MS, now], y_range: [0, blocks.resource_blocks], y_axis_label: "resource block",
    x_axis_label: "time (UTC)",
  });
  figure.xaxis.formatter = new Bokeh.DatetimeTickFormatter({ minutes: "%H:%M", hourmin: "%H:%M", hours: "%H:%M" });
  const held_by = new Bokeh.ColumnDataSource({ data: {
    left: from_ms, right: until_ms.map((until) => until ?? now), bottom: first, top: first.map((block, row) => block + count[row]),
    task, number, fill: task_id.map((id) => colours[tasks.indexOf(id) % colours.length]),
  } });
  const quads = (source, style) => figure.quad({
    left: { field: "left" }, right: { field: "right" }, bottom: { field: "bottom" }, top: { field: "top" }, source, ...style,
  });
  const rounds = quads(held_by, { fill_color: { field: "fill" }, fill_alpha: 0.5, line_color: { field: "fill" } });
  figure.add_tools(new Bokeh.HoverTool({ renderers: [rounds], tooltips: [["task", "@task"], ["round", "@number"]] }));
  const slots = blocks.slots;
  const uploads = new Bokeh.ColumnDataSource({ data: {
    left: slots.from_ms, right: slots.until_ms, client: slots.client_id,
    bottom: slots.first.map((block, row) => block + slots.count[row] * 0.15), top: slots.first.map((block, row) => block + slots.count[row] * 0.85),
  } });
  const planned = quads(uploads, { fill_color: colour("--text"), fill_alpha: 0.6, line_color: colour("--surface") });
  figure.add_tools(new Bokeh.HoverTool({ renderers: [planned], tooltips: [["client", "@client"]] }));
  dress(figure);
  showPlot(figure, byId("blocks-plot"));
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
  const clients = marks.map(([chosen, marker, size, name, line]) => {
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
    return glyphs;
  });
  figure.add_tools(new Bokeh.TapTool({
    renderers: clients, behavior: "inspect",
    callback: (_, { source }) => location.assign(clientUrl(source.data.client[source.inspected.indices[0]])),
  }));
  figure.scatter({ x: [0], y: [0], marker: "triangle", size: 14, color: colour("--text") });
  figure.add_layout(new Bokeh.ColorBar({
    color_mapper: mapper, title: "Mbit/s", ticker: logTicks(low, Math.max(...rates, low * 1.01)), width: 12, formatter: plainly(), background_fill_color: colour("--surface"),
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
  drawBars("times-plot", starts.map((start) => start - 0.5), starts.map((start) => start + times.width - 0.5), times.clients, { ticks: starts });
  for (const [name, who] of [["most", most], ["least", least]]) {
    fillTable(`${name}-selected`, who.client_id.map((id, place) => [id, whole.format(who.times[place])]), who.client_id.map(clientUrl));
  }
}

/** 0.01, not a power of ten. */
function plainly() {
  return new Bokeh.BasicTickFormatter({ use_scientific: false });
}

/** 1, 2, 5, 10, … between two numbers: Bokeh's own ticks of a logarithmic axis are 2, 4, 6, … on a short one. */
function logTicks(low, high) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const mantissa of [1, 2, 5]) ticks.push(mantissa * 10 ** power);
  }
  return new Bokeh.FixedTicker({ ticks: ticks.filter((tick) => tick >= low && tick <= high) });
}

function drawBars(id, left, right, top, axis = {}) {
  if (!left.length) {
    byId(id).replaceChildren();
    return;
  }
  const figure = Bokeh.Plotting.figure({
    ...NO_TOUCH, height: 220, sizing_mode: "stretch_width", x_axis_type: axis.type ?? "linear", y_axis_label: "clients", toolbar_location: null,
  });
  figure.quad({ left, right, top, bottom: 0, fill_color: colour("--series-1"), line_color: colour("--surface") });
  figure.y_range.start = 0;
  figure.xaxis.formatter = plainly();
  figure.xaxis.major_label_policy = new Bokeh.NoOverlap();
  if (axis.type === "log") figure.xaxis.ticker = logTicks(left[0], right.at(-1));
  if (axis.ticks) figure.xaxis.ticker = new Bokeh.FixedTicker({ ticks: axis.ticks });
  dress(figure);
  showPlot(figure, byId(id));
}

for (const id of ["task", "cell-choice"]) {
  byId(id).disabled = false;
  byId(id).addEventListener("change", () => {
    history.replaceState(null, "", url("/dashboard/cell", chosen()));
    load();
  });
}
showLoading("loading");
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
